"""A run's settings make its task, its models and its trainer."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path

import pytest

from rl_sync.configs import gsm8k, jsonl, vqa
from rl_sync.roles.assembly import engines, wiring
from rl_sync.roles.assembly.build import trainer_of
from rl_sync.roles.explorer.episode_wiring import check_environment
from rl_sync.sandbox import sandbox_choice
from rl_sync.settings.config_reading import read_settings
from rl_sync.settings.records import ConfigError
from rl_sync.token_records import SamplerShape
from tests.environments.families import family
from tests.models.meshes import layout
from tests.odd_images import drawn
from tests.runs import tiny
from tests.settings.changed import config_with, settings_with
from tests.tasks.pictures.seeing import seeing_gemma3

CHECKPOINTS = Path(__file__).resolve().parents[2] / "data" / "models"


def _trainer(**fields):
    settings = read_settings(config_with(tiny.get_config(), **fields))
    return settings, trainer_of(settings, wiring.load_task(settings), layout())


def test_the_trainer_has_a_critic_where_its_algorithm_needs_values_and_offloads_as_it_is_told():
    settings, trainer = _trainer(algorithm__name="ppo", trainer__offload_optimizer=True)
    assert trainer.critic == settings.critic
    assert (trainer.offload_reference, trainer.offload_optimizer) == (False, True)
    _, trainer = _trainer(trainer__offload_reference=True)
    assert trainer.critic is None
    assert (trainer.offload_reference, trainer.offload_optimizer) == (True, False)


SHAPED = "exact + 0.1 * length_band(greatest=4) - 0.2 * repetition"


@pytest.mark.samples(f"{SHAPED}-outcome-outcome3-filtered3")
@pytest.mark.parametrize(
    ("reward", "chosen", "outcome", "filtered"),
    [
        ("exact", "", (), ()),
        ("exact", "exact", (), ()),
        (SHAPED, "", (1.0, 0.0, 0.0), ()),
        (SHAPED, "outcome", (1.0, 0.0, 0.0), (1.0, 0.0, 0.0)),
        (SHAPED, "exact,repetition", (1.0, 0.0, -0.2), (1.0, 0.0, -0.2)),
        ("exact + 2 * math", "", (), ()),
        ("exact + 2 * math", "outcome", (), ()),
        ("exact + 2 * math", "math", (0.0, 2.0), (0.0, 2.0)),
        ("0.1 * length_band + repetition", "", (), ()),
    ],
)
def test_groups_are_filtered_by_the_named_parts_of_the_reward(reward, chosen, outcome, filtered):
    settings, trainer = _trainer(task__reward=reward, algorithm__filter=chosen)
    assert trainer.loss.outcome_weights == outcome
    task = wiring.load_task(settings)
    assert wiring.filter_weights(settings, task) == filtered
    parts = wiring.batching_of(settings, task).largest().parts
    weights = {"exact": (), SHAPED: (1.0, 0.1, -0.2), "exact + 2 * math": (1.0, 2.0)}
    assert trainer.loss.part_weights == weights.get(reward, (0.1, 1.0))
    count = len(trainer.loss.part_weights)
    assert (parts is None) == (count == 0)
    assert parts is None or parts.shape[1] == count


@pytest.mark.parametrize(
    ("reward", "chosen", "message"),
    [
        (SHAPED, "exakt", "the part='exakt' is not one of outcome, exact, length_band, repetition"),
        ("exact", "format", "with task.reward=exact: the part='format' is not one of outcome,"),
        ("length_band + repetition", "outcome", "names nothing that makes a difference"),
        ("0 * exact + repetition", "exact", "are 0 * exact, 1 * repetition"),
    ],
)
def test_a_filter_by_a_part_that_no_reward_has_is_refused(reward, chosen, message):
    settings = settings_with(task__reward=reward, algorithm__filter=chosen)
    with pytest.raises(ConfigError, match=re.escape(message)):
        wiring.load_task(settings)


def test_the_users_own_file_without_a_path_is_refused():
    settings = read_settings(config_with(jsonl.get_config()))
    with pytest.raises(ConfigError, match=r"task.jsonl.path is not set"):
        wiring.load_task(settings)


def test_sft_needs_demonstrations_and_a_run_without_one_does_not(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [{"prompt": f"write f{i}", "test": f"assert f{i}()"} for i in range(20)]
    path.write_text("\n".join(map(json.dumps, rows)))
    fields = {
        "task__name": "dataset",
        "task__dataset__format": "code",
        "task__dataset__path": str(path),
        "task__max_completion_tokens": 32,
    }
    with pytest.raises(
        ConfigError,
        match=r"sft.steps=400, but .* use sft.steps=0 .* 18 of 18 .* nothing to imitate",
    ):
        wiring.load_task(settings_with(**fields, sft__steps=400))
    experts = {"algorithm__demonstration_rows": 8, "algorithm__demonstration_coefficient": 0.1}
    with pytest.raises(
        ConfigError, match=r"demonstration_rows=8, but .* use algorithm.demonstration_rows=0"
    ):
        wiring.load_task(settings_with(**fields, **experts, sft__steps=0))
    with pytest.raises(ConfigError, match=r"name=sft trains on demonstrations, but the task has"):
        wiring.load_task(settings_with(**fields, algorithm__name="sft", sft__steps=0))
    task = wiring.load_task(settings_with(sft__steps=0, **fields))
    assert (len(task.train), len(task.demonstrations)) == (18, 0)


def test_the_gsm8k_run_asks_in_the_chat_template_for_the_number_alone(tmp_path):
    path = tmp_path / "train.jsonl"
    rows = [{"question": f"3 x {i}?", "answer": f"So:\n#### {3 * i}"} for i in range(20)]
    path.write_text("\n".join(map(json.dumps, rows)))
    fields = {"task__dataset__path": str(path), "tokenizer__path": "tests/data/tokenizer"}
    task = wiring.load_task(read_settings(config_with(gsm8k.get_config(), **fields)))
    asked = task.train[0]
    assert asked.text == "3 x 0?\n\nAnswer with the number alone."
    assert asked.answer == "0"
    tokens, lengths = task.encode_prompts([asked.text])
    assert task.tokenizer.decode(tokens[0, : lengths[0]].tolist()).endswith("assistant: ")


def _vqa(tmp_path, **fields):
    """Reads the settings of configs/vqa.py with a file of questions about one image."""
    drawn(20, 16).save(tmp_path / "one.png")
    rows = [
        {"prompt": f"{i}?", "answer": str(i), "kind": "count", "images": "one.png"}
        for i in range(10)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    fields = {"task__dataset__path": str(tmp_path / "rows.jsonl")} | fields
    return read_settings(config_with(vqa.get_config(), **fields))


def test_the_run_on_questions_about_images_trains_adapters_and_has_images_of_its_checkpoint(
    tmp_path,
):
    lengths = {"task__max_prompt_tokens": 58, "task__max_completion_tokens": 6}
    path = seeing_gemma3(tmp_path / "model")
    settings = _vqa(tmp_path, model__path=path, **lengths)
    task = wiring.load_task(settings)
    (asked,) = task.asked(task.train[:1])
    assert (asked.ids == 60).sum() == task.processor.tile_tokens == 4
    assert not settings.model.trains_tower
    batch = wiring.batching_of(settings, task).largest()
    # A microbatch is a group, with one tile; its features in bfloat16 are smaller than its pixels.
    assert settings.trainer.microbatch_rows == settings.trainer.group_size
    images = batch.rows.images
    assert images.tiles.shape == (settings.trainer.groups_per_step, 4, 24)
    assert images.tiles.dtype == "bfloat16"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, r"policy reads text alone: .* checkpoint with vision .*model.path=DIRECTORY"),
        ({"task__dataset__path": None}, r"task.dataset.path is not set"),
        (
            {"model__path": str(CHECKPOINTS / "gemma3")},
            r"gemma3' reads text alone: use a checkpoint",
        ),
    ],
)
def test_the_run_on_questions_about_images_without_a_checkpoint_or_rows_is_refused(
    fields, message, tmp_path
):
    with pytest.raises(ConfigError, match=message):
        wiring.load_task(_vqa(tmp_path, **fields))


@pytest.mark.gate
def test_a_model_from_a_checkpoint_has_its_sizes_and_our_way_to_compute():
    path = str(CHECKPOINTS / "qwen2")
    settings = settings_with(model__path=path, model__embed_dim=7, model__dtype="bfloat16")
    task = wiring.load_task(settings)
    model = wiring.model_config(settings, task)
    assert (model.vocab_size, model.embed_dim, model.qkv_bias) == (96, 32, True)
    assert (model.max_length, model.dtype) == (task.row_tokens, "bfloat16")


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"vocab_size": 5}, ["tokens, but the model", "knows 5"]),
        ({"max_position_embeddings": 4}, ["at most 4 (max_position_embeddings)", "shorten"]),
        ({"rope_scaling": {"type": "yarn"}}, ["config.model.path=", "rope_type='yarn'"]),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(changes, parts, tmp_path):
    values = json.loads((CHECKPOINTS / "qwen2" / "config.json").read_text())
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(CHECKPOINTS / "qwen2" / name, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**values, **changes}))
    with pytest.raises(ConfigError) as refused:
        wiring.load_task(settings_with(model__path=str(tmp_path)))
    for part in parts:
        assert part in str(refused.value)


def test_completions_cannot_have_to_be_longer_than_the_task_s():
    settings = settings_with(rollout__min_new_tokens=1000)
    with pytest.raises(ConfigError, match="min_new_tokens=1000 must be from 0 to max_new_tokens="):
        wiring.load_task(settings)


def test_the_roles_compute_in_dtypes_of_their_own():
    settings = settings_with(trainer__compute_dtype="bfloat16", explorer__dtype="float16")
    task = wiring.load_task(settings)
    assert wiring.model_config(settings, task).dtype == "float32"
    assert wiring.trainer_model(settings, task).dtype == "bfloat16"
    assert wiring.explorer_model(settings, task).dtype == "float16"


def test_packed_rows_come_in_multiples_of_the_parts_that_a_mesh_cuts_them_into():
    mode = {"sync__mode": "asynchronous", "trainer__batching": "packed"}
    assert wiring.batching(settings_with(**mode), 10).microbatch_rows == 0
    on_mesh = settings_with(**mode, trainer__mesh__data=2, trainer__mesh__fsdp=2)
    made = wiring.batching(on_mesh, 10)
    assert (made.microbatch_rows, made.row_shards) == (0, 4)
    in_parts = settings_with(**mode, trainer__mesh__fsdp=2, trainer__microbatch_rows=16)
    assert wiring.batching(in_parts, 10).microbatch_rows == 16


@pytest.mark.gate
@pytest.mark.parametrize(
    ("fields", "beside", "in_parts"),
    [
        ({}, True, False),
        ({"algorithm__name": "dapo"}, False, False),
        ({"task__reward": "exact + 0.1 * format(pattern='.')"}, True, True),
        ({"reward__addresses": "somewhere:1", "reward__secret_path": "secret"}, True, True),
        ({"task__reward": "math", "sync__mode": "synchronous"}, True, True),
        ({"task__reward": "math", "algorithm__name": "dapo"}, False, False),
        ({"sync__mode": "asynchronous"}, True, False),
        ({"sync__mode": "asynchronous", "rollout__streaming": True}, True, True),
    ],
)
def test_explorers_generate_while_others_judge_and_deliver_rollouts_of_a_quick_reward_whole(
    fields, beside, in_parts
):
    fields = {"sync__mode": "one_step_off_policy", **fields}
    settings = read_settings(config_with(tiny.get_config(), **fields))
    task = wiring.load_task(settings)
    assert wiring.delivers_beside(settings) is beside
    assert wiring.delivers_in_parts(settings, task) is in_parts


def test_rollouts_that_a_budget_or_new_weights_divide_are_delivered_at_their_end():
    fields = {"sync__mode": "asynchronous", "task__reward": "math"}
    for divided in ({"rollout__budget_tokens": 9}, {"rollout__swap": "in_flight"}):
        settings = read_settings(config_with(tiny.get_config(), **fields, **divided))
        task = wiring.load_task(settings)
        assert wiring.delivers_beside(settings)
        assert not wiring.delivers_in_parts(settings, task)


@pytest.mark.parametrize(("context", "row_tokens"), [(1, 10), (4, 16), (5, 10)])
def test_rows_are_as_long_as_the_devices_with_their_positions_can_cut(context, row_tokens):
    settings = settings_with(trainer__mesh__context=context)
    assert wiring.batching(settings, 10).row_tokens == row_tokens


def test_stop_ids_end_completions_and_their_text_is_left_out():
    settings = settings_with(rollout__stop_ids="5, 4")
    task = wiring.load_task(settings)
    assert wiring.sampling(settings, task).stop_ids == (1, 5, 4)
    assert task.tokenizer.decode([6, 7, 4]) == task.tokenizer.decode([6, 7])


def test_batches_say_what_was_cut_where_stop_strings_end_completions():
    assert not wiring.batching(settings_with(), 10).with_truncated
    assert wiring.batching(settings_with(rollout__stop_strings="###"), 10).with_truncated


def test_rows_of_shared_prompts_have_room_for_a_trajectory():
    shared = {"trainer__batching": "shared"}
    assert wiring.batching(settings_with(**shared), 10).shared_row_tokens == 512
    assert wiring.batching(settings_with(**shared), 300).shared_row_tokens == 600
    narrow = settings_with(**shared, trainer__shared_row_tokens=100)
    assert wiring.batching(narrow, 100).shared_row_tokens == 100
    with pytest.raises(ConfigError, match=r"shared_row_tokens=100 has no room .* 101 tokens"):
        wiring.batching(narrow, 101)


def test_explorers_record_distributions_where_the_score_is_centered():
    task = wiring.load_task(settings_with())
    size = wiring.model_config(settings_with(), task).vocab_size

    def shape(mode, **fields):
        return wiring.sampler_shape(settings_with(algorithm__score_centering=mode, **fields), task)

    assert shape("off") is None
    assert shape("exact") == SamplerShape(size)
    assert shape("exact", rollout__score="trainer") is None
    assert shape("topk", algorithm__centering_tokens=3) == SamplerShape(size, 3)
    with pytest.raises(ConfigError, match=f"centering_tokens={size} must be fewer than .*{size}"):
        shape("topk", algorithm__centering_tokens=size)


def test_a_large_vocabulary_is_not_recorded_whole_as_the_launcher_says(monkeypatch):
    monkeypatch.setattr(wiring, "MOST_RECORDED", 8)
    settings = settings_with(algorithm__score_centering="exact")
    with pytest.raises(ConfigError, match=r"score_centering=exact would record all .*=topk, or"):
        wiring.load_task(settings)


def test_an_explorer_s_engine_sets_caches_aside_within_the_bound_of_the_run(monkeypatch):
    monkeypatch.setattr(engines, "Engine", lambda config, layout, options: options)
    settings = settings_with(environment__kv_offload_bytes=1 << 20)
    options = engines.rollout_engine(settings, wiring.load_task(settings), layout())
    assert options.kv_offload_bytes == 1 << 20


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"model__attention": "cudnn"}, "cudnn computes in bfloat16 or float16"),
        (
            {
                "model__attention": "cudnn",
                "model__dtype": "bfloat16",
                "trainer__batching": "packed",
            },
            "rows of one sequence each",
        ),
        ({"model__attention": "splash", "trainer__batching": "shared"}, "sequences share"),
    ],
)
def test_a_kernel_of_attention_that_cannot_express_the_rows_is_refused(fields, says):
    settings = read_settings(config_with(tiny.get_config(), **fields))
    with pytest.raises(ConfigError, match=rf"{says}.*: use model.attention=auto"):
        wiring.load_task(settings)


@pytest.mark.parametrize("kind", ["jsonl", "dataset", "own"])
def test_rows_need_no_answer_where_the_environment_judges(tmp_path, kind):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a board"}\n{"prompt": "a second board"}\n')
    (tmp_path / "rows.py").write_text("def rows():\n    return [{'prompt': x} for x in 'ab']\n")
    fields: dict[str, object] = {"task__name": kind, "task__max_completion_tokens": 4}
    if kind == "own":
        fields |= {"task__name": f"{tmp_path}/rows.py:rows"}
        fields |= {"task__dataset__held_out_fraction": 0.5}
    else:
        fields |= {f"task__{kind}__path": str(tmp_path / "rows.jsonl")}
        fields |= {f"task__{kind}__held_out_fraction": 0.5}
    fields |= {"sft__steps": 0}
    task = wiring.load_task(settings_with(environment__name="guess", **fields))
    assert (task.reward, task.train[0].answer) == ("environment", "")
    for others in (
        {"environment__name": "python"},  # It gives no rewards, so the task's own reward judges.
        {"environment__name": "guess", "task__reward": "environment + 0.1 * exact"},
        {},
    ):
        with pytest.raises(ConfigError, match=r"'answer' is missing"):
            wiring.load_task(settings_with(**fields, **others))


@pytest.mark.gate
def test_the_tasks_reward_judges_where_the_environment_gives_no_rewards():
    for name, reward in (("python(seconds=2)", "exact"), ("calculator", "environment")):
        assert wiring.load_task(settings_with(environment__name=name)).reward == reward


@pytest.mark.gate
def test_tools_need_a_chat_template_with_a_form_of_calls():
    def check(tokenizer, **fields):
        settings = settings_with(environment__name="python", **fields)
        task = wiring.load_task(settings)
        if tokenizer is not None:
            task = dataclasses.replace(task, tokenizer=tokenizer, max_prompt_tokens=64)
        check_environment(settings, task)

    with pytest.raises(ConfigError, match=r"name=python has tools, .* without a chat template"):
        check(None)
    with pytest.raises(ConfigError, match=r"calls=none reads no calls: .* qwen, llama, mistral"):
        check(family("chatml"), environment__calls="none")
    check(family("chatml"))
    settings = settings_with(environment__name="calculator")
    check_environment(settings, wiring.load_task(settings))


@pytest.mark.gate
def test_an_environment_without_its_sandbox_is_refused_before_the_run(monkeypatch):
    monkeypatch.setattr(sandbox_choice, "_choose", lambda kind: (None, "None is installed."))
    settings = settings_with(environment__name="python")
    with pytest.raises(ConfigError, match=r"name=python cannot run code: No sandbox .*bubblewrap"):
        check_environment(settings, wiring.load_task(settings))


@pytest.mark.parametrize(
    ("fields", "records"),
    [
        ({}, ""),
        ({"rollout__repetition_penalty": 1.3}, ""),
        ({"rollout__top_k": 3}, "masks"),
        ({"rollout__min_new_tokens": 2}, "masks"),
        ({"rollout__min_p": 0.1, "rollout__keep_sampling_mask": False}, "whole"),
    ],
)
def test_explorers_record_sets_of_tokens_where_tokens_are_excluded(fields, records):
    settings = settings_with(**fields)
    task = wiring.load_task(settings)
    changes = engines.rollout_changes(settings, task)
    assert [name for name in ("masks", "whole") if getattr(changes, name)] == [records] * bool(
        records
    )
    batching = wiring.batching_of(settings, task)
    assert batching.mask_words == (1 if records == "masks" else 0)
    trainer = trainer_of(settings, task, layout())
    assert trainer.repetition_penalty == settings.rollout.repetition_penalty


@pytest.mark.gate
def test_batches_have_roles_where_advantages_compare_them_and_a_set_is_one():
    mixed = {
        "task__name": "mixture",
        "task__mixture__sets": "arithmetic + arithmetic(least_operand=80, set='large')",
    }
    settings = settings_with(**mixed, algorithm__advantage="rae")
    task = wiring.load_task(settings)
    batching = wiring.batching_of(settings, task)
    sets = [{"arithmetic": 0, "large": 1}[prompt.row["task_set"]] for prompt in task.train]
    assert batching.sets == tuple(sets)
    assert {*sets} == {0, 1}
    assert batching.largest().roles.shape == (batching.trajectories,)
    plain = wiring.batching_of(settings_with(**mixed), task)
    assert (plain.sets, plain.largest().roles) == ((), None)
    alone = settings_with(algorithm__advantage="rae", environment__name="nim")
    task = wiring.load_task(settings_with())
    assert wiring.batching_of(alone, task).sets == (0,) * len(task.train)


def test_a_language_that_does_not_run_here_is_said_before_the_run(tmp_path, monkeypatch):
    from rl_sync.launcher.commands.plan import _judging
    from rl_sync.sandbox import languages

    absent = languages.ProgramLanguage("main.x", "", run=("no-such-command",))
    monkeypatch.setitem(languages.LANGUAGES, "x", absent)

    def task_in(*names):
        rows = [
            {
                "prompt": f"print {number}",
                "answer": str(number),
                "language": names[number % len(names)],
                "tests": [{"input": "", "output": str(number)}],
            }
            for number in range(40)
        ]
        path = tmp_path / f"{'-'.join(names)}.jsonl"
        path.write_text("\n".join(map(json.dumps, rows)))
        fields = {
            "task__name": "jsonl",
            "task__jsonl__path": str(path),
            "task__reward": "code",
            "task__max_completion_tokens": 32,
            "sft__steps": 0,
        }
        settings = settings_with(**fields)
        return settings, wiring.load_task(settings)

    assert wiring.try_reward(*task_in("bash")) == []
    mixed = task_in("bash", "x")
    (note,) = wiring.try_reward(*mixed)
    assert "x does not work in the sandbox" in note
    assert "(20 problems)" in note
    assert _judging(*mixed) == note
    none = task_in("x")
    with pytest.raises(ConfigError, match=r"can judge nothing on this machine: .*no-such-command"):
        wiring.try_reward(*none)
    assert "can judge nothing on this machine" in _judging(*none)
    elsewhere = dataclasses.replace(none[0].reward, addresses="judge:1")
    assert wiring.try_reward(dataclasses.replace(none[0], reward=elsewhere), none[1]) == []


@pytest.mark.gate
def test_environments_that_show_images_need_a_policy_that_sees():
    lake: dict[str, object] = {"environment__name": "frozen_lake", "sft__steps": 0}
    with pytest.raises(ConfigError, match=r"environment.name=frozen_lake shows images.*image_size"):
        wiring.load_task(settings_with(**lake))
    task = wiring.load_task(settings_with(**lake, model__vision__image_size=16))
    assert task.processor.tile_size == 16
    assert task.tokenizer.shows_images
    blind = {**lake, "environment__name": "guess", "model__vision__image_size": 16}
    with pytest.raises(ConfigError, match=r"no images, and the class of environment.name=guess"):
        wiring.load_task(settings_with(**blind))


def test_images_of_rows_need_an_environment_that_shows_some():
    fields: dict[str, object] = {"task__name": "board", "model__vision__image_size": 16}
    fields |= {"task__board__problems": 40}
    fields |= {"task__board__held_out_problems": 20}
    fields |= {"environment__max_tokens": 96, "sft__steps": 0, "task__max_completion_tokens": 8}
    with pytest.raises(ConfigError, match=r"task.name=board asks .* whose class says shows_images"):
        wiring.load_task(settings_with(**fields, environment__name="guess"))
    task = wiring.load_task(settings_with(**fields, environment__name="frozen_lake"))
    assert task.processor is not None
