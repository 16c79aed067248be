"""Configs become settings, or one clear message."""

from __future__ import annotations

from typing import Any

import pytest

from configs import arithmetic, jsonl
from rl_sync.runtime.settings import ConfigError, RunSettings


def config_with(config: Any, **fields: Any) -> dict[str, Any]:
    """The config with some fields set; `sync__mode` stands for sync.mode."""
    for name, value in fields.items():
        *sections, field = name.split("__")
        section = config
        for part in sections:
            section = section[part]
        section[field] = value
    return {**config.to_dict(), "workdir": "somewhere"}


def settings_with(**fields: Any) -> RunSettings:
    return RunSettings.from_config(config_with(arithmetic.get_config(), **fields))


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"sync__mode": "synchronous", "sync__interval": 0}, ["at least 1", "0"]),
        ({"sync__mode": "custom", "sync__offset": -1}, ["at least 0", "-1"]),
        (
            {"sync__mode": "asynchronous", "sync__interval": 4, "sync__max_staleness": 2},
            ["sync.max_staleness=2", "interval - 1 = 3", "Use at least 3"],
        ),
        ({"sync__transfer": "colective"}, ["did you mean 'collective'"]),
        ({"explorer__count": 1000}, ["explorer.count=1000", "trainer.groups_per_step"]),
        ({"explorer__count": 0}, ["explorer.count=0", "1 or more"]),
        (
            {"sync__mode": "asynchronous", "explorer__count": 2},
            ["explorer.count=2", "sync.mode=multi_explorer"],
        ),
        ({"sync__mode": "multi_explorer", "explorer__count": 1}, ["explorer.count=1", "2 or more"]),
        ({"replay__backend": "redis"}, ["replay.backend='redis'", "reverb, embedded"]),
        ({"replay__sampler": "lifo"}, ["replay.sampler=lifo", "Use replay.sampler=fifo"]),
        ({"optimizer__updates_per_batch": 7}, ["updates_per_batch=7", "divisor"]),
        ({"optimizer__name": "adamx"}, ["optimizer.name='adamx'", "adamw"]),
        ({"optimizer__schedule": "step"}, ["optimizer.schedule='step'", "cosine"]),
        ({"trainer__batching": "ragged"}, ["trainer.batching='ragged'", "packed"]),
        ({"trainer__microbatch_rows": 3}, ["trainer.microbatch_rows=3", "a divisor of 128"]),
        ({"task__name": "arithmetics"}, ["did you mean 'arithmetic'"]),
        ({"trainer__group_size": 1}, ["trainer.group_size", "at least 2"]),
        ({"model__num_kv_heads": 3}, ["num_kv_heads=3"]),
        ({"rollout__temperature": 0.0}, ["temperature must be above 0"]),
        ({"algorithm__advantage": "gae"}, ["algorithm.advantage='gae'", "grpo"]),
    ],
)
def test_a_config_that_cannot_run_is_refused_with_the_way_out(fields, parts):
    with pytest.raises(ConfigError) as refused:
        settings_with(**fields)
    for part in parts:
        assert part in str(refused.value)


def test_unknown_missing_and_mistyped_settings_are_named():
    config = config_with(arithmetic.get_config())
    with pytest.raises(
        ConfigError, match=r"config.trainer.stepz.*did you mean config.trainer.steps"
    ):
        RunSettings.from_config({**config, "trainer": {**config["trainer"], "stepz": 3}})
    with pytest.raises(ConfigError, match="config lacks seed"):
        RunSettings.from_config({name: v for name, v in config.items() if name != "seed"})
    with pytest.raises(ConfigError, match=r"config.seed='0' must be int, not str"):
        RunSettings.from_config({**config, "seed": "0"})
    with pytest.raises(ConfigError, match=r"config.model must be a section"):
        RunSettings.from_config({**config, "model": 3})


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
    + [{"sync__mode": "multi_explorer", "sync__interval": 2, "explorer__count": 3}],
)
def test_a_resolved_config_says_everything_and_makes_the_same_run(fields):
    settings = settings_with(**fields)
    resolved = settings.resolved()
    assert None not in resolved["sync"].values()
    assert None not in resolved["explorer"].values()
    again = RunSettings.from_config(resolved)
    assert again.schedule == settings.schedule
    assert again.resolved() == resolved


def test_whole_numbers_are_taken_for_fractions():
    assert settings_with(optimizer__learning_rate=0).optimizer.learning_rate == 0.0


def test_the_users_own_file_without_a_path_is_refused():
    settings = RunSettings.from_config(config_with(jsonl.get_config()))
    with pytest.raises(ConfigError, match=r"task.jsonl.path is not set"):
        settings.load_task()
