"""Rules of evaluations and of snapshots that need them."""

from __future__ import annotations

import os

from rl_sync.records.accuracy import MAJORITY, metric_names
from rl_sync.rewards.reward_catalog import may_vote
from rl_sync.settings.evaluation_settings import EXPLORERS
from rl_sync.settings.records import require
from rl_sync.settings.rules.rule import Rule
from rl_sync.settings.run_settings import RunSettings
from rl_sync.spelling import require_one_of


def _best_metric(s: RunSettings) -> None:
    if (best := s.checkpoint.best) is not None:
        samples = s.evaluation.samples
        name = f"checkpoint.best with evaluation.samples={samples}: the metric"
        require_one_of(name, best, tuple(metric_names(samples)))


EVALUATION_RULES: dict[str, Rule] = {
    "evaluation.by, sync.mode": lambda s: require(
        s.evaluation.by != EXPLORERS or (s.schedule.pull == "latest" and s.explorers > 0),
        f"evaluation.by={s.evaluation.by} needs explorers that run at their own pace, and"
        f" sync.mode={s.sync.mode} has none: use sync.mode=asynchronous or multi_explorer, or"
        " evaluation.by=trainer.",
    ),
    "evaluation.slots, evaluation.by": lambda s: require(
        s.evaluation.slots is None or s.evaluates_on_explorers,
        f"evaluation.slots={s.evaluation.slots} is for evaluations by explorers beside their"
        " rollouts, but the trainer makes them: leave it out, or set evaluation.by=explorers where"
        " pulls are latest.",
    ),
    "checkpoint.best, evaluation.samples": _best_metric,
    "checkpoint.best, task.reward": lambda s: require(
        s.task.reward is None
        or not (s.checkpoint.best or "").startswith(MAJORITY)
        or may_vote(s.task.reward),
        f"checkpoint.best={s.checkpoint.best} needs a reward that reads an answer to vote on, and"
        f" task.reward={s.task.reward} reads none: use mean@{s.evaluation.samples} or pass@k.",
    ),
    "checkpoint.best, evaluation.every_steps": lambda s: require(
        s.checkpoint.best is None or s.evaluation.every_steps > 0,
        f"checkpoint.best={s.checkpoint.best} compares evaluations between steps, and there are"
        " none: set evaluation.every_steps.",
    ),
    "checkpoint.best, evaluation.by": lambda s: require(
        s.checkpoint.best is None or s.evaluation.by != EXPLORERS,
        f"checkpoint.best={s.checkpoint.best} does not fit evaluation.by={s.evaluation.by}:"
        " explorers may evaluate a version of which there is no snapshot. Use"
        " evaluation.by=trainer.",
    ),
    "checkpoint.memory_directory": lambda s: require(
        os.path.isabs(s.checkpoint.memory_directory),
        f"checkpoint.memory_directory={s.checkpoint.memory_directory} must be an absolute path, as"
        " processes may start in other folders.",
    ),
    "checkpoint.memory_every_steps, launch.hosts": lambda s: require(
        not s.checkpoint.memory_every_steps
        or not any(name.startswith("trainer/") for name in s.launch.elsewhere),
        f"checkpoint.memory_every_steps={s.checkpoint.memory_every_steps} writes to the memory of"
        f" one machine, and launch.hosts={s.launch.hosts} puts the trainer's processes on several:"
        " leave out one of them.",
    ),
}
