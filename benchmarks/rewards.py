"""Throughput of explorers whose completions take long to judge, and the cost of judging itself.

    python benchmarks/rewards.py [--seeds=3] [--rollouts=30] [--rollout_secs=0.5]

**Throughput.** A loop does what an explorer does: it generates a rollout (which here only takes its
time, `--rollout_secs`, drawn within ±20 % with the seed) and hands the groups to the explorer's own
`GroupDelivery`. The delivery has them judged by the master's own `MasterScoring`, in worker
processes, and inserts them into a buffer. The reward takes nothing, as long as a rollout, or twice
as long; there are as many workers as completions in flight. The cases run in turns, seed by seed.
Each figure is groups a second, and its ratio to that of the reward that takes nothing, with the
same seed.

**Judging.** Completions a second through the workers, for `exact` and for a reward of 1 ms, beside
the same rubric called in a loop in this process.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rl_sync.cluster.pending import Await
from rl_sync.messages.scoring_calls import Scores
from rl_sync.ports.clock_port import SystemClock
from rl_sync.records.spans import SpanRecorder
from rl_sync.rewards.judgement import Completion
from rl_sync.rewards.reward_settings import RewardSettings
from rl_sync.rewards.rubric import Rubric, ScoringRequest
from rl_sync.role_names import MASTER
from rl_sync.roles.explorer.group_delivery import GroupDelivery
from rl_sync.scoring.judging import MasterScoring
from rl_sync.scoring.local_scorer import LocalScorer
from rl_sync.tasks.tokenizers.tokenizer import CharacterTokenizer
from rl_sync.types import Group, Prompt
from rl_sync.weights.agreement import alone
from rl_sync.workdir import Workdir

TIMED = Path(__file__).with_name("timed_rewards.py")
GROUPS, GROUP_SIZE, TOKENS = 4, 4, 16
COMPLETIONS = GROUPS * GROUP_SIZE
TASK: Any = types.SimpleNamespace(
    train=[Prompt(i, f"{i}+{i}=", str(2 * i)) for i in range(64)],
    held_out=[],
    reward="exact",
    tokenizer=CharacterTokenizer("0123456789+="),
    max_completion_tokens=TOKENS,
)


class Session:
    """The part of a session that a delivery needs; calls go to the scoring in this process."""

    leads = True
    clock = SystemClock()
    agree = staticmethod(alone)

    def __init__(self, judging: MasterScoring) -> None:
        patient: Any = types.SimpleNamespace
        self.settings = patient(
            groups_ahead=COMPLETIONS,
            launch=patient(wait_secs=600.0),
            reward=patient(limit_secs=60.0),
            algorithm=patient(screening=patient(replaces=False)),
            replay=patient(priority="variance", sampler="fifo"),
        )
        self.facts: dict[str, Any] = {}
        self.spans = SpanRecorder(None, "explorer1")
        self._judging = judging

    def call(self, call: Any) -> Any:
        if isinstance(call, Await):
            items = call.call.items
            return Scores(self._judging.verdicts(items), [item.lease_id for item in items])
        return None

    def check(self) -> None:
        pass

    def deadline(self, what: str, whom: str) -> Callable[[], None]:
        del what, whom
        return self.check

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        yield


class Buffer:
    """Counts the groups that are inserted."""

    may_restart = False

    def __init__(self) -> None:
        self.groups, self.changed = 0, threading.Condition()

    def insert_many(self, table: str, items: list[Any], **options: Any) -> None:
        del table, options
        with self.changed:
            self.groups += len(items)
            self.changed.notify_all()


def group_of(lease: int) -> Group:
    """Makes a group of completions of one problem."""
    shape = (GROUP_SIZE, 2 * TOKENS)
    mask = np.zeros(shape, bool)
    mask[:, TOKENS:] = True
    return Group(
        lease_id=lease,
        ordinal=lease,
        prompt_id=lease % len(TASK.train),
        explorer=1,
        tokens=np.full(shape, 3, np.int32),
        completion_mask=mask,
        behavior_logprobs=np.zeros(shape, np.float32),
        policy_versions=np.zeros(shape, np.int32),
        rewards=np.zeros(GROUP_SIZE, np.float32),
        truncated=np.zeros(GROUP_SIZE, bool),
    )


class Case:
    """One reward with its workers, which stay for all seeds."""

    def __init__(self, name: str, secs: float, workers: int, directory: str) -> None:
        self.name = name
        reward = f"{TIMED}:slow(secs={secs})"
        settings = RewardSettings(workers=workers, record="none", memory_bytes=0)
        self._judges = LocalScorer(reward, settings)
        self._judges.judge([ScoringRequest({}, Completion(""))] * (2 * workers))  # Warm.
        self._judging = MasterScoring(
            TASK,
            self._judges,
            ["slow"],
            settings,
            workdir=Workdir(f"{directory}/{name}"),
            spans=SpanRecorder(None, MASTER),
            fail=print,
        )

    def groups_per_sec(self, seed: int, rollouts: int, rollout_secs: float) -> float:
        """Measures from the first rollout's start to the last one's insertion."""
        rng, buffer = np.random.default_rng(seed), Buffer()
        explorer: Any = types.SimpleNamespace(
            rewarded=lambda group, rewards, parts: group, in_parts=False
        )
        replay: Any = buffer
        session: Any = Session(self._judging)
        delivery = GroupDelivery(session, TASK, explorer, replay, "groups", beside=True)
        start = time.monotonic()
        for number in range(rollouts):
            time.sleep(rollout_secs * rng.uniform(0.8, 1.2))
            delivery.deliver([group_of(GROUPS * number + i) for i in range(GROUPS)])
        generated = time.monotonic() - start
        with buffer.changed:
            assert buffer.changed.wait_for(lambda: buffer.groups == rollouts * GROUPS, 120)
        delivery.close()
        # The last rollouts are judged after the end; in a longer run this would not matter.
        return rollouts * GROUPS / generated

    def close(self) -> None:
        self._judging.close()


def throughput(seeds: int, rollouts: int, rollout_secs: float) -> None:
    """Prints groups a second of each case, and ratios to the first."""
    with tempfile.TemporaryDirectory() as directory:
        cases = [
            Case("nothing", 0.0, 1, directory),
            Case("1 rollout", rollout_secs, 2 * COMPLETIONS, directory),
            Case("2 rollouts", 2 * rollout_secs, 3 * COMPLETIONS, directory),
        ]
        found: dict[str, list[float]] = {case.name: [] for case in cases}
        for seed in range(seeds):
            for case in cases:
                found[case.name].append(case.groups_per_sec(seed, rollouts, rollout_secs))
        for case in cases:
            case.close()
    print("reward takes   groups/s (min median max)     ratio (min median max)")
    base = found["nothing"]
    for name, values in found.items():
        ratios = [value / other for value, other in zip(values, base, strict=True)]
        print(f"{name:<14} {spread(values)}      {spread(ratios)}")


def judging(seeds: int, workers: int) -> None:
    """Prints completions a second through workers, and in this process."""
    print("\nreward        completions/s in workers     in this process      (min median max)")
    counts = {"exact": 20_000, f"{TIMED}:busy": 2_000}
    for reward, count in counts.items():
        items = [
            ScoringRequest(prompt.fields, Completion(prompt.answer, [3] * TOKENS))
            for i in range(count)
            for prompt in [TASK.train[i % len(TASK.train)]]
        ]
        rubric, judges = Rubric(reward), LocalScorer(reward, RewardSettings(workers=workers))
        judges.judge(items[: 100 * workers])
        in_workers, here = [], []
        for _ in range(seeds):
            in_workers.append(count / timed(judges.judge, items))
            here.append(count / timed(rubric.judge, items))
        judges.close()
        name = reward.rpartition(":")[2]
        print(f"{name:<12} {spread(in_workers, 0)}      {spread(here, 0)}")


def timed(function: Callable[[Any], object], *arguments: Any) -> float:
    """Returns the seconds that a call takes."""
    start = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start


def spread(values: list[float], digits: int = 3) -> str:
    """Writes the least, the median and the greatest."""
    three = (min(values), statistics.median(values), max(values))
    return " ".join(f"{value:>8.{digits}f}" for value in three)


def main() -> None:
    """Makes the measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="repetitions of each case")
    parser.add_argument("--rollouts", type=int, default=30, help="rollouts of each repetition")
    parser.add_argument("--rollout_secs", type=float, default=0.5, help="the time of a rollout")
    parser.add_argument("--workers", type=int, default=2, help="workers of the cost of judging")
    arguments = parser.parse_args()
    throughput(arguments.seeds, arguments.rollouts, arguments.rollout_secs)
    judging(arguments.seeds, arguments.workers)


if __name__ == "__main__":
    main()
