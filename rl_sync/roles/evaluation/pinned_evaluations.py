"""Evaluations beside an explorer's rollouts, each with the weights of the version asked for."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, cast

import jax

from rl_sync.cluster.user_errors import RunEndedError
from rl_sync.messages.scoring_calls import CompletionToScore
from rl_sync.models.placement import abstract_of, in_host_memory, move, shardings
from rl_sync.roles.evaluation.evaluator import EvaluationSet, NewEngine, require_version
from rl_sync.rollout.engine import NonFiniteLogitsError
from rl_sync.rollout.engine_interface import RolloutEngine
from rl_sync.rollout.episodes.episode_engine import EpisodeEngine
from rl_sync.rollout.episodes.episode_records import Played
from rl_sync.rollout.request import FinishedCompletion
from rl_sync.rollout.stats import Stats
from rl_sync.types import Params

NO_STATS = Stats()
_POLL_SECS = 0.25
"""Maximum wait for environments while the explorer has nothing else to do."""


class MadeEvaluation(NamedTuple):
    """An evaluation whose completions are all generated.

    Attributes:
      version: version of the weights that sampled every token.
      items: completions to score.
      began_secs: time when the explorer got the weights.
      busy_secs: time that its completions took.
      lost_secs: the part of this time in which rollouts stood still.
      tokens: number of tokens of the completions.
      stats: counts of its engine.
    """

    version: int
    items: list[CompletionToScore]
    began_secs: float
    busy_secs: float
    lost_secs: float
    tokens: int = 0
    stats: Stats = NO_STATS


class EvaluationsBeside(Protocol):
    """The evaluations of an explorer, as its loop drives them.

    Attributes:
      lost_secs: time so far in which rollouts stood still.
    """

    lost_secs: float

    @property
    def left(self) -> int:
        """Number of evaluations that are begun or wait."""
        ...

    def compile(self, params: Params) -> None:
        """Compiles the first programs of an evaluation."""
        ...

    def begin(self, version: int, params: Params) -> None:
        """Begins to evaluate a version, or lets it wait until earlier evaluations are made."""
        ...

    def step(self, *, delays: bool) -> MadeEvaluation | None:
        """Generates a chunk of the evaluation in progress; returns the evaluation at its end.

        Args:
          delays: whether rollouts stand still meanwhile.
        """
        ...

    def close(self) -> None:
        """Gives up the evaluations that are not made."""
        ...


class _WaitingEvaluation(NamedTuple):
    """An evaluation that waits; its weights are in host memory, and have to go to `places`."""

    version: int
    params: Params
    places: Params
    began_secs: float


@dataclasses.dataclass
class _BegunEvaluation:
    version: int
    began_secs: float
    engine: RolloutEngine | EpisodeEngine
    tickets: list[int]
    finished: list[FinishedCompletion | Played] = dataclasses.field(default_factory=list)
    busy_secs: float = 0.0
    lost_secs: float = 0.0


class PinnedEvaluations:
    """Completes held-out problems with an engine of its own, chunk by chunk.

    So newer weights of the rollouts change nothing in an evaluation that is in progress. Others
    wait for its end, in the order in which they came, with their weights in host memory.

    Args:
      examination: the problems.
      engine: makes an engine. Each evaluation has a new one: it would keep its cache, and weights.
      now: returns the time, in seconds.
    """

    def __init__(
        self, examination: EvaluationSet, engine: NewEngine, now: Callable[[], float]
    ) -> None:
        self._examination, self._engine, self._now = examination, engine, now
        self._waiting: collections.deque[_WaitingEvaluation] = collections.deque()
        self._begun: _BegunEvaluation | None = None
        self.lost_secs = 0.0

    @property
    def left(self) -> int:
        """Number of evaluations that are begun or wait."""
        return len(self._waiting) + (self._begun is not None)

    def compile(self, params: Params) -> None:
        """See `EvaluationsBeside`; does not start environments."""
        engine, examination = self._engine(), self._examination
        if isinstance(engine, EpisodeEngine):
            engine = engine.engine
        few = min(examination.sampling.max_new_tokens, engine.chunk_tokens)
        sampling = dataclasses.replace(examination.sampling, max_new_tokens=few, min_new_tokens=0)
        some = dataclasses.replace(
            examination, sampling=sampling, problems=2 * engine.slots, plays=False
        )
        engine.load(params, 0)
        engine.generate(cast(Any, some.requests))

    def begin(self, version: int, params: Params) -> None:
        """See `EvaluationsBeside`; the arrays must not be donated."""
        began_secs = self._now()
        if self._begun is None:
            self._start(version, params, began_secs)
            return
        abstract = abstract_of(params)
        held = move(params, in_host_memory(abstract))
        self._waiting.append(_WaitingEvaluation(version, held, shardings(abstract), began_secs))

    def step(self, *, delays: bool) -> MadeEvaluation | None:
        """See `EvaluationsBeside`.

        Raises:
          RunEndedError: the weights are broken.
        """
        if self._begun is None:
            if not self._waiting:
                return None
            one = self._waiting.popleft()
            self._start(one.version, jax.device_put(one.params, one.places), one.began_secs)
        begun, started = self._begun, self._now()
        assert begun is not None
        engine = begun.engine
        try:
            if isinstance(engine, EpisodeEngine):
                begun.finished += engine.step(0.0 if delays else _POLL_SECS)
            else:
                begun.finished += engine.step()
        except NonFiniteLogitsError as error:
            self.close()
            raise RunEndedError(f"With the weights of version {begun.version}: {error}") from error
        spent = self._now() - started
        begun.busy_secs += spent
        if delays:
            begun.lost_secs += spent
            self.lost_secs += spent
        return None if engine.unfinished else self._made(begun)

    def close(self) -> None:
        """See `EvaluationsBeside`."""
        self._waiting.clear()
        self._end()

    def _start(self, version: int, params: Params, began_secs: float) -> None:
        engine = self._engine()
        engine.load(params, version)
        # The engine fits the requests.
        tickets = engine.submit(cast(Any, self._examination.requests))
        self._begun = _BegunEvaluation(version, began_secs, engine, tickets)

    def _made(self, begun: _BegunEvaluation) -> MadeEvaluation:
        by_ticket: dict[int, list[Any]] = {ticket: [] for ticket in begun.tickets}
        for completion in sorted(begun.finished, key=lambda one: one.index):
            by_ticket[completion.ticket].append(completion)
        self._end()
        generated = list(by_ticket.values())
        require_version(generated, begun.version)
        return MadeEvaluation(
            version=begun.version,
            items=self._examination.written(generated),
            began_secs=begun.began_secs,
            busy_secs=begun.busy_secs,
            lost_secs=begun.lost_secs,
            tokens=sum(one.sampled_tokens for one in begun.finished),
            stats=begun.engine.stats,
        )

    def _end(self) -> None:
        begun, self._begun = self._begun, None
        if begun is not None and isinstance(begun.engine, EpisodeEngine):
            begun.engine.close()
