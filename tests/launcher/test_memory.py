"""The memory that `plan` prints, against figures worked out by hand for a tiny model."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import jax
import numpy as np
import pytest
from launcher.memory import describe_memory, format_bytes
from launcher.resident import (
    EXPLORER_PROGRAM_BYTES,
    SAMPLING_ARRAYS,
    TRAINER_PROGRAM_BYTES,
    trainer,
)

from rl_sync.models import memory
from rl_sync.rollout import slots as core
from rl_sync.runtime import wiring
from rl_sync.settings.reading import read_settings
from rl_sync.settings.run import RunSettings
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


def described(**fields: object) -> dict[str, dict[str, str]]:
    """Returns each part's size for each role, as it is printed."""
    settings = settings_with(**fields)
    return parts_of(describe_memory(settings, wiring.load_task(settings)))


def parts_of(text: str) -> dict[str, dict[str, str]]:
    """Parses the sizes by role and part, the last one as `total`, and those of other policies."""
    found = {}
    _, _, memory = text.partition("Memory per device")
    for role, line in re.findall(r"^  (\w+) +(parameters.*(?:\n {13}.*)*)$", memory, re.M):
        parts = re.findall(r"(?:^|[,;:] )([A-Za-z_ ]+) (\d[\d.]* (?:bytes|[kM]B))", line)
        total = re.search(r": (\d[\d.]* [kM]B)$", line, re.M)
        found[role] = {**dict(parts), "total": total[1]}
    return found


def size(text: str) -> float:
    """Parses the bytes that `format_bytes` printed."""
    number, unit = text.split()
    return float(number) * {"bytes": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}[unit]


def assert_parts(found: dict[str, str], **expected: int) -> None:
    """Asserts that the parts are these, and that with activations they sum to the total.

    Numbers are compared with the precision in which they are printed.
    """
    for name, count in expected.items():
        assert found[name.replace("_", " ")] == format_bytes(count), name
    activations = size(found.get("activations", "0 bytes"))
    assert size(found["total"]) == pytest.approx(sum(expected.values()) + activations, rel=6e-3)


def test_plan_prints_figures_that_add_up():
    penalty = "--config.algorithm.kl_coefficient=0.001"
    done = launcher("plan", "--config=tests/runs/tiny.py", "--config.workdir=none", penalty)
    assert done.returncode == 0, done.stderr
    found = parts_of(done.stdout)
    assert_parts(
        found["trainer"],
        parameters=PARAMETERS,
        optimizer=2 * PARAMETERS + 2 * 4,  # Adam's two moments, its count and the schedule's.
        gradients=PARAMETERS,
        reference=PARAMETERS,
    )
    assert_parts(
        found["explorer"],
        parameters=PARAMETERS,
        parameters_that_arrive=PARAMETERS,
        KV_cache=CACHE,
    )
    assert "for 6 rows of 10 tokens" in done.stdout  # 12 trajectories in two updates.
    assert "for 12 slots of 10 tokens" in done.stdout


def test_without_a_penalty_there_is_no_reference():
    assert "reference" not in described(algorithm__kl_coefficient=0.0)["trainer"]


def test_a_critic_of_its_own_doubles_what_learns_and_a_head_adds_next_to_nothing():
    head = 4 * (32 + 1)
    policy = {
        "parameters": PARAMETERS,
        "optimizer": 2 * PARAMETERS + 2 * 4,
        "gradients": PARAMETERS,
        "reference": PARAMETERS,
    }
    ppo = {"algorithm__name": "ppo", "algorithm__kl_coefficient": 0.1}
    own, shared = (described(**ppo, critic__model=model)["trainer"] for model in ("own", "head"))
    assert_parts(
        own,
        **policy,
        critic=2 * (PARAMETERS + head),
        critic_optimizer=2 * (PARAMETERS + head) + 2 * 4,
    )
    assert_parts(shared, **policy, critic=2 * head, critic_optimizer=2 * head + 2 * 4)
    assert 1.5 < size(own["activations"]) / size(shared["activations"]) < 2


def test_what_is_offloaded_is_apart_from_what_the_device_holds():
    offloaded = {"trainer__offload_reference": True, "trainer__offload_optimizer": True}
    found = described(algorithm__kl_coefficient=0.1, **offloaded)["trainer"]
    assert_parts(found, parameters=PARAMETERS, gradients=PARAMETERS)
    assert found["reference"] == format_bytes(PARAMETERS)
    assert found["optimizer"] == format_bytes(2 * PARAMETERS + 2 * 4)


def test_caches_set_aside_are_apart_from_what_the_device_holds():
    without = described(environment__name="guess")["explorer"]
    found = described(environment__name="guess", environment__aside_bytes=3000)["explorer"]
    assert found == {**without, "caches set aside": format_bytes(3000)}


def test_adapters_alone_have_gradients_optimizer_state_and_a_reference():
    found = described(model__lora__rank=2, algorithm__kl_coefficient=0.001)
    assert_parts(
        found["trainer"],
        parameters=PARAMETERS + ADAPTERS,
        optimizer=2 * ADAPTERS + 2 * 4,
        gradients=ADAPTERS,
        reference=ADAPTERS,
    )
    assert_parts(
        found["explorer"],
        parameters=PARAMETERS,
        parameters_that_arrive=PARAMETERS,
        base=PARAMETERS,
        adapters=ADAPTERS,
        KV_cache=CACHE,
    )


def test_rematerialization_and_microbatches_save_activations_and_nothing_else():
    plain, full = (described(model__remat=policy)["trainer"] for policy in ("none", "full"))
    assert (plain["full"], full["none"]) == (full["activations"], plain["activations"])
    assert size(full["activations"]) < size(plain["dots_no_batch"]) < size(plain["activations"]) / 2
    saved = size(plain["activations"]) - size(full["activations"])
    assert size(plain["total"]) - size(full["total"]) == pytest.approx(saved, rel=1e-2)
    deeper = described(model__remat="full", model__num_layers=5)["trainer"]
    more = size(deeper["activations"]) - size(full["activations"])
    assert more == pytest.approx(4 * BLOCK_INPUT, rel=2e-2)
    half = described(model__remat="full", trainer__microbatch_rows=3)["trainer"]
    assert size(half["activations"]) == pytest.approx(size(full["activations"]) / 2, rel=2e-2)


def resident(role: str, **fields: object) -> float:
    """Parses the bytes that a role's process has on CPUs according to the plan."""
    settings = settings_with(**fields)
    _, _, lines = describe_memory(settings, wiring.load_task(settings)).partition(f"\n  {role} ")
    return size(re.findall(r"about (\d[\d.]* [kMG]B) resident", lines)[0])


BIG = {"model__path": str(Path(__file__).resolve().parents[1] / "data" / "models" / "qwen2")}


def test_a_process_on_cpus_holds_more_than_its_devices_arrays():
    found = described()
    least = {role: size(found[role]["total"]) for role in ("trainer", "explorer")}
    printed = 0.99  # To three digits.
    assert resident("explorer") > printed * (EXPLORER_PROGRAM_BYTES + least["explorer"])
    assert resident("trainer") > printed * (TRAINER_PROGRAM_BYTES + least["trainer"])


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
    settings = settings_with(sync__mode=mode, sync__transfer=transfer)
    task = wiring.load_task(settings)
    process = trainer(settings, task, rows=(1, task.row_tokens), state=0, step=0)
    assert process.weights == versions * PARAMETERS


def test_a_snapshot_may_take_more_than_a_step():
    settings = settings_with(sync__mode="asynchronous", sync__transfer="server")
    task = wiring.load_task(settings)
    stepping = trainer(
        settings, task, rows=(1, task.row_tokens), state=PARAMETERS, step=5 * PARAMETERS
    )
    saving = trainer(
        settings, task, rows=(1, task.row_tokens), state=4 * PARAMETERS, step=2 * PARAMETERS
    )
    assert stepping.weights + stepping.work == 6 * PARAMETERS
    assert saving.weights + saving.work == 6 * PARAMETERS


def test_sampling_takes_as_much_as_the_compiled_program_does():
    settings = settings_with(**BIG, rollout__slots=64)
    task = wiring.load_task(settings)
    model = dataclasses.replace(wiring.explorer_model(settings, task), vocab_size=20_000)
    slots = jax.eval_shape(lambda: core.empty_slots(model, 64, model.max_length, 4))
    compiled = core.decode_chunk.lower(
        model,
        memory.param_shapes(model),
        slots,
        jax.ShapeDtypeStruct((64,), bool),
        jax.ShapeDtypeStruct((), np.int32),
        jax.ShapeDtypeStruct((32,), np.int32),
        span=model.max_length,
        chunk_tokens=16,
    ).compile()
    taken = compiled.memory_analysis().temp_size_in_bytes
    assert SAMPLING_ARRAYS * 4 * 64 * model.vocab_size == pytest.approx(taken, rel=0.2)
