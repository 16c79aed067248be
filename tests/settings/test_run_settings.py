"""Configs become settings, or one clear message."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from rl_sync.algorithms.algorithm import ALGORITHMS
from rl_sync.algorithms.screening import UNBOUNDED, Screening
from rl_sync.configs import base
from rl_sync.models.config import Lora
from rl_sync.roles.assembly import wiring
from rl_sync.roles.assembly.replay_tables import replay_tables
from rl_sync.settings.config_reading import read_settings
from rl_sync.settings.model_settings import ModelSettings
from rl_sync.settings.records import ConfigError
from rl_sync.tasks.curriculum import PromptPool
from rl_sync.workdir import Workdir
from tests.settings.changed import config_with, settings_with

DATA = Path(__file__).resolve().parents[1] / "data"


def test_unknown_missing_and_mistyped_settings_are_named():
    config = config_with(base.get_config())
    with pytest.raises(
        ConfigError, match=r"config.trainer.stepz.*did you mean config.trainer.steps"
    ):
        read_settings({**config, "trainer": {**config["trainer"], "stepz": 3}})
    with pytest.raises(ConfigError, match="config lacks seed"):
        read_settings({name: v for name, v in config.items() if name != "seed"})
    with pytest.raises(ConfigError, match=r"config.seed='0' must be int, not str"):
        read_settings({**config, "seed": "0"})
    with pytest.raises(ConfigError, match=r"config.model must be a section"):
        read_settings({**config, "model": 3})


@pytest.mark.parametrize("transfer", ["checkpoint", "server"])
def test_meshes_and_swaps_in_flight_go_with_transfers_between_independent_programs(transfer):
    settings = settings_with(
        sync__mode="asynchronous",
        sync__transfer=transfer,
        rollout__swap="in_flight",
        trainer__mesh__fsdp=2,
    )
    assert settings.transfer == transfer


@pytest.mark.parametrize(
    ("mode", "explorers", "transfer"),
    [
        ("synchronous", 1, "collective"),
        ("one_step_off_policy", 1, "collective"),
        ("asynchronous", 1, "checkpoint"),
        ("multi_explorer", 2, "checkpoint"),
        ("custom", 1, "collective"),
    ],
)
def test_modes_bring_their_own_explorers_and_transfer(mode, explorers, transfer):
    settings = settings_with(sync__mode=mode)
    assert (settings.explorers, settings.transfer) == (explorers, transfer)
    assert settings.roles[-1] == "trainer"
    assert settings.groups_per_lease * explorers >= settings.trainer.groups_per_step


@pytest.mark.parametrize(
    "fields",
    [{"sync__mode": mode} for mode in ("synchronous", "one_step_off_policy", "asynchronous")]
    + [{"sync__mode": "custom", "sync__interval": 2, "sync__offset": 3}]
    + [{"sync__mode": "multi_explorer", "sync__interval": 2, "explorer__count": 3}]
    + [{"algorithm__name": "sft"}],
)
def test_a_resolved_config_says_everything_and_makes_the_same_run(fields):
    settings = settings_with(**fields)
    resolved = settings.resolved()
    unsaid = [name for name, value in resolved["sync"].items() if value is None]
    assert unsaid == ["directory"]  # The work directory, which runs differ in.
    unsaid = [name for name, value in resolved["explorer"].items() if value is None]
    assert unsaid == ["engine_directory"]
    assert None not in resolved["algorithm"].values()
    again = read_settings(resolved)
    assert again.schedule == settings.schedule
    assert again.resolved() == resolved


def test_the_algorithm_is_the_one_that_bears_the_staleness_unless_it_is_named():
    for mode, name in (
        ("synchronous", "grpo"),
        ("one_step_off_policy", "decoupled_ppo"),
        ("asynchronous", "decoupled_ppo"),
    ):
        assert settings_with(sync__mode=mode).algorithm == ALGORITHMS[name]
    assert settings_with(algorithm__name="cispo").algorithm == ALGORITHMS["cispo"]


def test_a_setting_of_the_algorithm_changes_it_alone():
    changed = settings_with(algorithm__name="dapo", algorithm__clip_high=0.5).algorithm
    assert changed == dataclasses.replace(ALGORITHMS["dapo"], clip_high=0.5)


@pytest.mark.parametrize(
    ("fields", "attempts"),
    [
        ({}, 1),
        ({"algorithm__filter_zero_variance": True}, 10),
        ({"algorithm__group_mean_high": 0.9}, 10),
        ({"algorithm__filter": "outcome"}, 10),
        ({"algorithm__filter_zero_variance": True, "algorithm__max_attempts": 1}, 1),
        ({"algorithm__filter_zero_variance": True, "algorithm__max_attempts": 3}, 3),
    ],
)
def test_who_says_which_groups_teach_nothing_has_them_replaced(fields, attempts):
    assert settings_with(**fields).algorithm.screening.max_attempts == attempts


def test_an_algorithm_that_does_not_bear_staleness_runs_without_any_or_by_force():
    assert settings_with(sync__mode="synchronous", algorithm__name="rloo").algorithm.name == "rloo"
    forced = settings_with(algorithm__name="rloo", algorithm__allow_unsafe=True)
    assert forced.algorithm.loss == "reinforce"
    corrected = settings_with(algorithm__name="rloo", algorithm__correction="token_truncation")
    assert corrected.algorithm.corrections == ("token_truncation",)
    published = settings_with(algorithm__name="rloo", algorithm__correction="tis, icepop")
    assert published.algorithm.corrections == ("token_truncation", "token_mask")


def test_whole_numbers_are_taken_for_fractions():
    assert settings_with(optimizer__learning_rate=0).optimizer.learning_rate == 0.0


def test_a_checkpoint_that_is_not_there_is_refused_at_once():
    with pytest.raises(ConfigError, match=r"config.model.path='no/such/model'.* hf download"):
        settings_with(model__path="no/such/model")


def test_the_shape_of_batches_decides_how_much_is_generated():
    usual = settings_with(algorithm__name="dr_grpo", sync__mode="asynchronous")
    assert (usual.groups_generated, usual.groups_per_lease, usual.slots) == (64, 64, 512)
    more = settings_with(algorithm__over_sampling=1.26, sync__mode="asynchronous")
    assert (more.groups_generated, more.groups_per_lease, more.slots) == (81, 81, 648)
    assert wiring.master_settings(more, PromptPool()).groups_per_step == 81
    assert replay_tables(more)[0].max_size == (more.schedule.batches_ahead + 1) * 81
    again = {"replay__times_sampled": 2, "replay__sampler": "prioritized"}
    again |= {"replay__priority_exponent": 0.6, "replay__max_size": 100}
    twice = settings_with(sync__mode="asynchronous", **again)
    assert wiring.master_settings(twice, PromptPool()).times_sampled == 2
    (table,) = replay_tables(twice)
    assert (table.sampler, table.priority_exponent) == ("prioritized", 0.6)
    assert (table.max_times_sampled, table.max_diff) == (2, 200.0)
    streaming = settings_with(sync__mode="asynchronous", rollout__streaming=True, rollout__slots=65)
    assert (streaming.groups_at_once, streaming.groups_ahead) == (65 // 8 + 1, 3 * 64)
    assert wiring.master_settings(streaming, PromptPool()).groups_per_lease == 9
    assert wiring.master_settings(streaming, PromptPool()).carries_over
    assert replay_tables(streaming)[0].max_size == 3 * 64 + 9
    assert usual.groups_at_once == 64
    remax = settings_with(algorithm__name="remax", sync__mode="synchronous")
    assert remax.slots == 64 * 9
    assert wiring.batching(remax, row_tokens=8).with_baselines
    dapo = settings_with(algorithm__name="dapo", algorithm__group_mean_high=0.9)
    assert wiring.master_settings(dapo, PromptPool()).screening == Screening(
        True, -UNBOUNDED, 0.9, 10
    )


def test_one_completion_a_prompt_will_do_where_none_are_compared():
    for name in ("ppo", "reinforce_pp"):
        settings = settings_with(algorithm__name=name, trainer__group_size=1)
        assert settings.trainer.group_size == 1


def test_weights_go_to_the_work_directory_or_to_one_of_the_runs_name():
    workdir = Workdir("/runs/mine")
    assert settings_with().weights_directory(workdir) == "/runs/mine/weights"
    for place in ("/shared", "/shared/", "gs://bucket", "gs://bucket/"):
        settings = settings_with(sync__transfer="checkpoint", sync__directory=place)
        assert settings.weights_directory(workdir) == f"{place.rstrip('/')}/mine"


def test_adapters_of_peft_say_their_rank_alpha_and_targets(subtests):
    given = {"model__path": str(DATA / "models/qwen2"), "optimizer__learning_rate": None}
    for name, wanted in (
        ("plain", Lora(4, 6.0, ("q", "down"))),
        ("all_linear", Lora(2, 16.0)),
        ("patterns", Lora(6, 4 * 6 / 4**0.5, ("k", "o", "gate", "up"))),
    ):
        with subtests.test(name=name):
            path = str(DATA / "adapters" / name)
            settings = settings_with(model__lora__path=path, **given)
            assert settings.model.lora.lora() == wanted
            assert settings.optimizer.learning_rate == 2e-4
            assert read_settings(settings.resolved()).model == settings.model
    path = str(DATA / "adapters/plain")
    same = settings_with(model__lora__path=path, model__lora__targets="down, q", **given)
    assert same.model.lora.lora() == Lora(4, 6.0, ("q", "down"))
    for name, value, wanted in (
        ("rank", 8, "4"),
        ("alpha", 32.0, "6.0"),
        ("targets", "q", "q,down"),
    ):
        with subtests.test(name=name):
            message = (
                rf"lora.{name}={value} is not that of .*set --config.model.lora.{name}={wanted}"
            )
            with pytest.raises(ConfigError, match=message):
                settings_with(model__lora__path=path, **{f"model__lora__{name}": value}, **given)
    with pytest.raises(
        ConfigError, match=r"config\.model\.lora\.path='no/such': 'no/such' is neither"
    ):
        settings_with(model__lora__path="no/such", **given)


def test_rows_that_are_too_long_for_a_checkpoint_are_refused_with_the_settings_to_lower():
    model = ModelSettings(path=str(DATA / "models" / "qwen2"))
    assert model.config(vocab_size=10, max_length=512).max_length == 512
    with pytest.raises(ConfigError, match=r"have 513 tokens.*or for episodes environment.max_tok"):
        model.config(vocab_size=10, max_length=513)
