"""Evaluation without a run, on the devices of this process."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from rl_sync.messages.scoring_calls import CompletionToScore
from rl_sync.models import lora
from rl_sync.models.sharding import Layout
from rl_sync.rewards.rubric import Rubric
from rl_sync.role_names import explorer_name
from rl_sync.roles.assembly import wiring
from rl_sync.roles.assembly.engines import rollout_engine
from rl_sync.roles.assembly.parameters import parameters_of
from rl_sync.roles.evaluation.evaluator import EvaluationResults, EvaluationSet, completed
from rl_sync.roles.explorer.episode_wiring import playing
from rl_sync.roles.saved_policy import load_policy, step_named
from rl_sync.scoring.judging import SOLVING_SCORE, first_score, to_judge
from rl_sync.settings.records import ConfigError, require
from rl_sync.settings.run_settings import RunSettings
from rl_sync.tasks.task import Task
from rl_sync.types import Params


class PolicySource(NamedTuple):
    """The policy to evaluate.

    Attributes:
      workdir: work directory of the run; None for `model.path` of the settings.
      step: name of the snapshot; see `rl_sync.roles.saved_policy.step_named`.
    """

    workdir: Path | None = None
    step: str | None = None


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """A measured evaluation with all its completions.

    Attributes:
      policy: description of the policy.
      values: see `rl_sync.records.accuracy.measure`.
      completions: completions with their scores, problem by problem.
      generated_secs, judged_secs: times of generation and of scoring.
    """

    policy: str
    values: dict[str, float]
    completions: list[dict[str, Any]]
    generated_secs: float
    judged_secs: float


def evaluate(settings: RunSettings, source: PolicySource, say: Callable[[str], None]) -> Evaluation:
    """Evaluates a policy on held-out problems.

    Args:
      say: gets a line for the user when completions wait for a reward server.

    Raises:
      ConfigError: the policy cannot be loaded, or the reward cannot be made.
      RunEndedError: the weights are broken.
    """
    require(
        not settings.algorithm.scores,
        f"algorithm.name={settings.algorithm.name} trains a reward model, which does not"
        " generate: its accuracy on held-out pairs is in the run's metrics.jsonl, between steps"
        " as often as evaluation.every_steps says.",
    )
    task = wiring.load_task(settings)
    wiring.check_reward(task)
    wiring.check_reward_servers(settings, task)
    for note in wiring.try_reward(settings, task):
        say(note)
    examination = wiring.examination(settings, task)
    layout = wiring.own_layout(settings, explorer_name(1))
    policy, params = _policy(settings, source, task, layout)
    started = time.monotonic()
    player = playing(settings, task, rollout_engine(settings, task, layout))
    items = examination.written(completed(player, params, examination))
    generated = time.monotonic()
    sheet, completions = _judged(settings, task, examination, items, say)
    ended = time.monotonic()
    return Evaluation(policy, sheet.measure(), completions, generated - started, ended - generated)


def _policy(
    settings: RunSettings, source: PolicySource, task: Task, layout: Layout
) -> tuple[str, Params]:
    if source.workdir is not None:
        wanted = step_named(source.workdir, source.step)
        step, params = load_policy(source.workdir, settings, task, layout, wanted)
        return f"trainer step {step} of {source.workdir}", params
    if settings.model.path is None:
        raise ConfigError(
            "There is no policy to evaluate: give --model=CHECKPOINT, or --workdir=RUN for a run's"
            " snapshot."
        )
    model = wiring.model_config(settings, task)
    params = parameters_of(settings, task, layout).initial()
    return str(settings.model.path), lora.merge(model, params) if model.lora else params


def _judged(
    settings: RunSettings,
    task: Task,
    examination: EvaluationSet,
    items: list[CompletionToScore],
    say: Callable[[str], None],
) -> tuple[EvaluationResults, list[dict[str, Any]]]:
    """Scores completions by the reward; returns the results, and the completions as records."""
    terms, sheet = (
        Rubric(task.reward).labels,
        EvaluationResults(examination, settings.evaluation.category),
    )
    with contextlib.closing(wiring.judge_of(settings, task, say)) as judge:
        judged = judge.judge([to_judge(task, item) for item in items])
    records = []
    for item, one in zip(items, judged, strict=True):
        score = first_score(one, terms)
        sheet.add(item, one, score)
        records.append(
            {
                "problem": item.prompt_id,
                "sample": item.sample,
                "prompt": task.held_out[item.prompt_id].text,
                "completion": item.text,
                "truncated": item.truncated,
                "score": one.score,
                "solved": score >= SOLVING_SCORE,
                "answer": one.answer,
                "why": one.why,
            }
        )
    return sheet, records
