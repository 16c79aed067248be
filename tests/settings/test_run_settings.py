"""Configs become settings, or one clear message."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from typing import Any

import pytest

from rl_sync.algorithms.named import ALGORITHMS
from rl_sync.algorithms.screening import UNBOUNDED, Screening
from rl_sync.configs import base
from rl_sync.roles import wiring
from rl_sync.roles.replay_tables import replay_tables
from rl_sync.settings.config_reading import read_settings
from rl_sync.settings.records import ConfigError
from rl_sync.tasks.curriculum import PromptPool
from rl_sync.workdir import Workdir
from tests.settings.changed import config_with, settings_with


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"sync__mode": "synchronous", "sync__interval": 0}, ["at least 1", "0"]),
        ({"sync__mode": "custom", "sync__offset": -1}, ["at least 0", "-1"]),
        (
            {"sync__mode": "asynchronous", "sync__interval": 4, "sync__max_staleness": 2},
            ["sync.max_staleness=2", "interval - 1 = 3", "Use at least 3"],
        ),
        (
            {"launch__hosts": "explorer1=10.0.0.2"},
            ["launch.hosts=explorer1=10.0.0.2", "needs launch.host"],
        ),
        (
            {"launch__hosts": "explorer1", "launch__host": "10.0.0.1"},
            ["launch.hosts=explorer1", "NAME=ADDRESS"],
        ),
        (
            {"launch__hosts": "explorer2=10.0.0.2", "launch__host": "10.0.0.1"},
            ["launch.hosts=explorer2=10.0.0.2", "explorer1, trainer", "did you mean 'explorer1'"],
        ),
        (
            {
                "launch__hosts": "trainer=10.0.0.2",
                "launch__host": "10.0.0.1",
                "launch__colocate": True,
            },
            ["launch.hosts=trainer=10.0.0.2", "launch.colocate", "leave out one"],
        ),
        ({"launch__remote_shell": "ssh"}, ["launch.remote_shell=ssh", "{host}"]),
        ({"sync__transfer": "colective"}, ["did you mean 'collective'"]),
        (
            {"sync__transfer": "checkpoint", "sync__directory": "weights"},
            ["sync.directory=weights", "absolute path, or gs://"],
        ),
        (
            {"sync__transfer": "checkpoint", "sync__directory": "s3://bucket/weights"},
            ["sync.directory=s3://bucket/weights", "gs://bucket/…, or mount it"],
        ),
        (
            {"sync__transfer": "checkpoint", "sync__directory": "gs://"},
            ["sync.directory=gs://", "gs://bucket/…"],
        ),
        (
            {"sync__transfer": "collective", "sync__directory": "/shared"},
            ["sync.directory=/shared", "sync.transfer=collective", "use sync.transfer=checkpoint"],
        ),
        ({"explorer__count": 1000}, ["explorer.count=1000", "trainer.groups_per_step"]),
        ({"explorer__count": 0}, ["explorer.count=0", "1 or more"]),
        (
            {"sync__mode": "asynchronous", "explorer__count": 2},
            ["explorer.count=2", "sync.mode=multi_explorer"],
        ),
        ({"sync__mode": "multi_explorer", "explorer__count": 1}, ["explorer.count=1", "2 or more"]),
        (
            {"launch__compilation_cache": "gs://bucket"},
            ["launch.compilation_cache=gs://bucket", "local", "JAX_COMPILATION_CACHE_DIR"],
        ),
        ({"replay__backend": "redis"}, ["replay.backend='redis'", "reverb, embedded"]),
        ({"replay__sampler": "lifo"}, ["replay.sampler=lifo", "Use replay.sampler=fifo"]),
        ({"replay__sampler": "heap"}, ["replay.sampler='heap'", "max_heap, min_heap"]),
        ({"replay__priority": "rewards"}, ["replay.priority='rewards'", "did you mean 'reward'"]),
        ({"replay__times_sampled": 2}, ["replay.times_sampled=2", "Use replay.times_sampled=1"]),
        ({"replay__max_size": 9}, ["replay.max_size=9", "Leave out replay.max_size"]),
        (
            {"sync__mode": "asynchronous", "replay__times_sampled": 4},
            ["replay.times_sampled=4", "max_staleness=2. Use at most 3"],
        ),
        (
            {
                "sync__mode": "asynchronous",
                "replay__times_sampled": 2,
                "rollout__budget_tokens": 100,
            },
            ["replay.times_sampled=2", "rollout.budget_tokens=100", "overtake"],
        ),
        ({"optimizer__updates_per_batch": 7}, ["updates_per_batch=7", "divisor"]),
        ({"optimizer__name": "adamx"}, ["optimizer.name='adamx'", "adamw"]),
        ({"optimizer__schedule": "step"}, ["optimizer.schedule='step'", "cosine"]),
        ({"trainer__batching": "ragged"}, ["trainer.batching='ragged'", "packed"]),
        ({"trainer__microbatch_rows": 3}, ["trainer.microbatch_rows=3", "a divisor of 128"]),
        ({"trainer__microbatch_rows": -1}, ["trainer.microbatch_rows=-1", "0 for all"]),
        (
            {"trainer__batching": "packed", "trainer__microbatch_rows": 129},
            ["trainer.microbatch_rows=129 must be at most 128"],
        ),
        (
            {"trainer__batching": "packed", "trainer__shared_row_tokens": 600},
            ["trainer.shared_row_tokens=600", "batching=packed", "use trainer.batching=shared"],
        ),
        (
            {
                "algorithm__name": "dpo",
                "trainer__batching": "shared",
                "trainer__microbatch_rows": 8,
            },
            ["algorithm.loss=dpo", "batching=shared", "neither packed nor shared"],
        ),
        ({"trainer__processes": 0}, ["trainer.processes", "at least 1", "0"]),
        (
            {"explorer__mesh__tensor": 3, "explorer__processes": 2},
            ["explorer.processes=2", "tensor=3, which is 3 devices", "multiple of their number"],
        ),
        ({"trainer__mesh__fsdp": 0}, ["trainer.mesh.fsdp", "at least 1", "0"]),
        (
            {"sync__mode": "asynchronous", "trainer__mesh__fsdp": 3},
            ["optimizer.updates_per_batch = 128", "3 parts", "use a multiple"],
        ),
        (
            {"sync__mode": "asynchronous", "explorer__mesh__data": 2, "rollout__slots": 5},
            ["5 slots (rollout.slots)", "2 parts", "use a multiple"],
        ),
        ({"sharding__embed": "fspd"}, ["sharding.embed='fspd'", "did you mean 'fsdp'"]),
        ({"explorer__dtype": "bf16"}, ["explorer.dtype='bf16'", "bfloat16"]),
        ({"trainer__compute_dtype": "half"}, ["trainer.compute_dtype='half'", "float16"]),
        ({"task__name": "arithmetics"}, ["did you mean 'arithmetic'"]),
        ({"task__too_long": "cut"}, ["task.too_long='cut'", "drop, truncate"]),
        ({"task__dataset__format": "gsm8"}, ["did you mean 'gsm8k'"]),
        ({"tokenizer__chat": "maybe"}, ["tokenizer.chat='maybe'", "auto, yes, no"]),
        ({"trainer__group_size": 1}, ["trainer.group_size", "at least 2"]),
        ({"model__num_kv_heads": 3}, ["num_kv_heads=3"]),
        ({"rollout__temperature": 0.0}, ["temperature=0 must be above 0", "evaluations"]),
        ({"rollout__min_p": 1.5}, ["min_p=1.5 must be at least 0 and below 1"]),
        ({"rollout__stop_ids": "2, x"}, ["rollout.stop_ids='2, x'", "separated by commas"]),
        (
            {"algorithm__name": "dpo", "trainer__microbatch_rows": 4},
            ["algorithm.loss=dpo", "microbatch_rows=4", "multiple of trainer.group_size=8"],
        ),
        (
            {"algorithm__demonstration_rows": 6, "algorithm__demonstration_coefficient": 0.1},
            ["demonstration_rows=6", "updates_per_batch=4", "use a multiple of 4"],
        ),
        (
            {"algorithm__name": "sft", "explorer__count": 1},
            ["explorer.count=1", "nothing to generate", "algorithm.name=sft"],
        ),
        (
            {"rollout__slots": 0},
            ["rollout.slots=0 must be at least 1, or left out for all of a lease"],
        ),
        ({"rollout__chunk_tokens": 0}, ["rollout.chunk_tokens=0 must be at least 1"]),
        (
            {"sync__mode": "synchronous", "rollout__swap": "in_flight"},
            ["rollout.swap=in_flight", "sync.pull=exact", "sync.mode=asynchronous"],
        ),
        (
            {"rollout__budget_tokens": -1},
            ["rollout.budget_tokens=-1 must be at least 0", "0 for no budget"],
        ),
        (
            {"sync__mode": "one_step_off_policy", "rollout__budget_tokens": 64},
            ["rollout.budget_tokens=64", "sync.pull=exact", "sync.mode=asynchronous"],
        ),
        (
            {"sync__mode": "one_step_off_policy", "rollout__streaming": True},
            ["rollout.streaming=true", "sync.pull=exact", "sync.mode=asynchronous"],
        ),
        (
            {
                "sync__mode": "asynchronous",
                "rollout__streaming": True,
                "rollout__budget_tokens": 64,
            },
            ["rollout.streaming=true", "budget_tokens=64", "use rollout.budget_tokens=0"],
        ),
        (
            {
                "sync__mode": "asynchronous",
                "rollout__streaming": True,
                "replay__times_sampled": 2,
            },
            ["rollout.streaming=true", "times_sampled=2", "overtake", "replay.times_sampled=1"],
        ),
        ({"rollout__cache": "recompile"}, ["did you mean 'recompute'"]),
        ({"algorithm__advantage": "gea"}, ["algorithm.advantage='gea'", "grpo"]),
        ({"algorithm__name": "grop"}, ["algorithm.name='grop'", "did you mean 'grpo'"]),
        ({"algorithm__clip_low": 1.5}, ["algorithm.clip_low=1.5 must be above 0 and at most 1"]),
        (
            {"algorithm__name": "rloo"},
            [
                "rloo does not fit data that are up to 1 trainer steps old",
                "token_truncation",
                "algorithm.allow_unsafe=True",
            ],
        ),
        (
            {"environment__name": "calculater"},
            ["environment.name='calculater'", "did you mean 'calculator'"],
        ),
        (
            {"environment__name": "guess", "environment__workers": 7},
            ["environment.workers=7 is less than the 8 episodes", "use at least as many"],
        ),
        ({"environment__max_turns": 0}, ["environment.max_turns=0 must be at least 1"]),
        (
            {"task__reward": "exact + environment"},
            ["task.reward=exact + environment", "set environment.name"],
        ),
        (
            {"environment__name": "python(seconds=2)", "task__reward": "environment"},
            ["environment.name=python(seconds=2) gives no rewards", "judges the last reply"],
        ),
        (
            {"environment__name": "guess", "algorithm__name": "sft", "explorer__count": 0},
            ["environment.name=guess", "algorithm.name=sft generates nothing"],
        ),
        (
            {
                "environment__name": "guess",
                "trainer__batching": "shared",
                "tokenizer__path": "somewhere",
            },
            ["trainer.batching=shared has no place", "environment.rewrites=refuse"],
        ),
        (
            {"environment__name": "agent(command='true')", "trainer__batching": "shared"},
            ["trainer.batching=shared has no place", "agents"],
        ),
        ({"algorithm__clip_high": 99.0}, ["algorithm.clip_high=99", "unclipped", "at most 10"]),
        ({"critic__model": "heads"}, ["critic.model='heads' is not one of own, head"]),
        (
            {"algorithm__name": "ppo", "critic__warmup_steps": 5, "trainer__steps": 5},
            ["critic.warmup_steps=5", "trainer.steps=5", "use fewer"],
        ),
    ],
)
def test_a_config_that_cannot_run_is_refused_with_the_way_out(fields, parts):
    with pytest.raises(ConfigError) as refused:
        settings_with(**fields)
    for part in parts:
        assert part in str(refused.value)


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
    assert None not in resolved["explorer"].values()
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


def float_settings(section: Any, path: tuple[str, ...] = ()) -> list[str]:
    """The names, as `config_with` takes them, of all settings that are fractions."""
    names = []
    for name, value in section.items():
        if isinstance(value, dict):
            names += float_settings(value, (*path, name))
        elif isinstance(value, float):
            names.append("__".join((*path, name)))
    return names


def test_numbers_that_are_not_finite_are_refused_in_every_setting():
    names = float_settings(settings_with(critic__learning_rate=0.1).resolved())
    assert len(names) > 40
    assert {"optimizer__learning_rate", "algorithm__group_mean_high"} < set(names)
    for name in names:
        for value in (float("nan"), float("inf"), -float("inf"), 1e39):
            path = rf"config\.{name.replace('__', '.')}={re.escape(str(value))} must be a finite"
            with pytest.raises(ConfigError, match=path):
                settings_with(**{name: value})
    config = config_with(base.get_config())
    config["optimizer"]["learning_rate"] = 10**400
    with pytest.raises(ConfigError, match=r"optimizer\.learning_rate=inf must be"):
        read_settings(config)


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


def test_a_bucket_needs_what_reaches_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"sync.directory=gs://b needs gcsfs: pip install gcsfs"):
        settings_with(sync__transfer="checkpoint", sync__directory="gs://b")
