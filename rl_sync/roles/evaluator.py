"""Evaluations on held-out problems: their requests, and the completions to be judged."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, cast

from rl_sync.cluster.master_calls import AwaitEvaluations, HandInEvaluation
from rl_sync.cluster.scoring_calls import CompletionToScore
from rl_sync.cluster.session import Session
from rl_sync.cluster.user_errors import RunEndedError
from rl_sync.ending import RESULTS
from rl_sync.isolation.codec import Records
from rl_sync.records import accuracy
from rl_sync.records.accuracy import JudgedAnswer, Problem
from rl_sync.records.spans import SpanKind
from rl_sync.rewards.judgement import Judgement
from rl_sync.rollout.engine import Engine, NonFiniteLogitsError
from rl_sync.rollout.episode_engine import EpisodeEngine
from rl_sync.rollout.episode_records import EpisodeRequest, Played
from rl_sync.rollout.request import CompletionRequest, FinishedCompletion
from rl_sync.rollout.sampling import Sampling
from rl_sync.scoring.score_requests import await_call, judged, written
from rl_sync.tasks.task import Task
from rl_sync.types import Params, Prompt

_SEED = 0x65766C
"""A word of the seeds of evaluations, so that their draws are not those of rollouts."""


@dataclasses.dataclass(frozen=True)
class EvaluationSet:
    """The held-out problems of an evaluation, and how they are completed.

    The same weights give the same completions at every evaluation.

    Attributes:
      task: the problems.
      sampling: how completions are drawn.
      problems: the most problems.
      samples: completions of each problem.
      seed: the seed of the run.
      plays: whether an environment answers the policy.
    """

    task: Task
    sampling: Sampling
    problems: int
    samples: int = 1
    seed: int = 0
    plays: bool = False

    @property
    def prompts(self) -> Sequence[Prompt]:
        """The problems."""
        return self.task.held_out[: self.problems]

    @property
    def requests(self) -> Sequence[CompletionRequest | EpisodeRequest]:
        """A request for each problem, in their order."""
        if self.plays:
            return [
                EpisodeRequest(
                    row=prompt.fields,
                    sampling=self.sampling,
                    completions=self.samples,
                    seed=(_SEED, self.seed, prompt.prompt_id),
                    number=number,
                    examines=True,
                )
                for number, prompt in enumerate(self.prompts)
            ]
        tokens, lengths = self.task.encode_prompts([prompt.text for prompt in self.prompts])
        return [
            CompletionRequest(
                row[:length], self.sampling, self.samples, (_SEED, self.seed, prompt.prompt_id)
            )
            for prompt, row, length in zip(self.prompts, tokens, lengths, strict=True)
        ]

    def written(
        self, generated: Sequence[Sequence[FinishedCompletion | Played]]
    ) -> list[CompletionToScore]:
        """Describes the completions of each problem to those that judge."""
        return [
            written(
                self.task,
                one.last_reply.tolist() if isinstance(one, Played) else one.tokens.tolist(),
                prompt_id=prompt.prompt_id,
                held_out=True,
                sample=sample,
                ending=one.ending if isinstance(one, Played) else None,
            )
            for prompt, completions in zip(self.prompts, generated, strict=True)
            for sample, one in enumerate(completions)
        ]


class Measure(Protocol):
    """Evaluations of a model on held-out problems."""

    def hand_in(self, params: Params, moment: str, step: int) -> None:
        """Evaluates the model after a step; the master publishes the result.

        Args:
          moment: names the evaluation; see `HandInEvaluation`.
        """
        ...

    def accuracy(self, params: Params, problems: int) -> dict[str, float]:
        """Returns the accuracy on at most so many problems, and what else describes it."""
        ...


class Evaluator(NamedTuple):
    """Completes held-out problems with an engine of its own.

    Attributes:
      session: the trainer's part in the run; the master has completions judged.
      examination: the problems of an evaluation.
      greedy: the sampling of a probe, which takes the likeliest tokens.
      engine: makes an engine.
    """

    session: Session
    examination: EvaluationSet
    greedy: Sampling
    engine: Callable[[], Engine | EpisodeEngine]

    def hand_in(self, params: Params, moment: str, step: int) -> None:
        """Generates the completions of an evaluation, and leaves their judging to the master."""
        with self.session.spans.span(SpanKind.EVALUATION, step=step):
            items = self._completed(params, self.examination)
            self.session.call(HandInEvaluation(moment, step, Records(items)))

    def accuracy(self, params: Params, problems: int) -> dict[str, float]:
        """Measures the accuracy of the likeliest completions, and waits for it.

        Args:
          problems: the most problems.

        Returns:
          See `rl_sync.records.accuracy.measure`.
        """
        fewer = min(problems, self.examination.problems)
        probe = dataclasses.replace(
            self.examination, sampling=self.greedy, samples=1, problems=fewer
        )
        task = probe.task
        with self.session.spans.span(SpanKind.EVALUATION, problems=len(probe.prompts)) as said:
            verdicts = judged(self.session, self._completed(params, probe)).verdicts
            values = accuracy.measure(
                [
                    Problem(
                        [JudgedAnswer(None if one.score is None else one.solved)],
                        task.is_seen(asked),
                    )
                    for asked, one in zip(probe.prompts, verdicts, strict=True)
                ]
            )
            said.update(values)
        return values

    def _completed(self, params: Params, examination: EvaluationSet) -> list[CompletionToScore]:
        # A new one each time: it holds on to weights that train steps donate, and to its cache.
        engine = self.engine()
        count = len(examination.prompts) * examination.samples

        def progress() -> tuple[int, int]:
            return (count - engine.unfinished if engine.stats.decode_tokens else 0), count

        with self.session.showing(progress):
            return examination.written(completed(engine, params, examination))


def completed(
    engine: Engine | EpisodeEngine, params: Params, examination: EvaluationSet
) -> Sequence[Sequence[FinishedCompletion | Played]]:
    """Completes the problems of an evaluation; returns the completions of each.

    The environments of an engine of episodes are ended.

    Raises:
      RunError: the weights are broken.
    """
    engine.load(params, version=0)
    try:
        return engine.generate(cast(Any, examination.requests))  # Which the engine is made for.
    except NonFiniteLogitsError as error:
        raise RunEndedError(f"The policy cannot be evaluated. {error}") from error
    finally:
        if isinstance(engine, EpisodeEngine):
            engine.close()


def await_evaluations(session: Session) -> None:
    """Waits until all evaluations that were handed in are measured.

    Raises:
      TimeoutError: nothing was judged for too long; see
        `rl_sync.scoring.score_requests.await_call`.
      RunStoppedError: the run is being stopped.
    """
    wait = {"reason": "evaluations to be judged", "for_whom": "the master"}
    with session.spans.span(SpanKind.WAIT, **wait):
        await_call(session, AwaitEvaluations())


class EvaluationResults:
    """The judged completions of an evaluation, each of which counts once.

    Args:
      examination: the problems.
      category: the field of a row that names a problem's category.
    """

    def __init__(self, examination: EvaluationSet, category: str) -> None:
        self._examination, self._category = examination, category
        self._asked: set[tuple[int, int]] = set()
        self.answers: dict[tuple[int, int], JudgedAnswer] = {}
        self._games: dict[tuple[int, int], Mapping[str, float]] = {}

    def new(self, items: Sequence[CompletionToScore]) -> list[CompletionToScore]:
        """Returns those of some completions that were never here before, each once."""
        fresh = []
        for item in items:
            if (key := (item.prompt_id, item.sample)) not in self._asked:
                self._asked.add(key)
                fresh.append(item)
        return fresh

    def add(self, item: CompletionToScore, judgement: Judgement, solved: bool) -> None:
        """Takes the judgement of a completion; another one of the same completion is ignored."""
        known = solved if judgement.is_known else None
        key = item.prompt_id, item.sample
        self.answers.setdefault(key, JudgedAnswer(known, judgement.answer))
        if item.ending is not None and item.ending.seat is not None and judgement.is_known:
            self._games.setdefault(key, item.ending.metrics)

    def forget(self) -> None:
        """Drops the answers, which are measured; whatever comes after them is ignored."""
        self.answers, self._games = {}, {}

    @property
    def is_complete(self) -> bool:
        """True where every completion of every problem is judged."""
        return len(self.answers) == len(self._examination.prompts) * self._examination.samples

    @property
    def problems(self) -> list[Problem]:
        """The problems with the answers so far, in their order."""
        task, samples = self._examination.task, range(self._examination.samples)
        return [
            Problem(
                [
                    self.answers[prompt.prompt_id, sample]
                    for sample in samples
                    if (prompt.prompt_id, sample) in self.answers
                ],
                is_seen=task.is_seen(prompt),
                category=str((prompt.row or {}).get(self._category) or ""),
            )
            for prompt in self._examination.prompts
        ]

    def measure(self) -> dict[str, float]:
        """Computes the metrics; see `rl_sync.records.accuracy.measure`.

        Of games of several players also `games_won`, `games_drawn` and `games_lost`, as shares of
        those that were judged; a game that a limit cut is none of them.
        """
        values = accuracy.measure(self.problems, self._examination.samples)
        for name in RESULTS if self._games else ():
            total = sum(game.get(name, 0.0) for game in self._games.values())
            values[f"games_{name}"] = total / len(self._games)
        return values
