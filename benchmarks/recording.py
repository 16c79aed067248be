"""Cost of recording rollouts, as a share of a trainer step, in turns with steps without records.

    python benchmarks/recording.py [--config=configs/arithmetic.py] [--steps=20] [--turns=5]
        [--seeds=3] [--whole]

The trainer of a config takes steps on groups of its size, made of its own prompts and random
completions, without explorers, which would make a step of a run longer. In turns of `--steps`
steps, rollouts are recorded or not. For each seed it prints the seconds of a step with and without
(the least of the turns, and their ratio), the CPU seconds of the recorder's thread as a share of
the step's time, and the records of a step. `--whole` records every group, whatever time it takes;
otherwise the setting `observe.rollout_time` holds.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from rl_sync.isolation.codec import decode, encode
from rl_sync.learning.credit import ADVANTAGES_NAME
from rl_sync.messages.scoring_calls import Judgements
from rl_sync.records.rollouts.rollout_parts import RolloutParts
from rl_sync.role_names import TRAINER
from rl_sync.roles.assembly import wiring
from rl_sync.roles.assembly.build import trainer_of
from rl_sync.roles.trainer.rollout_recorder import Budget, RolloutRecorder
from rl_sync.roles.trainer.rollout_writer import FIELDS, Chosen, Figures, RolloutWriter
from rl_sync.settings.config_reading import read_settings
from rl_sync.settings.run_settings import RunSettings
from rl_sync.tasks.task import Task
from rl_sync.types import Group


class Spent(NamedTuple):
    """A turn: seconds a step, CPU seconds of the recorder a step, and records a step."""

    secs: float
    recorder_secs: float
    records: float


class Clock:
    """A clock that stops in turns without records, so that no time is saved up in them."""

    def __init__(self) -> None:
        self.skipped_secs = 0.0

    def __call__(self) -> float:
        """Returns seconds."""
        return time.monotonic() - self.skipped_secs


class Counted(Budget):
    """A budget that remembers the time that was spent."""

    def __init__(self, share: float, clock: Clock):
        super().__init__(share, clock=clock)
        self.secs, self.records = 0.0, 0

    def spend(self, secs: float, count: int) -> None:
        """See `Budget`."""
        super().spend(secs, count)
        self.secs, self.records = self.secs + secs, self.records + count


def settings_of(path: str) -> RunSettings:
    """Reads a config file."""
    spec = importlib.util.spec_from_file_location("config", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return read_settings({**module.get_config().to_dict(), "workdir": "unused"})


def groups_of(settings: RunSettings, task: Task, seed: int) -> list[Group]:
    """Makes the groups of a step: prompts of the task, completions of any length at random."""
    rng = np.random.default_rng(seed)
    size, width = settings.trainer.group_size, task.row_tokens
    made = []
    for lease in range(settings.trainer.groups_per_step):
        prompt = task.train[int(rng.integers(len(task.train)))]
        asked = task.tokenizer.encode_prompt(prompt.text)
        tokens = rng.integers(2, task.tokenizer.vocab_size, (size, width)).astype(np.int32)
        tokens[:, : len(asked)] = asked
        ends = len(asked) + rng.integers(1, task.max_completion_tokens + 1, size)
        at = np.arange(width)
        mask = (at >= len(asked)) & (at < ends[:, None])
        tokens[at >= ends[:, None]] = 0
        made.append(
            Group(
                lease_id=lease,
                ordinal=lease,
                prompt_id=prompt.prompt_id,
                explorer=1,
                tokens=tokens,
                completion_mask=mask,
                behavior_logprobs=np.where(mask, -rng.exponential(size=mask.shape), 0).astype("f4"),
                policy_versions=np.where(mask, 0, -1).astype(np.int32),
                rewards=rng.integers(0, 2, size).astype(np.float32),
            )
        )
    return made


def judgements(groups: int, group_size: int) -> Judgements:
    """Makes the master's answer about groups, encoded and decoded as in a run."""
    count = groups * group_size
    answer = Judgements(
        counts=[group_size] * groups,
        scores=[1.0] * count,
        whys=["the answer is '42'"] * count,
        components=[{"exact": 1.0}] * count,
        answers=["42"] * count,
        endings=[None] * count,
    )
    return decode(encode(answer))


def figures(metrics: Mapping[str, Any]) -> Figures:
    """Picks a step's records out of its metrics; rows are trajectories here."""
    return Figures(
        metrics[ADVANTAGES_NAME], {name: metrics[name] for name in FIELDS & metrics.keys()}
    )


def measured(settings: RunSettings, seed: int, arguments: argparse.Namespace) -> list[list[Spent]]:
    """Takes turns without and with records; returns those of each kind."""
    task = wiring.load_task(settings)
    layout = settings.layout(TRAINER, settings.trainer.mesh.shape.mesh(jax.local_devices()[:1]))
    trainer = trainer_of(settings, task, layout)
    state = trainer.begin(trainer.init(jax.random.key(seed)))
    groups = groups_of(settings, task, seed)
    batch = trainer.place(wiring.batching_of(settings, task).batch(groups))
    step = trainer.compile_step(state, batch)
    found: list[list[Spent]] = [[], []]
    with tempfile.TemporaryDirectory() as workdir:
        clock = Clock()
        budget = Counted(1.0 if arguments.whole else settings.observe.rollout_time, clock)
        recorder = RolloutRecorder(
            settings.observe,
            parts=RolloutParts(workdir),
            scribe=RolloutWriter(task),
            budget=budget,
        )
        with contextlib.closing(recorder):
            for turn in range(-1, 2 * arguments.turns):  # The first one is not counted.
                records = turn % 2
                before, count = budget.secs, budget.records
                started = time.monotonic()
                for number in range(arguments.steps):
                    chosen = recorder.choose(groups) if records else None
                    state, metrics = step(state, batch)
                    values: dict[str, Any] = jax.device_get(metrics)
                    if chosen is not None:
                        told = judgements(len(chosen), settings.trainer.group_size)
                        recorder.record(
                            number + 1, Chosen(chosen, told), functools.partial(figures, values)
                        )
                secs = time.monotonic() - started
                time.sleep(0.2)  # Records still in progress belong to this turn.
                clock.skipped_secs += 0.2 if records else time.monotonic() - started
                per = 1 / arguments.steps
                spent = Spent(
                    secs * per, (budget.secs - before) * per, (budget.records - count) * per
                )
                if turn >= 0:
                    found[records].append(spent)
    return found


def main() -> None:
    """Measures, and prints a line for each seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="configs/arithmetic.py")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--whole", action="store_true")
    arguments = parser.parse_args()
    settings = dataclasses.replace(settings_of(arguments.config), workdir="unused")
    shares = []
    for seed in range(arguments.seeds):
        without, with_records = measured(settings, seed, arguments)
        least, most = (min(turn.secs for turn in turns) for turns in (without, with_records))
        share = statistics.median(turn.recorder_secs / turn.secs for turn in with_records)
        records = statistics.median(turn.records for turn in with_records)
        shares.append(share)
        print(
            f"seed {seed}: {1000 * least:.1f} ms a step without, {1000 * most:.1f} with records"
            f" ({most / least:.3f}×); the recorder's CPU time is {share:.2%} of a step, for"
            f" {records:.0f} records",
            flush=True,
        )
    print(
        "recorder's share of a step, least / median / greatest:"
        f" {min(shares):.2%} / {statistics.median(shares):.2%} / {max(shares):.2%}"
    )


if __name__ == "__main__":
    main()
