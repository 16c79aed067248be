"""The memory that `plan` prints, against figures worked out by hand for a tiny model."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pytest

from rl_sync.configs import base
from rl_sync.models.transformer import param_shapes
from rl_sync.plan.lowered_programs import layout_on, train_step
from rl_sync.plan.memory.explorer_memory import (
    EXPLORER_PROGRAM_BYTES,
    SAMPLING_ARRAYS,
    explorer_estimate,
)
from rl_sync.plan.memory.memory_estimate import MemoryEstimate
from rl_sync.plan.memory.memory_text import describe_explorer, describe_trainer, format_bytes
from rl_sync.plan.memory.trainer_memory import TRAINER_PROGRAM_BYTES, step_estimate
from rl_sync.roles.assembly import wiring
from rl_sync.rollout import slots as core
from rl_sync.settings.config_reading import read_settings
from rl_sync.settings.records import ConfigError
from rl_sync.settings.run_settings import RunSettings
from tests.launcher.command import launcher
from tests.runs import tiny

# float32, D = 32, one layer, N = 4, K = 2, H = 8, F = 64, and V = 15: ten digits, + - =, pad, end.
EMBED = 15 * 32
ATTENTION = 32 * (4 + 2 * 2) * 8 + 4 * 8 * 32
MLP = 32 * 2 * 64 + 64 * 32
NORMS = 3 * 32
PARAMETERS = 4 * (EMBED + ATTENTION + MLP + NORMS)
# Rank 2: from an input to 2, and from 2 to an output, of q, k, v, o, gate, up and down.
ADAPTERS = 4 * 2 * sum([32 + 32, 32 + 16, 32 + 16, 32 + 32, 32 + 64, 32 + 64, 64 + 32])
# A lease of 6 groups of 2; keys and values of 2 heads, at 10 positions: 6 + 4 tokens.
SIZE = r"\d[\d.]*(?:e\+\d+)? (?:bytes|[kMG]B)"
CACHE = 4 * 2 * (6 * 2) * 2 * 10 * 8
BLOCK_INPUT = 4 * 6 * 10 * 32


def settings_with(**fields: object) -> RunSettings:
    """Returns the tiny config with some settings changed; `model__remat` stands for model.remat."""
    config = {**tiny.get_config().to_dict(), "workdir": "none"}
    for name, value in fields.items():
        *sections, field = name.split("__")
        section = config
        for part in sections:
            section = section[part]
        section[field] = value
    return read_settings(config)


class Printed(NamedTuple):
    """The lines of a role.

    Attributes:
      held: sizes of what it always holds, by name, and their sum.
      apart: of what is in the host's memory.
      on: for each platform, sizes by name of what a program has besides, and the most bytes.
      policies: for each platform, the most bytes under the other policies of `model.remat`.
    """

    held: tuple[dict[str, str], str]
    apart: dict[str, str]
    on: dict[str, tuple[dict[str, str], str]]
    policies: dict[str, dict[str, str]]


def described(role: str, **fields: object) -> Printed:
    """Returns what is printed of a role."""
    settings = settings_with(**fields)
    describe = describe_trainer if role == "trainer" else describe_explorer
    return parts_of(describe(settings, wiring.load_task(settings)))[role]


def parts_of(text: str) -> dict[str, Printed]:
    """Parses what is printed of each role."""
    found = {}
    for role, block in re.findall(r"^  (\w+) +(parameters.*(?:\n {13}.*)*)$", text, re.M):
        first, *others = block.split("\n")
        lines = {
            platform: line
            for names, line in re.findall(r"^ +on ([\w ]+): (.*)$", block, re.M)
            for platform in re.findall(r"(\w+)s\b", names)
        }
        names = re.search(r"\(([\w, ]+)\):$", block, re.M)
        policies = {
            platform: dict(zip(names[1].split(", "), _sizes(line.rpartition("(")[2]), strict=True))
            for platform, line in lines.items()
            if names
        }
        on = {}
        for platform, line in lines.items():
            parts, _, most = line.partition(": ")
            on[platform] = _parts(parts), _sizes(most)[0]
        apart = _parts("".join(line for line in others if "in the host's memory" in line))
        held, _, total = first.rpartition(": ")
        found[role] = Printed((_parts(held), total), apart, on, policies)
    return found


def _parts(text: str) -> dict[str, str]:
    return dict(re.findall(rf"(?:^|[,:] )([A-Za-z_' ]+) ({SIZE})", text))


def _sizes(text: str) -> list[str]:
    return re.findall(SIZE, text)


def size(text: str) -> float:
    """Parses the bytes that `format_bytes` printed."""
    number, unit = text.split()
    return float(number) * {"bytes": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}[unit]


def assert_parts(found: Printed, **expected: int) -> None:
    """Asserts that a role holds these parts, and that all sums are right.

    Numbers are compared with the precision in which they are printed.
    """
    held, total = found.held
    assert held == {name.replace("_", " "): format_bytes(of) for name, of in expected.items()}
    assert total == format_bytes(sum(expected.values()))
    for platform, (parts, most) in found.on.items():
        apart = found.apart.values() if platform == "CPU" else ()
        every = [*map(size, (total, *parts.values(), *apart))]
        assert size(most) == pytest.approx(sum(every), rel=1e-2)


@pytest.mark.nightly
def test_plan_prints_figures_that_add_up():
    penalty = "--config.algorithm.kl_coefficient=0.001"
    done = launcher("plan", "--config=tests/runs/tiny.py", "--config.workdir=none", penalty)
    assert done.returncode == 0, done.stderr
    found = parts_of(done.stdout)
    trainer, explorer = found["trainer"], found["explorer"]
    assert_parts(
        trainer,
        parameters=PARAMETERS,
        optimizer=2 * PARAMETERS + 2 * 4,  # Adam's two moments, its count and the schedule's.
        reference=PARAMETERS,
    )
    assert {parts["gradients"] for parts, _ in trainer.on.values()} == {format_bytes(PARAMETERS)}
    assert_parts(explorer, parameters=PARAMETERS, parameters_that_arrive=PARAMETERS)
    assert explorer.on["CPU"][0]["KV cache"] == format_bytes(CACHE)
    assert "6 rows of 10 tokens" in done.stdout  # 12 trajectories in two updates.
    assert "for 12 slots of 10 tokens" in done.stdout


def test_without_a_penalty_there_is_no_reference():
    settings = settings_with(algorithm__kl_coefficient=0.0)
    held = step_estimate(settings, wiring.load_task(settings), "tpu").held
    assert "parameters" in held
    assert "reference" not in held


def test_a_gpu_that_compares_versions_also_holds_the_last_one_as_it_was_published():
    kept = {}
    for delta in ("on", "off"):
        settings = settings_with(
            sync__transfer="server", sync__delta=delta, explorer__dtype="bfloat16"
        )
        task = wiring.load_task(settings)
        for platform in ("cpu", "tpu", "gpu"):
            made = step_estimate(settings, task, platform).made
            kept[delta, platform] = made.get("the last published version", 0)
    assert kept.pop(("on", "gpu")) == PARAMETERS // 2
    assert set(kept.values()) == {0}


@pytest.mark.gate
def test_a_critic_of_its_own_doubles_what_learns_and_a_head_adds_next_to_nothing():
    head = 4 * (32 + 1)
    policy = {
        "parameters": PARAMETERS,
        "optimizer": 2 * PARAMETERS + 2 * 4,
        "reference": PARAMETERS,
    }
    ppo = {"algorithm__name": "ppo", "algorithm__kl_coefficient": 0.1}
    own, shared = (described("trainer", **ppo, critic__model=model) for model in ("own", "head"))
    critic = PARAMETERS + head
    assert_parts(own, **policy, critic=critic, critic_optimizer=2 * critic + 2 * 4)
    assert_parts(shared, **policy, critic=head, critic_optimizer=2 * head + 2 * 4)
    of_own, of_shared = (one.on["CPU"][0] for one in (own, shared))
    assert of_own["critic gradients"] == format_bytes(critic)
    assert 1.5 < size(of_own["activations"]) / size(of_shared["activations"]) < 2


@pytest.mark.gate
def test_what_is_offloaded_is_apart_from_what_the_device_holds():
    offloaded = {"trainer__offload_reference": True, "trainer__offload_optimizer": True}
    found = described("trainer", algorithm__kl_coefficient=0.1, **offloaded)
    assert_parts(found, parameters=PARAMETERS)
    assert found.apart == {
        "optimizer": format_bytes(2 * PARAMETERS + 2 * 4),
        "reference": format_bytes(PARAMETERS),
    }


@pytest.mark.gate
def test_caches_set_aside_are_apart_from_what_the_device_holds():
    without = described("explorer", environment__name="guess")
    found = described("explorer", environment__name="guess", environment__kv_offload_bytes=3000)
    assert found == without._replace(apart={"caches set aside": format_bytes(3000)})


def test_a_cache_in_pages_takes_its_bytes_and_at_most_those_of_all_slots():
    page = 4 * 2 * 2 * 32 * 8
    found = described("explorer", rollout__cache_bytes=5 * page + 7)
    assert {parts["KV cache"] for parts, _ in found.on.values()} == {format_bytes(5 * page)}
    found = described("explorer", rollout__cache_bytes=99 * page)
    assert found.on["CPU"][0]["KV cache"] == format_bytes(6 * 2 * page)


def test_a_cache_that_cannot_hold_the_longest_sequence_is_refused():
    settings = settings_with(rollout__cache_bytes=100)
    with pytest.raises(
        ConfigError, match=r"rollout\.cache_bytes=100 hold 0 tokens .* at least 4096"
    ):
        wiring.load_task(settings)


@pytest.mark.gate
def test_older_versions_of_opponents_are_held_beside_the_policy_s():
    without = described("explorer", environment__name="nim")
    found = described(
        "explorer", environment__name="nim", environment__opponent="older(versions=3)"
    )
    own = PARAMETERS + 7 * 4 * 32  # The game's texts have seven characters that sums lack.
    assert found.apart == {"older versions": format_bytes(4 * own)}
    more = {"parameters of opponents": format_bytes(own)}
    assert found.held[0] == without.held[0] | more


@pytest.mark.gate
def test_an_evaluation_beside_rollouts_has_weights_and_a_cache_of_its_own():
    settings = {"sync__mode": "asynchronous", "rollout__slots": 32}
    without = described("explorer", **settings)
    every = settings | {"evaluation__every_steps": 5, "evaluation__waiting": 2}
    found = described("explorer", **every)
    assert found.held[0] == without.held[0] | {
        "parameters of an evaluation": format_bytes(PARAMETERS)
    }
    assert found.apart == {"parameters of evaluations that wait": format_bytes(2 * PARAMETERS)}
    few = described("explorer", **settings | {"rollout__slots": 8})
    own = found.on["CPU"][0]["KV cache of an evaluation"]
    assert own == few.on["CPU"][0]["KV cache"], "a quarter of the slots"
    by_trainer = described("explorer", **every, evaluation__by="trainer")
    assert by_trainer.held[0] == without.held[0]


@pytest.mark.gate
def test_a_served_engine_takes_no_memory_of_its_explorer():
    served = {
        "sync__mode": "asynchronous",
        "explorer__engine": "vllm:http://127.0.0.1:8000",
    }
    text = describe_explorer(settings_with(**served), wiring.load_task(settings_with(**served)))
    assert "beside vllm:http://127.0.0.1:8000, which generates in a memory of its own" in text
    assert "KV cache" not in text
    assert "nothing: " in text, "on chips it has its parameters alone"
    every = settings_with(**served, evaluation__every_steps=5)
    assert "KV cache of an evaluation" in describe_explorer(every, wiring.load_task(every))


@pytest.mark.gate
def test_adapters_alone_have_gradients_optimizer_state_and_a_reference():
    settings = {"model__lora__rank": 2, "algorithm__kl_coefficient": 0.001}
    trainer = described("trainer", **settings)
    assert_parts(
        trainer,
        parameters=PARAMETERS + ADAPTERS,
        optimizer=2 * ADAPTERS + 2 * 4,
        reference=ADAPTERS,
    )
    assert trainer.on["TPU"][0]["gradients"] == format_bytes(ADAPTERS)
    assert_parts(
        described("explorer", **settings),
        parameters=PARAMETERS,
        parameters_that_arrive=PARAMETERS,
        base=PARAMETERS,
        adapters=ADAPTERS,
    )


def activations(**fields: object) -> int:
    """Returns the bytes of activations of a step on CPUs."""
    settings = settings_with(**fields)
    step = step_estimate(settings, wiring.load_task(settings), "cpu")
    return step.made["activations"]


@pytest.mark.gate
def test_rematerialization_and_microbatches_save_activations():
    full = activations(model__remat="full")
    assert full < activations(model__remat="none") / 2
    deeper = activations(model__remat="full", model__num_layers=5)
    assert deeper - full == pytest.approx(4 * BLOCK_INPUT, rel=2e-2)
    half = activations(model__remat="full", trainer__microbatch_rows=3)
    assert half == pytest.approx(full / 2, rel=2e-2)


@pytest.mark.gate
def test_a_plan_says_what_other_policies_come_to():
    plain, full = (described("trainer", model__remat=policy) for policy in ("none", "full"))
    assert plain.held == full.held
    for platform in ("TPU", "GPU", "CPU"):
        assert plain.policies[platform]["full"] == full.on[platform][1]
        assert full.policies[platform]["none"] == plain.on[platform][1]
        assert size(full.on[platform][1]) <= size(plain.policies[platform]["dots_no_batch"])


BIG = {"model__path": str(Path(__file__).resolve().parents[1] / "data" / "models" / "qwen2")}


@pytest.mark.gate
def test_a_process_on_cpus_holds_more_than_its_devices_arrays():
    for role, program in (("explorer", EXPLORER_PROGRAM_BYTES), ("trainer", TRAINER_PROGRAM_BYTES)):
        found = described(role)
        parts, most = found.on["CPU"]
        assert parts["programs"] == format_bytes(program)
        assert size(most) > 0.99 * (program + size(found.held[1]))  # To three digits.


@pytest.mark.parametrize(
    ("mode", "transfer", "versions"),
    [
        ("asynchronous", "server", 1),
        ("asynchronous", "collective", 2),
        ("asynchronous", "checkpoint", 5),
        ("synchronous", "checkpoint", 2),
    ],
)
def test_versions_that_travel_take_what_their_transfer_does(mode, transfer, versions):
    process = on_cpus(sync__mode=mode, sync__transfer=transfer).process
    assert process == {
        "published versions": versions * PARAMETERS,
        "programs": TRAINER_PROGRAM_BYTES,
    }


def on_cpus(**fields: object) -> MemoryEstimate:
    """Returns the estimate of a trainer's process on CPUs."""
    settings = settings_with(**fields)
    return step_estimate(settings, wiring.load_task(settings), "cpu")


def test_a_process_on_cpus_has_all_its_arrays_in_one_memory():
    parts = ({"a": 1}, {"b": 2}, {"c": 10, "d": 20}, {"e": 100})
    assert MemoryEstimate(*parts).peak == 1 + 2 + 20
    assert MemoryEstimate(*parts, process={"programs": 1000}).peak == 1 + 2 + 20 + 100 + 1000


def test_a_process_on_cpus_has_the_arrays_of_all_its_devices():
    one, two = (
        on_cpus(trainer__mesh__data=2, trainer__processes=processes, sync__transfer="server")
        for processes in (2, 1)
    )
    arrays = sum(one.held.values()) + sum(one.made.values()) + one.temporary
    assert (
        two.process["its other devices"]
        == sum(two.held.values()) + sum(two.made.values()) + two.temporary
    )
    assert "its other devices" not in one.process
    # A process of two has half of each version, and the other one has the other half.
    assert one.process["published versions"] == two.process["published versions"] // 2
    assert two.peak - one.peak == pytest.approx(arrays, rel=0.2)


def test_exact_centering_counts_the_distributions_that_the_trainer_computes():
    fields = {"sync__mode": "asynchronous", "algorithm__score_centering": "exact"}
    scored = on_cpus(**fields, rollout__score="trainer").made["distributions of tokens"]
    # Six groups of two, in rows of 10 tokens, of a vocabulary of 15.
    assert scored == 4 * (4 * 12 * 10 * 15)
    # The explorer's are in the batch.
    assert "distributions of tokens" not in on_cpus(**fields).made


@pytest.mark.nightly
@pytest.mark.parametrize("centers", [False, True])
def test_a_step_on_cpus_takes_what_its_compiled_program_does(centers: bool, tmp_path: Path):
    config = base.get_config()
    config.workdir, config.sft.steps = "/nowhere", 0
    config.model.update({"embed_dim": 128, "num_layers": 8, "mlp_dim": 512, "remat": "full"})
    config.trainer.update({"groups_per_step": 4, "group_size": 4})
    if centers:  # A vocabulary of 8,000 characters.
        rows = [{"prompt": "".join(map(chr, range(n, n + 16)))} for n in range(0x4E00, 0x6D40, 16)]
        path = tmp_path / "rows.jsonl"
        path.write_text("\n".join(json.dumps({**row, "answer": row["prompt"][:2]}) for row in rows))
        config.task.update({"name": "jsonl", "max_completion_tokens": 16})
        config.task.jsonl.path = str(path)
        config.trainer.logits_bytes = 1 << 20
        config.sync.mode, config.rollout.score = "asynchronous", "trainer"
        config.algorithm.update({"name": "grpo", "score_centering": "exact"})
    settings = read_settings(config.to_dict())
    task = wiring.load_task(settings)
    layout = layout_on(settings, "trainer", jax.devices()[:1])
    compiled = train_step(settings, task, layout).lower().compile()
    step = step_estimate(settings, task, "cpu")
    without = [of for name, of in step.work.items() if name != "a snapshot"]
    taken = compiled.memory_analysis().temp_size_in_bytes
    assert sum(step.made.values()) + max(without) == pytest.approx(
        taken, rel=0.2 if centers else 0.15
    )


def test_a_snapshot_may_take_more_than_a_step():
    fields = {"sync__mode": "asynchronous", "sync__transfer": "server"}
    offloading = {**fields, "trainer__offload_optimizer": True}
    for step in (on_cpus(**fields), on_cpus(**offloading)):
        # Parameters and both moments, half of them twice; no version is in transfer then.
        saving = 1.5 * (3 * PARAMETERS + 8)
        arrays = sum(step.made.values()) + step.work["a snapshot"]
        assert arrays + step.process["published versions"] == saving
    few = on_cpus(**fields, trainer__microbatch_rows=1, model__remat="full")
    assert few.temporary == few.work["a snapshot"] > few.work["the logits"]


def test_weights_that_arrive_are_no_array_of_an_explorer_yet():
    settings = settings_with(sync__transfer="checkpoint")
    task = wiring.load_task(settings)
    assert explorer_estimate(settings, task, "cpu").work["weights that arrive"] == PARAMETERS
    assert "weights that arrive" not in explorer_estimate(settings, task, "gpu").work


@pytest.mark.nightly
def test_sampling_takes_as_much_as_the_compiled_program_does():
    settings = settings_with(**BIG, rollout__slots=64)
    task = wiring.load_task(settings)
    model = dataclasses.replace(wiring.explorer_model(settings, task), vocab_size=20_000)
    slots = jax.eval_shape(lambda: core.empty_slots(model, 64, model.max_length, 4))
    compiled = core.decode_chunk.lower(
        model,
        param_shapes(model),
        slots,
        jax.ShapeDtypeStruct((64,), bool),
        jax.ShapeDtypeStruct((), np.int32),
        jax.ShapeDtypeStruct((32,), np.int32),
        core.ChunkProgram(model.max_length, chunk_tokens=16),
    ).compile()
    taken = compiled.memory_analysis().temp_size_in_bytes
    assert SAMPLING_ARRAYS["cpu"] * 4 * 64 * model.vocab_size == pytest.approx(taken, rel=0.2)
