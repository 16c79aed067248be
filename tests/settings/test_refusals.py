"""Each setting refuses what it does not declare, and each rule an example of what breaks it.

The first part is generated from the descriptions of the settings.
"""

import copy
import importlib.util
import math
import re
from pathlib import Path

import pytest

from rl_sync.algorithms.algorithm import ALGORITHMS
from rl_sync.configs import base
from rl_sync.setting import sections
from rl_sync.settings.config_reading import read_settings
from rl_sync.settings.records import ConfigError
from rl_sync.settings.rules import table
from rl_sync.settings.rules.algorithm_rules import danger
from rl_sync.settings.run_settings import RunSettings
from tests.settings.changed import config_with, settings_with


def test_a_text_of_the_word_none_on_the_command_line_is_none():
    settings = settings_with(tokenizer__path="None", tokenizer__system="None")
    assert settings.tokenizer.path is None
    assert settings.tokenizer.system is None


ADAPTERS = Path(__file__).resolve().parents[1] / "data" / "adapters" / "plain"
CONFIG = config_with(base.get_config())
ENTRIES = [entry for section in sections(RunSettings) for entry in section.entries]
NAMES = {entry.name for entry in ENTRIES} | {section.name for section in sections(RunSettings)}
WORDS = {int: "int", float: "float", str: "str", bool: "bool"}
WRONG = {
    int: ["three", 1.5, True, [1]],
    float: ["three", True, [1.0]],
    str: [3, True, ["a"]],
    bool: ["yes", 1, 0.0],
}
"""By a setting's type, values of others."""


def _refusal(name, value):
    """Returns the message that refuses the defaults with one setting changed; None if none does."""
    config = copy.deepcopy(CONFIG)
    *within, field = name.split(".")
    section = config
    for part in within:
        section = section[part]
    section[field] = value
    try:
        read_settings(config)
    except ConfigError as error:
        return str(error)
    return None


def _missing(name, value, parts):
    """Returns what a refusal lacks of its parts; everything if there is none."""
    said = _refusal(name, value)
    return [(name, value, part, said) for part in parts if said is None or part not in said]


def _beyond(entry):
    """Yields values outside the bounds of a setting, each as close as can be."""
    rule = entry.setting
    for limit, away, reached in (
        (rule.least, -1, False),
        (rule.above, -1, True),
        (rule.greatest, 1, False),
        (rule.below, 1, True),
    ):
        if limit is None:
            continue
        if reached:
            yield entry.kind(limit)
        elif entry.kind is int:
            yield int(limit) + away
        else:
            yield math.nextafter(limit, away * math.inf) if limit else away * 1e-9


@pytest.mark.gate
def test_every_setting_names_itself_its_value_and_its_types_where_it_has_another_type():
    missing = []
    for entry in ENTRIES:
        for value in WRONG[entry.kind]:
            parts = [f"config.{entry.name}={value!r} must be", WORDS[entry.kind]]
            missing += _missing(entry.name, value, [*parts, type(value).__name__])
    assert missing == []
    assert len(ENTRIES) > 250


@pytest.mark.gate
def test_every_setting_names_itself_its_value_its_bounds_and_its_meaning_beyond_its_bounds():
    found, missing = 0, []
    for entry in ENTRIES:
        for value in _beyond(entry):
            found += 1
            number = f"{value:g}" if entry.kind is float else f"{value}"
            parts = [f"{entry.name}={number} must be {entry.setting.bounds}", entry.setting.meaning]
            missing += _missing(entry.name, value, parts)
    assert missing == []
    assert found > 150


def test_every_setting_names_itself_its_value_and_its_choices_where_it_is_none_of_them():
    found, missing = 0, []
    for entry in ENTRIES:
        if choices := entry.setting.choices:
            found += 1
            for value in ("nonesuch", choices[0] + choices[-1] + "x"):
                parts = [f"{entry.name}={value!r} is not one of {', '.join(choices)}"]
                missing += _missing(entry.name, value, parts)
    assert missing == []
    assert found > 25


def test_a_choice_that_is_mistyped_is_answered_by_the_one_that_was_meant():
    for name, value, meant in (
        ("sync.transfer", "colective", "collective"),
        ("replay.priority", "rewards", "reward"),
        ("task.dataset.format", "gsm8", "gsm8k"),
        ("rollout.cache", "recompile", "recompute"),
        ("algorithm.name", "grop", "grpo"),
        ("explorer.dtype", "bf16", "bfloat16"),
    ):
        assert f"did you mean {meant!r}?" in _refusal(name, value)


@pytest.mark.gate
def test_numbers_that_are_not_finite_or_too_large_are_refused_in_every_setting():
    missing = []
    for entry in ENTRIES:
        if entry.kind is float:
            for value in (math.nan, math.inf, -math.inf, 1e39, 10**400):
                number = "inf" if value == 10**400 else value
                parts = [f"config.{entry.name}={number} must be a finite number"]
                missing += _missing(entry.name, value, parts)
        elif entry.kind is int:
            missing += _missing(entry.name, 2**64, [f"config.{entry.name}={2**64} is too large"])
    assert missing == []


ASYNCHRONOUS = {"sync__mode": "asynchronous"}
GRPO = {"algorithm__name": "grpo", "sync__mode": "synchronous"}
REWARD = {"algorithm__name": "reward_model", "trainer__group_size": 2, "sft__steps": 0}
SERVED = {
    "algorithm__name": "on_policy_distillation",
    "teacher__address": "10.0.0.2:8200",
    "teacher__secret_path": "secret",
}
SFT = {"algorithm__name": "sft"}
BEST = {"evaluation__every_steps": 2, "checkpoint__best": "accuracy"}
VOTE = {"checkpoint__best": "majority@4", "evaluation__samples": 4, "evaluation__every_steps": 2}
SHARED = {"environment__name": "guess", "trainer__batching": "shared"}
SETS = {"task__name": "mixture", "task__mixture__sets": "arithmetic + 2 * worked(set='tools')"}
HOST = {"launch__host": "10.0.0.1"}
ENGINE = "vllm:http://127.0.0.1:8000"
BY_ENGINE = {"sync__mode": "asynchronous", "explorer__engine": ENGINE}
EXAMPLES = {
    "name": [({"name": "a/b"}, "name='a/b'")],
    "workdir": [({"workdir": "a\0b"}, "must not hold a null")],
    "environment.name": [
        ({"environment__name": "calculater"}, "did you mean 'calculator'"),
        ({"environment__name": "verifiers:gsm8k"}, "is no environment here: write verifiers(…)"),
    ],
    "environment.opponent": [
        ({"environment__opponent": "slef"}, "opponent=slef: There is no opponent 'slef'"),
        ({"environment__evaluation_opponent": "rndom"}, "did you mean 'random'"),
    ],
    "environment.evaluation_opponent": [
        ({"environment__evaluation_opponent": "self"}, "=self changes with training"),
    ],
    "model.lora.path, model.path": [
        ({"model__lora__path": str(ADAPTERS)}, "adapts a checkpoint: set model.path"),
    ],
    "model.lora.targets": [
        ({"model__lora__targets": "q,zz"}, "model.lora.targets='zz' is not one of q, k"),
        ({"model__lora__targets": ""}, "must name some of q, k"),
    ],
    "algorithm.correction": [
        (GRPO | {"algorithm__correction": "token_mask,tokens"}, "correction='tokens' is not one"),
        (GRPO | {"algorithm__correction": "icepops"}, "did you mean 'icepop'?"),
    ],
    "rollout.stop_ids": [({"rollout__stop_ids": "2, x"}, "rollout.stop_ids='2, x' must be")],
    "sync.directory": [
        ({"sync__directory": "weights"}, "an absolute path, gs://"),
        ({"sync__directory": "az://bucket/weights"}, "s3://bucket/…, or mount it"),
        ({"sync__directory": "s3://"}, "give gs://bucket/… or s3://bucket/…"),
        ({"sync__directory": "gs://"}, "give gs://bucket/…"),
    ],
    "sharding.embed": [
        ({"sharding__embed": "fspd"}, "sharding.embed='fspd' is not one of"),
        ({"sharding__embed": "fsdp,fsdp"}, "sharding.embed=fsdp,fsdp names an axis twice"),
    ],
    "replay.address": [({"replay__address": "here"}, "replay.address='here' must be HOST:PORT")],
    "reward.addresses": [
        ({"reward__addresses": ","}, "reward.addresses=',' names no server"),
        ({"reward__addresses": "judge:99999"}, "'judge:99999' must be HOST:PORT"),
        ({"reward__addresses": "a:1,a:1"}, "names a:1 twice"),
    ],
    "observe.backends": [({"observe__backends": "tensorboard,wanb"}, "did you mean 'wandb'")],
    "launch.hosts": [
        (HOST | {"launch__hosts": "explorer1"}, "launch.hosts=explorer1 must be NAME=ADDRESS"),
        (HOST | {"launch__hosts": "trainer=a,trainer=b"}, "says twice where trainer is"),
    ],
    "launch.ports": [
        ({"launch__ports": "20000"}, "launch.ports='20000' must be FIRST-LAST"),
        ({"launch__ports": "80-90"}, "with ports from 1024 to 65535"),
        ({"launch__ports": "30000-20000"}, "such as 20000-29999"),
    ],
    "launch.files": [
        ({"launch__files": "/etc/passwd"}, "/etc/passwd must be in the current directory"),
        ({"launch__files": "a,../b"}, "../b must be in the current directory"),
    ],
    "launch.remote_shell": [
        ({"launch__remote_shell": "ssh"}, "launch.remote_shell=ssh must say where {host} goes"),
        ({"launch__remote_shell": "ssh {host} {user}"}, "with that alone in braces"),
        ({"launch__remote_shell": "ssh '{host}"}, "quotation marks that are closed"),
    ],
    "launch.compilation_cache": [
        ({"launch__compilation_cache": "gs://bucket"}, "JAX_COMPILATION_CACHE_DIR"),
    ],
    "algorithm.demonstration_rows, algorithm.demonstration_coefficient": [
        (GRPO | {"algorithm__demonstration_rows": 4}, "coefficient=0 is the weight"),
    ],
    "algorithm.dual_clip": [(GRPO | {"algorithm__dual_clip": 0.5}, "dual_clip=0.5 must be above")],
    "algorithm.extremes": [(GRPO | {"algorithm__extremes": 3}, "extremes=3 must be even")],
    "algorithm.group_mean_low, algorithm.group_mean_high": [
        (
            GRPO | {"algorithm__group_mean_low": 0.5, "algorithm__group_mean_high": 0.4},
            "no group would be left",
        ),
    ],
    "algorithm.max_attempts, algorithm.filter_zero_variance": [
        (GRPO | {"algorithm__max_attempts": 3}, "max_attempts=3 has groups replaced"),
    ],
    "algorithm.advantage, algorithm.overlong_tokens": [
        (
            {"algorithm__name": "gdpo", "algorithm__overlong_tokens": 4},
            "overlong_tokens=4 changes the sum of the reward",
        ),
        ({"algorithm__name": "gdpo", "algorithm__turn_discount": 0.9}, "turn_discount=0.9 changes"),
        ({"algorithm__name": "gdpo", "algorithm__kl_place": "reward"}, "kl_place=reward changes"),
        ({"algorithm__name": "gdpo", "experience__pipeline": "a:f"}, "pipeline=a:f changes"),
    ],
    "algorithm.filter, trainer.group_size": [
        (
            {"algorithm__name": "ppo", "algorithm__filter": "outcome", "trainer__group_size": 1},
            "filter=outcome leaves out groups whose completions are alike",
        ),
        (
            {
                "algorithm__name": "ppo",
                "algorithm__filter_zero_variance": True,
                "trainer__group_size": 1,
            },
            "filter_zero_variance=True leaves out groups whose completions are alike",
        ),
    ],
    "algorithm.correction, algorithm.loss": [
        (GRPO | {"algorithm__correction": "token_truncation"}, "use algorithm.proximal=start"),
    ],
    "algorithm.correction: twice": [
        (
            {"algorithm__correction": "token_truncation,sequence_truncation"},
            "weighs by the ratio twice",
        ),
    ],
    "algorithm.correction, algorithm.proximal": [
        (GRPO | {"algorithm__correction": "second_moment"}, "proximal=start, not behavior"),
    ],
    "algorithm.score_centering, algorithm.loss": [
        (
            GRPO | {"algorithm__loss": "gspo", "algorithm__score_centering": "exact"},
            "use one of ppo_clip, cispo, sapo, dppo, reinforce",
        ),
        (
            GRPO | {"algorithm__loss": "dppo", "algorithm__score_centering": "topk"},
            "use algorithm.score_centering=exact",
        ),
        (SFT | {"algorithm__score_centering": "topk"}, "algorithm.name=sft has none: leave it out"),
    ],
    "algorithm.score_centering, algorithm.correction": [
        (
            {
                "algorithm__score_centering": "exact",
                "algorithm__correction": "sequence_truncation",
            },
            "use token_truncation, token_mask, second_moment, or none",
        ),
    ],
    "algorithm.score_centering, rollout.keep_sampling_mask": [
        (
            {
                "algorithm__score_centering": "topk",
                "rollout__keep_sampling_mask": False,
                "rollout__top_p": 0.9,
            },
            "leave rollout.keep_sampling_mask out",
        ),
    ],
    "algorithm.loss, algorithm.advantage: preferences": [
        (GRPO | {"algorithm__loss": "bradley_terry"}, "learns from preferences"),
        (GRPO | {"algorithm__advantage": "preference"}, "advantage=preference, or neither"),
    ],
    "algorithm.advantage, algorithm.filter_zero_variance": [
        (GRPO | {"algorithm__advantage": "demonstration"}, "takes algorithm.loss='reinforce'"),
        (SFT | {"algorithm__filter_zero_variance": True}, "filter_zero_variance=True does not fit"),
        (SFT | {"algorithm__filter": "exact"}, "it takes algorithm.filter=''."),
        (REWARD | {"algorithm__extremes": 2}, "completions nobody has drawn: it takes"),
    ],
    "algorithm.loss, algorithm.kl_coefficient, algorithm.entropy_coefficient": [
        (REWARD | {"algorithm__kl_coefficient": 0.1}, "a reward model has no probabilities"),
        (REWARD | {"algorithm__entropy_coefficient": 0.1}, "must be 0 with"),
    ],
    "algorithm.loss, algorithm.advantage: pairs": [
        (GRPO | {"algorithm__loss": "dpo"}, "loss=dpo with algorithm.advantage=grpo"),
        (GRPO | {"algorithm__advantage": "pair"}, "loss=ppo_clip with algorithm.advantage=pair"),
    ],
    "algorithm.kl_target, algorithm.kl_coefficient": [
        (
            GRPO | {"algorithm__kl_target": 0.1, "algorithm__kl_coefficient": 0.0},
            "kl_target=0.1 has no weight to adapt",
        ),
    ],
    "teacher.path, algorithm.distillation": [
        (GRPO | {"algorithm__distillation": "exact"}, "exact with teacher.path=None"),
        (GRPO | {"teacher__path": "there"}, "distillation=off with teacher.path='there'"),
        (SERVED | GRPO, "with teacher.path=None and teacher.address='10.0.0.2:8200'"),
    ],
    "teacher.sets, teacher.path": [
        (
            {
                "algorithm__distillation": "exact",
                "teacher__path": "there",
                "teacher__sets": "a=there",
            },
            "teacher.path=there one for all",
        ),
    ],
    "teacher.sets, task.mixture.sets": [
        (
            {"algorithm__distillation": "exact", "teacher__sets": "a=there"},
            "task.mixture.sets, which are none: use teacher.path",
        ),
        (
            {
                "algorithm__distillation": "exact",
                "teacher__sets": "arithmetic=there",
                "task__name": "mixture",
                "task__mixture__sets": "arithmetic + school",
            },
            "which are arithmetic, school",
        ),
    ],
    "teacher.address": [
        (SERVED | {"teacher__address": "gpu7"}, "teacher.address='gpu7' must be HOST:PORT"),
        (SERVED | {"teacher__address": "gpu7:0"}, "use teacher.path for a teacher beside"),
    ],
    "teacher.address, teacher.path": [
        (SERVED | {"teacher__path": "there"}, "which has one teacher for all tasks"),
        (SERVED | {"teacher__step": "3"}, "takes teacher.path and teacher.step itself"),
        (SERVED | {"teacher__offload": True}, "leave out teacher.path, teacher.sets"),
        (
            SERVED
            | {
                "teacher__sets": "arithmetic=there,school=there",
                "task__name": "mixture",
                "task__mixture__sets": "arithmetic + school",
            },
            "teacher.address=10.0.0.2:8200 names a server",
        ),
    ],
    "teacher.address, algorithm.distillation": [
        (
            SERVED | {"algorithm__distillation": "exact"},
            "use algorithm.distillation=topk or sampled, or teacher.path in place of",
        ),
    ],
    "teacher.address, teacher.secret_path": [
        (SERVED | {"teacher__secret_path": None}, "needs teacher.secret_path=FILE"),
    ],
    "teacher.step, teacher.path": [
        ({"teacher__step": "best"}, "teacher.step=best names a snapshot of the run"),
    ],
    "algorithm.distillation, algorithm.name": [
        (
            {
                "algorithm__name": "sft",
                "algorithm__distillation": "topk",
                "teacher__path": "there",
            },
            "algorithm.name=sft generates none",
        ),
    ],
    "algorithm.advantage, algorithm.distillation": [
        (GRPO | {"algorithm__advantage": "none"}, "so that only a teacher teaches"),
    ],
    "algorithm.distillation, algorithm.loss": [
        (
            GRPO
            | {
                "algorithm__loss": "topr",
                "algorithm__distillation": "sampled",
                "teacher__path": "there",
            },
            "algorithm.loss=topr takes one a trajectory",
        ),
    ],
    "algorithm.loss, algorithm.advantage: tokens": [
        (
            GRPO | {"algorithm__loss": "topr", "algorithm__advantage": "gae"},
            "algorithm.advantage=gae makes one a token",
        ),
        (
            GRPO | {"algorithm__loss": "gmpo", "algorithm__advantage": "reinforce_pp"},
            "use algorithm.advantage=reinforce_pp_baseline",
        ),
    ],
    "algorithm.name, sync.mode, algorithm.allow_unsafe": [
        ({"algorithm__name": "rloo"}, "rloo does not fit data that are up to 1 trainer steps old"),
        ({"algorithm__name": "rloo"}, "Use algorithm.correction=token_truncation, leave out"),
        ({"algorithm__correction": ""}, "takes no notice of the policy that drew"),
        ({"algorithm__clip_high": 99.0}, "clip_high=99 leaves the ratio as good as unclipped"),
        ({"algorithm__name": "grpo", "algorithm__loss": "reinforce"}, "without end"),
    ],
    "algorithm.name, explorer.quantization, algorithm.allow_unsafe": [
        (
            {
                "sync__mode": "synchronous",
                "algorithm__name": "rloo",
                "explorer__quantization": "int8",
            },
            "rloo does not fit explorer.quantization=int8",
        ),
    ],
    "curriculum.selection, algorithm.name": [
        (SFT | {"curriculum__selection": "least_seen"}, "algorithm.name=sft generates nothing"),
    ],
    "experience.pipeline, algorithm.name": [
        (SFT | {"experience__pipeline": "mine.py:one"}, "algorithm.name=sft generates nothing"),
    ],
    "task.mixture.weights, algorithm.name": [
        (SFT | SETS | {"task__mixture__weights": "progress"}, "generates nothing: use fixed"),
    ],
    "environment.name, algorithm.name": [
        (SFT | {"environment__name": "guess"}, "algorithm.name=sft generates nothing"),
    ],
    "explorer.count, algorithm.name": [
        (SFT | {"explorer__count": 1}, "explorer.count=1 explorers would have nothing"),
    ],
    "trainer.group_size, algorithm.name": [
        (REWARD | {"trainer__group_size": 4}, "use trainer.group_size=2"),
    ],
    "sft.steps, algorithm.name": [(REWARD | {"sft__steps": 3}, "Use sft.steps=0")],
    "evaluation.samples, algorithm.name": [
        (REWARD | {"evaluation__samples": 4}, "use evaluation.samples=1"),
    ],
    "replay.sampler, replay.times_sampled, replay.max_size, sync.mode": [
        ({"replay__sampler": "lifo"}, "replay.sampler=lifo does not fit"),
        ({"replay__sampler": "lifo"}, "Use replay.sampler=fifo"),
        ({"replay__times_sampled": 2}, "Use replay.times_sampled=1"),
        ({"replay__max_size": 9}, "Leave out replay.max_size"),
    ],
    "replay.times_sampled, sync.max_staleness": [
        (ASYNCHRONOUS | {"replay__times_sampled": 4}, "max_staleness=2. Use at most 3"),
    ],
    "replay.times_sampled, rollout.budget_tokens": [
        (
            ASYNCHRONOUS | {"replay__times_sampled": 2, "rollout__budget_tokens": 100},
            "rollout.budget_tokens=100: steps that train on groups again would overtake",
        ),
    ],
    "sync.offset, trainer.steps": [
        (
            {"sync__mode": "custom", "sync__offset": 9, "trainer__steps": 5},
            "sync.offset=9 is beyond trainer.steps=5",
        ),
    ],
    "sync.delta, sync.transfer": [
        (
            {"sync__transfer": "collective", "sync__delta": "on"},
            "use sync.transfer=server or checkpoint, or sync.delta=off",
        ),
    ],
    "sync.delta, sync.verify": [
        (
            {"sync__transfer": "server", "sync__delta": "on", "sync__verify": False},
            "sync.delta=on needs sync.verify=true",
        ),
    ],
    "sync.fanout, sync.delta": [
        ({"sync__transfer": "server", "sync__fanout": 2}, "or sync.fanout=0"),
        (
            {"sync__transfer": "checkpoint", "sync__delta": "on", "sync__fanout": 2},
            "use sync.transfer=server and sync.delta=on",
        ),
    ],
    "sync.directory, sync.transfer": [
        (
            {"sync__transfer": "collective", "sync__directory": "/shared"},
            "use sync.transfer=checkpoint",
        ),
    ],
    "rollout.swap, sync.pull, sync.transfer": [
        (
            {"sync__mode": "synchronous", "rollout__swap": "in_flight"},
            "sync.pull=exact over sync.transfer=collective has none: use sync.mode=asynchronous",
        ),
        (
            ASYNCHRONOUS | {"sync__transfer": "collective", "rollout__swap": "in_flight"},
            "sync.pull=latest over sync.transfer=collective",
        ),
    ],
    "rollout.budget_tokens, sync.pull": [
        ({"rollout__budget_tokens": 64}, "sync.pull=exact fixes the groups"),
    ],
    "rollout.streaming, sync.pull": [
        ({"rollout__streaming": True}, "sync.pull=exact fixes the groups"),
    ],
    "rollout.streaming, replay.times_sampled": [
        (
            ASYNCHRONOUS | {"rollout__streaming": True, "replay__times_sampled": 2},
            "would overtake those in flight. Use replay.times_sampled=1",
        ),
    ],
    "rollout.streaming, rollout.budget_tokens": [
        (
            ASYNCHRONOUS | {"rollout__streaming": True, "rollout__budget_tokens": 64},
            "budget_tokens=64 could end: use rollout.budget_tokens=0",
        ),
    ],
    "explorer.count, sync.mode": [
        ({"explorer__count": 0}, "explorer.count=0 does not fit"),
        (ASYNCHRONOUS | {"explorer__count": 2}, "use sync.mode=multi_explorer"),
        ({"sync__mode": "multi_explorer", "explorer__count": 1}, "which takes 2 or more"),
    ],
    "explorer.count, trainer.groups_per_step": [
        ({"explorer__count": 1000}, "cannot share trainer.groups_per_step=64"),
    ],
    "trainer.steps, optimizer.updates_per_batch": [
        ({"trainer__steps": 2**30}, "more than the 2,147,483,647 that an optimizer counts"),
    ],
    "trainer.groups_per_step, algorithm.over_sampling, trainer.group_size": [
        ({"trainer__groups_per_step": 2**30}, "completions a step are more than arrays can hold"),
    ],
    "trainer.groups_per_step, optimizer.updates_per_batch": [
        ({"optimizer__updates_per_batch": 7}, "updates_per_batch=7 updates: use a divisor"),
    ],
    "trainer.group_size, algorithm.advantage": [
        ({"trainer__group_size": 1}, "trainer.group_size must be at least 2, not 1"),
    ],
    "algorithm.advantage, environment.name": [
        (GRPO | {"algorithm__advantage": "rae"}, "this run has neither: set environment.name"),
    ],
    "algorithm.segment_returns, algorithm.advantage": [
        ({"algorithm__segment_returns": True}, "makes one of a whole episode: use gae"),
        (
            {"algorithm__segment_returns": True, "algorithm__advantage": "remax"},
            "algorithm.advantage=remax makes one of a whole episode",
        ),
        (
            {"algorithm__segment_returns": True, "algorithm__advantage": "gae"},
            "those of environment.name=None have one: leave it out",
        ),
    ],
    "optimizer.weight_decay, optimizer.name": [
        (
            {"optimizer__name": "sgd", "optimizer__weight_decay": 0.1},
            "weight_decay=0.1 means nothing to optimizer.name=sgd: set it to 0, or use adamw or",
        ),
    ],
    "critic.warmup_steps, trainer.steps": [
        (
            {"algorithm__name": "ppo", "critic__warmup_steps": 5, "trainer__steps": 5},
            "trainer.steps=5 to learn in: use fewer",
        ),
    ],
    "algorithm.loss, trainer.microbatch_rows, trainer.batching": [
        (
            {"algorithm__name": "dpo", "trainer__microbatch_rows": 4},
            "use a multiple of trainer.group_size=8",
        ),
        (
            {
                "algorithm__name": "dpo",
                "trainer__batching": "shared",
                "trainer__microbatch_rows": 8,
            },
            "batching that is neither packed nor shared",
        ),
    ],
    "algorithm.demonstration_rows, optimizer.updates_per_batch": [
        (
            {"algorithm__demonstration_rows": 6, "algorithm__demonstration_coefficient": 0.1},
            "updates_per_batch=4 updates in microbatches of trainer.microbatch_rows=0 (0 for whole"
            " updates): use a multiple of 4",
        ),
    ],
    "trainer.microbatch_rows, trainer.batching": [
        ({"trainer__microbatch_rows": 3}, "microbatch_rows=3 must be a divisor of 128"),
        (
            {"trainer__batching": "packed", "trainer__microbatch_rows": 129},
            "microbatch_rows=129 must be at most 128",
        ),
    ],
    "trainer.shared_row_tokens, trainer.batching": [
        (
            {"trainer__batching": "packed", "trainer__shared_row_tokens": 600},
            "batching=packed does not make: use trainer.batching=shared",
        ),
    ],
    "task.shots, tokenizer.system, tokenizer.chat": [
        ({"task__shots": 2, "tokenizer__system": "Be brief."}, "'Be brief.' makes them a user's"),
        ({"task__shots": 2, "tokenizer__chat": "yes"}, "task.shots=2 makes prompts"),
    ],
    "tokenizer.system, tokenizer.chat": [
        ({"tokenizer__system": "x", "tokenizer__chat": "no"}, "tokenizer.system='x' has no place"),
    ],
    "tokenizer.system, tokenizer.chat, tokenizer.path": [
        ({"tokenizer__system": "x"}, "system='x' needs a tokenizer with a chat template"),
        ({"tokenizer__chat": "yes"}, "chat=yes needs a tokenizer with a chat template"),
    ],
    "task.name, task.mixture.sets": [({"task__name": "mixture"}, "two or more tasks with weights")],
    "curriculum.low, curriculum.high": [
        ({"curriculum__low": 0.9}, "curriculum.low=0.9 is above curriculum.high=0.8"),
    ],
    "curriculum.difficulty, curriculum.selection": [
        (
            {"curriculum__difficulty": "level"},
            "curriculum.selection=easy_to_hard alone, not with shuffled",
        ),
    ],
    "environment.name, task.name": [
        ({"environment__name": "by_set(tools='calculator')"}, "use task.name=mixture"),
    ],
    "environment.name, task.mixture.sets": [
        (SETS | {"environment__name": "by_set(tool='calculator')"}, "did you mean 'tools'"),
    ],
    "task.reward, environment.name": [
        ({"task__reward": "exact + environment"}, "set environment.name"),
    ],
    "task.reward, environment.name: no rewards": [
        (
            {"environment__name": "python(seconds=2)", "task__reward": "environment"},
            "environment.name=python(seconds=2) gives no rewards",
        ),
    ],
    "environment.workers, trainer.group_size, evaluation.samples": [
        (
            {"environment__name": "guess", "environment__workers": 7},
            "environment.workers=7 is less than the 8 episodes",
        ),
        (
            {
                "environment__name": "guess",
                "environment__workers": 9,
                "evaluation__samples": 10,
            },
            "less than the 10 episodes",
        ),
    ],
    "trainer.batching, environment.rewrites": [
        (SHARED | {"tokenizer__path": "somewhere"}, "environment.rewrites=refuse"),
        (SHARED | {"environment__name": "agent(command='true')"}, "as those of agents"),
    ],
    "reward.addresses, reward.secret_path": [
        ({"reward__addresses": "judge:1"}, "needs reward.secret_path=FILE"),
    ],
    "evaluation.by, sync.mode": [
        ({"evaluation__by": "explorers"}, "sync.mode=one_step_off_policy has none"),
    ],
    "evaluation.slots, evaluation.by": [
        ({"evaluation__slots": 8}, "but the trainer makes them"),
        (ASYNCHRONOUS | {"evaluation__slots": 8, "evaluation__by": "trainer"}, "leave it out"),
    ],
    "checkpoint.best, evaluation.samples": [
        (BEST | {"checkpoint__best": "pass@8"}, "checkpoint.best with evaluation.samples=1"),
    ],
    "checkpoint.best, task.reward": [
        (VOTE | {"task__reward": "code"}, "use mean@4 or pass@k"),
        (VOTE | {"task__reward": "length_band(greatest=9) + exact"}, "reads an answer to vote on"),
    ],
    "checkpoint.best, evaluation.every_steps": [
        ({"checkpoint__best": "accuracy"}, "set evaluation.every_steps"),
    ],
    "checkpoint.best, evaluation.by": [
        (ASYNCHRONOUS | BEST | {"evaluation__by": "explorers"}, "Use evaluation.by=trainer"),
    ],
    "checkpoint.memory_directory": [
        (
            {"checkpoint__memory_directory": "shm"},
            "checkpoint.memory_directory=shm must be an absolute path",
        ),
    ],
    "checkpoint.memory_every_steps, launch.hosts": [
        (
            HOST
            | {
                "trainer__processes": 2,
                "trainer__mesh__data": 2,
                "launch__hosts": "trainer/1=10.0.0.2",
                "checkpoint__memory_every_steps": 2,
            },
            "checkpoint.memory_every_steps=2 writes to the memory of one machine",
        ),
    ],
    "launch.hosts, launch.host": [
        ({"launch__hosts": "explorer1=10.0.0.2"}, "=10.0.0.2 needs launch.host"),
    ],
    "launch.hosts, launch.colocate": [
        (
            HOST | {"launch__hosts": "trainer=10.0.0.2", "launch__colocate": True},
            "leave out one of them",
        ),
    ],
    "launch.hosts, explorer.count": [
        (
            HOST | {"launch__hosts": "explorer2=10.0.0.2"},
            "is not one of explorer1, trainer; did you mean 'explorer1'",
        ),
    ],
    "trainer.processes, trainer.mesh": [
        ({"trainer__processes": 2}, "trainer.processes=2 cannot share trainer.mesh"),
        (
            {"explorer__mesh__tensor": 3, "explorer__processes": 2},
            "tensor=3, which is 3 devices, evenly",
        ),
    ],
    "launch.colocate, trainer.processes, explorer.processes": [
        (
            {"launch__colocate": True, "trainer__processes": 2, "trainer__mesh__fsdp": 2},
            "explorer.processes=1, not 2 and 1",
        ),
    ],
    "launch.share_devices, launch.colocate": [
        ({"launch__share_devices": True}, "use it with launch.colocate=true"),
    ],
    "sync.transfer, launch.colocate": [
        ({"launch__colocate": True, "sync__transfer": "server"}, "use sync.transfer=collective"),
    ],
    "master.port, replay.port": [
        ({"master__port": 8000, "replay__port": 8000}, "are both 8000"),
    ],
    "trainer.groups_per_step, trainer.mesh": [
        (
            ASYNCHRONOUS | {"trainer__mesh__fsdp": 3},
            "optimizer.updates_per_batch = 128 rows cannot be cut evenly into 3 parts",
        ),
    ],
    "rollout.slots, explorer.mesh": [
        (
            ASYNCHRONOUS | {"explorer__mesh__data": 2, "rollout__slots": 5},
            "5 slots (rollout.slots) cannot be cut evenly into 2 parts",
        ),
    ],
    "sync.interval, sync.offset, sync.max_staleness": [
        (
            ASYNCHRONOUS | {"sync__interval": 4, "sync__max_staleness": 2},
            "sync.max_staleness=2 is below interval - 1 = 3",
        ),
        (
            ASYNCHRONOUS | {"sync__interval": 4, "sync__max_staleness": 2},
            "Use at least 3",
        ),
    ],
    "model.experts.count, model.experts.per_token": [
        (
            {"model__experts__count": 3, "model__experts__per_token": 4},
            "must be from 1 to model.experts.count=3",
        ),
    ],
    "model.num_heads, model.num_kv_heads": [({"model__num_kv_heads": 3}, "num_kv_heads=3")],
    "model.vision": [
        ({"model__vision__image_size": 20}, "of a tile's side: 1, 25"),
        ({"model__vision__image_size": 30}, "image_size=30 must be a multiple"),
        ({"model__vision__image_size": 32, "model__vision__num_heads": 5}, "num_heads=5"),
    ],
    "rollout.progress_tokens, environment.name": [
        (
            {"rollout__progress_tokens": 64, "environment__name": "agent(command='true')"},
            "cannot be made to ask the same again: leave rollout.progress_tokens at 0",
        ),
    ],
    "rollout.progress_tokens, rollout.routing_replay": [
        (
            {
                "rollout__progress_tokens": 64,
                "rollout__routing_replay": True,
                "model__experts__count": 2,
            },
            "progress_tokens=64 does not keep the experts",
        ),
    ],
    "model.batch_invariant, trainer.batching": [
        (
            {"model__batch_invariant": True, "trainer__batching": "shared"},
            "trainer.batching=shared (use packed)",
        ),
        (
            {"model__batch_invariant": True, "environment__name": "agent"},
            "not with episodes of several segments",
        ),
    ],
    "model.batch_invariant, model.lora.rank, explorer.dtype": [
        ({"model__batch_invariant": True, "model__lora__rank": 4}, "not with adapters"),
        (
            {"model__batch_invariant": True, "explorer__dtype": "bfloat16"},
            "explorer.dtype must be that of the trainer",
        ),
        (
            {"model__batch_invariant": True, "explorer__quantization": "int8"},
            "not with explorer.quantization",
        ),
    ],
    "model.batch_invariant, explorer.mesh, trainer.mesh": [
        (
            {"model__batch_invariant": True, "trainer__mesh__tensor": 2},
            "use meshes of data and fsdp",
        ),
        (
            {"model__batch_invariant": True, "explorer__mesh__context": 2},
            "context=1 for explorers",
        ),
    ],
    "explorer.engine": [
        ({**BY_ENGINE, "explorer__engine": engine}, "must be vllm:http://HOST:PORT")
        for engine in (
            "vllm:127.0.0.1:8000",
            "http://127.0.0.1:8000",
            "vllm:http://127.0.0.1",
            "vllm:http://127.0.0.1:80000",
            "vllm:http://127.0.0.1:8000/v1",
        )
    ]
    + [
        (
            {**BY_ENGINE, "explorer__engine": "vllm:http://me:pw@127.0.0.1:8000"},
            "names a user of 127.0.0.1:8000",
        )
    ],
    "explorer.engine, explorer.count": [
        ({**BY_ENGINE, "explorer__engine": f"{ENGINE},{ENGINE}"}, "2 engines for 1 explorers"),
        (
            {
                "sync__mode": "multi_explorer",
                "explorer__count": 2,
                "explorer__engine": f"{ENGINE},{ENGINE}/",
            },
            "for two explorers",
        ),
        (
            {**BY_ENGINE, "sync__mode": "multi_explorer", "explorer__count": 2},
            "1 engines for 2 explorers",
        ),
    ],
    "explorer.engine, sync.pull": [
        ({"explorer__engine": ENGINE}, "Use sync.mode=asynchronous"),
    ],
    "explorer.engine_transfer, explorer.engine": [
        ({"explorer__engine_transfer": "delta"}, "is for a served engine: set explorer.engine"),
    ],
    "explorer.engine, rollout, model, algorithm.score_centering": [
        ({**BY_ENGINE, name: value}, "needs the explorers' own engines")
        for name, value in (
            ("rollout__top_k", 5),
            ("rollout__top_p", 0.9),
            ("rollout__min_p", 0.1),
            ("rollout__min_new_tokens", 2),
            ("rollout__speculation", "always"),
            ("explorer__quantization", "int8"),
            ("model__batch_invariant", True),
            ("algorithm__score_centering", "topk"),
        )
    ],
    "algorithm.name, explorer.engine, algorithm.allow_unsafe": [
        (
            {
                "explorer__engine": ENGINE,
                "sync__mode": "custom",
                "sync__pull": "latest",
                "sync__max_staleness": 0,
                "algorithm__name": "rloo",
            },
            "whose log-probabilities differ from the trainer's",
        ),
    ],
    "rollout.speculation, explorer.processes": [
        (
            {"rollout__speculation": "auto", "explorer__processes": 2},
            "use rollout.speculation=always or off",
        ),
    ],
    "rollout.routing_replay, model.experts": [
        ({"rollout__routing_replay": True}, "use a model with a mixture of experts"),
    ],
}
"""By rule: settings that break it, and a part of the message with the value or the way out."""


def test_every_rule_has_an_example_and_names_settings_that_there_are():
    assert EXAMPLES.keys() == table.RULES.keys()
    for name in table.RULES:
        assert set(name.partition(":")[0].split(", ")) <= NAMES


def test_what_breaks_a_rule_is_refused_by_it_with_the_setting_the_value_and_the_way_out(
    subtests, monkeypatch
):
    for rule, fields, part in [(rule, *one) for rule, some in EXAMPLES.items() for one in some]:
        with subtests.test(f"{rule}: {fields}"):
            with pytest.raises(ConfigError):
                settings_with(**fields)
            with monkeypatch.context() as without:
                without.setattr(table, "RULES", {rule: table.RULES[rule]})
                with pytest.raises(ConfigError, match=re.escape(part)) as refused:
                    settings_with(**fields)
            settings = rule.partition(":")[0].split(", ")
            assert any(one.rpartition(".")[2] in str(refused.value) for one in settings)


@pytest.mark.parametrize(("store", "package"), [("gs", "gcsfs"), ("s3", "s3fs")])
def test_a_bucket_needs_what_reaches_it(store, package, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    told = rf"sync.directory={store}://b needs {package}: pip install {package}"
    with pytest.raises(ConfigError, match=told):
        settings_with(sync__transfer="checkpoint", sync__directory=f"{store}://b")


@pytest.mark.parametrize("reward", ["math", "exact + 0.1 * length_band(greatest=9)", "mine.py:one"])
def test_the_best_snapshot_may_be_that_of_the_best_vote(reward):
    assert settings_with(**VOTE, task__reward=reward).checkpoint.best == "majority@4"


def test_only_algorithms_that_take_no_notice_of_the_old_policy_are_dangerous():
    dangerous = {
        name
        for name in ALGORITHMS
        if danger(
            settings_with(
                algorithm__name=name,
                algorithm__allow_unsafe=True,
                trainer__group_size=2,
                teacher__path="there" if ALGORITHMS[name].has_teacher else None,
            )
        )
    }
    assert dangerous == {"rloo", "opo", "remax"}
