"""Evaluations on held-out problems: their requests, and the completions to score."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, cast

from rl_sync.cluster.session import Session
from rl_sync.cluster.user_errors import RunEndedError
from rl_sync.ending import RESULTS, Ending
from rl_sync.isolation.codec import Records
from rl_sync.messages.master_calls import AwaitEvaluations, HandInEvaluation
from rl_sync.messages.scoring_calls import CompletionToScore
from rl_sync.records import accuracy
from rl_sync.records.accuracy import JudgedAnswer, Problem
from rl_sync.records.spans import SpanKind
from rl_sync.rewards.judgement import Judgement
from rl_sync.roles.token_recorder import TokenRecorder
from rl_sync.rollout.engine import NonFiniteLogitsError
from rl_sync.rollout.engine_interface import RolloutEngine
from rl_sync.rollout.episodes.episode_engine import EpisodeEngine
from rl_sync.rollout.episodes.episode_records import EpisodeRequest, Played
from rl_sync.rollout.request import CompletionRequest, FinishedCompletion
from rl_sync.rollout.sampling import Sampling
from rl_sync.rollout.stats import Stats
from rl_sync.scoring.judging import SOLVING_SCORE
from rl_sync.scoring.score_requests import await_call, begun_of, judged
from rl_sync.tasks.task import Task
from rl_sync.tasks.tokenizers.tokenizer import BEFORE_TOKENS
from rl_sync.types import NO_LEASE, Params, Prompt

NewEngine = Callable[[], RolloutEngine | EpisodeEngine]
"""A function that makes an engine."""

_SEED = 0x65766C
"""Word in the seeds of evaluations, so that these seeds differ from the seeds of rollouts."""


@dataclasses.dataclass(frozen=True)
class EvaluationSet:
    """The held-out problems of an evaluation, and the sampling of their completions.

    The same weights give the same completions at every evaluation.

    Attributes:
      task: the task with the problems.
      sampling: sampling choices of the completions.
      problems: maximum number of problems.
      samples: number of completions of each problem.
      seed: seed of the run.
      plays: whether the problems are episodes in an environment.
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
        """Returns a request for each problem, in order."""
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
        return [
            CompletionRequest(
                asked.ids,
                self.sampling,
                self.samples,
                (_SEED, self.seed, prompt.prompt_id),
                images=asked.images,
            )
            for prompt, asked in zip(self.prompts, self.task.asked(self.prompts), strict=True)
        ]

    @functools.cached_property
    def _prompt_ends(self) -> Sequence[Sequence[int]]:
        """The last ids of each prompt; none of episodes, which hold their own."""
        if self.plays:
            return [()] * len(self.prompts)
        expanded = self.task.encoder.expanded
        return [
            expanded(prompt.text, prompt.row).ids[-BEFORE_TOKENS:].tolist()
            for prompt in self.prompts
        ]

    def written(
        self, generated: Sequence[Sequence[FinishedCompletion | Played]]
    ) -> list[CompletionToScore]:
        """Returns the completions of each problem as records for scoring."""
        return [
            self._written(prompt, before, one)._replace(sample=sample)
            for prompt, before, completions in zip(
                self.prompts, self._prompt_ends, generated, strict=True
            )
            for sample, one in enumerate(completions)
        ]

    def _written(
        self, prompt: Prompt, before: Sequence[int], one: FinishedCompletion | Played
    ) -> CompletionToScore:
        ending: Ending | None = None
        if isinstance(one, Played):
            before, ending = one.before_last_reply.tolist(), one.ending
            tokens, is_cut = one.last_reply.tolist(), ending.is_cut
        else:
            tokens, is_cut = one.tokens.tolist(), one.finish == "length"
        tokenizer = self.task.tokenizer
        return CompletionToScore(
            prompt_id=prompt.prompt_id,
            held_out=True,
            lease_id=NO_LEASE,
            text=tokenizer.decode(tokens),
            tokens=tokens,
            truncated=is_cut,
            ending=ending,
            begun=begun_of(tokenizer, before, prompt, ending),
        )


class Measure(Protocol):
    """Evaluations of a model on held-out problems."""

    def hand_in(self, params: Params, moment: str, step: int) -> None:
        """Evaluates the model after a step; the master publishes the result.

        Args:
          moment: name of the evaluation; see `HandInEvaluation`.
        """
        ...

    def accuracy(self, params: Params, problems: int) -> dict[str, float]:
        """Returns the accuracy on at most `problems` problems, and related metrics."""
        ...


class Evaluator(NamedTuple):
    """Completes held-out problems with its own engine.

    Attributes:
      session: the trainer's session; the master scores completions.
      examination: the problems of an evaluation.
      greedy: sampling of a probe, which takes the likeliest tokens.
      engine: makes an engine.
      tokens: records the tokens; None if nothing records them.
    """

    session: Session
    examination: EvaluationSet
    greedy: Sampling
    engine: NewEngine
    tokens: TokenRecorder | None = None

    def hand_in(self, params: Params, moment: str, step: int) -> None:
        """Generates the completions of an evaluation, which the master then scores."""
        with self.session.spans.span(SpanKind.EVALUATION, step=step):
            items = self._completed(params, self.examination, step)
            self.session.call(HandInEvaluation(moment, step, Records(items)))

    def accuracy(self, params: Params, problems: int) -> dict[str, float]:
        """Measures the accuracy of greedy completions, and waits for the result.

        Args:
          problems: maximum number of problems.

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

    def _completed(
        self, params: Params, examination: EvaluationSet, version: int = 0
    ) -> list[CompletionToScore]:
        # A new engine each time: an engine would keep its cache in memory, and also weights, which
        # train steps donate.
        engine = self.engine()
        count = len(examination.prompts) * examination.samples

        def progress() -> tuple[int, int]:
            return (count - engine.unfinished if engine.stats.decode_tokens else 0), count

        with self.session.showing(progress):
            found = completed(engine, params, examination, version)
        if self.tokens is not None:
            self.tokens.engine_ended(engine.stats)
            tokens = sum(one.sampled_tokens for of in found for one in of)
            self.tokens.evaluated(Stats(), 0, tokens)
        return examination.written(found)


def completed(
    engine: RolloutEngine | EpisodeEngine,
    params: Params,
    examination: EvaluationSet,
    version: int = 0,
) -> Sequence[Sequence[FinishedCompletion | Played]]:
    """Completes the problems of an evaluation; returns the completions of each problem.

    At the end it closes the environments of an episode engine.

    Args:
      version: version of the weights.

    Raises:
      RunEndedError: the weights are broken.
    """
    engine.load(params, version)
    try:
        # The engine fits the requests.
        generated = engine.generate(cast(Any, examination.requests))
    except NonFiniteLogitsError as error:
        raise RunEndedError(f"The policy cannot be evaluated. {error}") from error
    finally:
        if isinstance(engine, EpisodeEngine):
            engine.close()
    require_version(generated, version)
    return generated


def require_version(
    generated: Sequence[Sequence[FinishedCompletion | Played]], version: int
) -> None:
    """Asserts that one version of the weights has sampled every token of an evaluation.

    Args:
      generated: completions of each problem.
      version: the version that was asked for.
    """
    for one in itertools.chain.from_iterable(generated):
        if isinstance(one, Played):
            versions = [segment.policy_versions for segment in one.trajectory.segments]
        else:
            versions = [one.versions]
        found = {int(of) for some in versions for of in some if of >= 0}
        assert found <= {version}, (
            f"An evaluation of version {version} has tokens of versions {sorted(found)}."
        )


def await_evaluations(session: Session) -> None:
    """Waits until all submitted evaluations are measured.

    Raises:
      TimeoutError: nothing was scored for too long; see
        `rl_sync.scoring.score_requests.await_call`.
      RunStoppedError: the run is being stopped.
    """
    wait = {"reason": "evaluations to be judged", "for_whom": "the master"}
    with session.spans.span(SpanKind.WAIT, **wait):
        await_call(session, AwaitEvaluations())


class EvaluationResults:
    """The scored completions of an evaluation, each of which counts once.

    Args:
      examination: the problems.
      category: field of a row that names a problem's category.
    """

    def __init__(self, examination: EvaluationSet, category: str) -> None:
        self._examination, self._category = examination, category
        self._asked: set[tuple[int, int]] = set()
        self.answers: dict[tuple[int, int], JudgedAnswer] = {}
        self._games: dict[tuple[int, int], Mapping[str, float]] = {}

    def new(self, items: Sequence[CompletionToScore]) -> list[CompletionToScore]:
        """Returns the completions that were never submitted before, without duplicates."""
        fresh = []
        for item in items:
            if (key := (item.prompt_id, item.sample)) not in self._asked:
                self._asked.add(key)
                fresh.append(item)
        return fresh

    def add(self, item: CompletionToScore, judgement: Judgement, score: float) -> None:
        """Adds the score of a completion; a second score of the same completion is ignored.

        Args:
          score: the score by the reward's first term.
        """
        key, answer = (item.prompt_id, item.sample), JudgedAnswer(None, judgement.answer)
        if judgement.is_known:
            answer = answer._replace(solved=score >= SOLVING_SCORE, score=score)
        self.answers.setdefault(key, answer)
        if item.ending is not None and item.ending.seat is not None and judgement.is_known:
            self._games.setdefault(key, item.ending.metrics)

    def forget(self) -> None:
        """Drops the answers once they are measured; later answers are ignored."""
        self.answers, self._games = {}, {}

    @property
    def is_complete(self) -> bool:
        """True once every completion of every problem is scored."""
        return len(self.answers) == len(self._examination.prompts) * self._examination.samples

    @property
    def problems(self) -> list[Problem]:
        """The problems with their answers so far, in order."""
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

        For games of several players it adds `games_won`, `games_drawn` and `games_lost`, as
        fractions of the scored games; a game that a limit cut counts as none of them.
        """
        values = accuracy.measure(self.problems, self._examination.samples)
        for name in RESULTS if self._games else ():
            total = sum(game.get(name, 0.0) for game in self._games.values())
            values[f"games_{name}"] = total / len(self._games)
        return values
