"""The master's judging of completions: records, metrics, and a limit of failures."""

from __future__ import annotations

import collections
import concurrent.futures
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from rl_sync.display.unprintable import has_unprintable
from rl_sync.ending import REASONS, Ending
from rl_sync.isolation.codec import Records
from rl_sync.messages.scoring_calls import CompletionToScore, Judgements, ScoredCompletion
from rl_sync.records.alarms import UNPRINTABLE
from rl_sync.records.json_lines import encoded
from rl_sync.records.rollouts.record_parts import RecordParts
from rl_sync.records.spans import SpanKind, SpanRecorder
from rl_sync.rewards.judgement import Completion, Judgement
from rl_sync.rewards.reward_catalog import BY_SET
from rl_sync.rewards.reward_settings import RewardSettings
from rl_sync.rewards.rewards_by_set import ACCURACY
from rl_sync.rewards.rubric import ScoringRequest, example_rows
from rl_sync.tasks.curriculum import SOLVED
from rl_sync.tasks.task import Task
from rl_sync.thoughts import split
from rl_sync.types import NO_LEASE, Prompt
from rl_sync.workdir import Workdir

_WINDOW = 200
_CONFIDENCE = 0.99
_LEAST_JUDGED = 8
_EXAMPLES = 3
_RECORDED_CHARACTERS = 2000
_TRIED_ROWS = 2
SOLVING_SCORE = 1 - 1e-6
"""Least score by the reward's first term of a completion that solves its problem."""


class Scorer(Protocol):
    """Interface of what judges completions: workers on this machine, or reward servers."""

    @property
    def judged(self) -> int:
        """Number of completions judged so far."""
        ...

    @property
    def worker_secs(self) -> float:
        """Mean seconds that a worker lately took for a completion; 0 if it is not known."""
        ...

    def judge(
        self, items: Sequence[ScoringRequest], timeout_secs: float | None = None
    ) -> list[Judgement]:
        """Judges completions, in their order."""
        ...

    def close(self) -> None:
        """Ends the workers or connections."""
        ...


Scored = Callable[[tuple[tuple[int, float], ...]], None]
"""Function that gets the lease ids of groups, each with the group's success."""


class Success(NamedTuple):
    """Measure of a group's success.

    Attributes:
      measure: see `curriculum.success`.
      with_baseline: whether a group's last completion is the greedy baseline, which is excluded.
    """

    measure: str = SOLVED
    with_baseline: bool = False


class JudgedCompletion(NamedTuple):
    """Judged completion of a group that no step has trained on yet."""

    judgement: Judgement
    ending: Ending | None
    is_garbled: bool


class Verdicts(NamedTuple):
    """Judged completions of groups, by their lease ids."""

    groups: Mapping[int, tuple[JudgedCompletion, ...]]


class _Seen(NamedTuple):
    """Problem of a recent completion, and whether it could be judged."""

    problem: tuple[bool, int]
    is_known: bool


class MasterScoring:
    """Judges the completions of a task's problems.

    Args:
      judge: the workers or servers.
      terms: the labels of the reward's terms; the first one that applies says whether a problem
        is solved.
      spans: the master's spans; closed together with this object.
      fail: called with a reason if too many completions cannot be judged.
      scored: called with the success of groups, before their scores are returned; None if not
        needed.
      success: measure of a group's success.
      noted: called with the verdicts of groups once they are known; None if not needed.
      parts: the labels of the parts whose scores groups have; empty for none.
      most_bytes: size of the records of judgements beyond which the oldest go; 0 for no bound.
    """

    def __init__(
        self,
        task: Task,
        judge: Scorer,
        terms: Sequence[str],
        settings: RewardSettings,
        workdir: Workdir,
        spans: SpanRecorder,
        fail: Callable[[str], None],
        scored: Scored | None = None,
        success: Success | None = None,
        noted: Callable[[Verdicts], None] | None = None,
        parts: Sequence[str] = (),
        most_bytes: int = 0,
    ) -> None:
        self._task, self._judge, self._terms, self._parts = task, judge, terms, parts
        self._noted = noted
        self._scored, self._success = scored, success or Success()
        self._spans = spans
        self._settings, self._fail = settings, fail
        folder = workdir.judgements
        self._records = RecordParts(folder, workdir.removed(folder), "part", most_bytes)
        self._records.begin()
        self._lock = threading.Lock()
        self._window: collections.deque[_Seen] = collections.deque(maxlen=_WINDOW)
        self._examples: collections.deque[str] = collections.deque(maxlen=_EXAMPLES)
        self._latest: collections.deque[tuple[str, str, str]] = collections.deque(maxlen=_EXAMPLES)
        self._by_lease: dict[int, tuple[JudgedCompletion, ...]] = {}
        self._clerk = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="judgements")

    @property
    def judged(self) -> int:
        """Number of completions judged so far; it shows that judging makes progress."""
        return self._judge.judged

    def start(self) -> None:
        """Tries the reward on a few problems, in a thread; the run fails if none can be judged."""
        threading.Thread(target=self._try, name="reward trial", daemon=True).start()

    def verdicts(self, items: Sequence[CompletionToScore]) -> list[ScoredCompletion]:
        """Returns the scores of completions, in their order; raises what `judgements` raises."""
        return Records(
            ScoredCompletion(
                one.score,
                self.solves(one),
                tuple(one.components.get(label, math.nan) for label in self._parts),
            )
            for one in self.judgements(items)
        )

    def judgements(self, items: Sequence[CompletionToScore]) -> list[Judgement]:
        """Judges completions, in their order, and records the judgements.

        Raises:
          Exception: the completions cannot be judged; the run is then being stopped.
        """
        prompts = [problem_of(self._task, item) for item in items]
        asked = [to_judge(self._task, item) for item in items]
        try:
            with self._spans.span(SpanKind.SCORE, completions=len(items)) as attributes:
                judged = self._judge.judge(asked)
                if secs := self._judge.worker_secs:
                    attributes["worker_secs"] = secs
        except Exception as error:
            self._fail(f"Completions cannot be judged: {error}")
            raise
        self._count(prompts, items, judged)
        self._note(items, judged)
        if self._scored is not None and (successes := self._successes(items, judged)):
            self._scored(successes)
        self._clerk.submit(self._write, items, judged)
        return judged

    def _successes(
        self, items: Sequence[CompletionToScore], judged: Sequence[Judgement]
    ) -> tuple[tuple[int, float], ...]:
        """Returns the success of each group, over its completions that could be judged."""
        groups = collections.defaultdict[int, list[Judgement]](list)
        for item, one in zip(items, judged, strict=True):
            if item.lease_id != NO_LEASE:
                groups[item.lease_id].append(one)
        successes = []
        for lease_id, group in groups.items():
            sampled = group[: len(group) - self._success.with_baseline]
            values = [
                float(self.solves(one)) if self._success.measure == SOLVED else one.score
                for one in sampled
                if one.score is not None
            ]
            if values:
                successes.append((lease_id, sum(values) / len(values)))
        return tuple(successes)

    def of_leases(self, lease_ids: Sequence[int]) -> Judgements:
        """Returns the judgements of groups that are still kept."""
        with self._lock:
            groups = [[*self._by_lease.get(lease, ())] for lease in lease_ids]
        both = [one for group in groups for one in group]
        return Judgements(
            counts=[len(group) for group in groups],
            scores=[one.judgement.score for one in both],
            whys=[one.judgement.why for one in both],
            components=[{**one.judgement.components} for one in both],
            answers=[one.judgement.answer for one in both],
            endings=[one.ending for one in both],
        )

    def examples(self) -> tuple[str, ...]:
        """Describes the last judged completions of training problems, one line each."""
        with self._lock:
            latest = [*self._latest]
        return tuple(f"{_shown(asked)} → {_shown(text)}: {why}" for asked, text, why in latest)

    def metrics(
        self, generated: Iterable[int], over: Iterable[int], group_size: int
    ) -> dict[str, float]:
        """Returns the rewards of all groups that were generated for a step, and forgets groups.

        The metrics are statistics of the rewards (NaN if none could be judged), the mean of each
        component, and the share of completions with unprintable text. For rewards of several terms
        they also have the shares of groups that `_unsolved` describes. For episodes they also have
        the mean of turns, segments and the episodes' own metrics, and the share of each reason of
        their end. The greedy completion, which is a group's baseline, is excluded.

        Args:
          generated: the lease ids of the groups, whether they were trained on or not.
          over: lease ids of groups that no later step trains on.
          group_size: number of completions of a group, without the greedy one.
        """
        with self._lock:
            groups = [self._by_lease.get(lease, ())[:group_size] for lease in generated]
        both = [one for group in groups for one in group]
        self.forget(over)
        judged = [one.judgement for one in both]
        means = _statistics([one.score for one in judged]) if judged else {}
        means |= _means(
            {f"reward/{name}": value for name, value in one.components.items()} for one in judged
        )
        if len(self._terms) > 1 or self._terms[0] == BY_SET:
            means |= _means(
                _unsolved([one.judgement for one in group], self._terms) for group in groups
            )
        means |= _means(_described(one.ending) for one in both if one.ending is not None)
        means |= _means({UNPRINTABLE: float(one.is_garbled)} for one in both)
        return means | {"reward/unjudged": float(sum(not one.is_known for one in judged))}

    @property
    def kept(self) -> Verdicts:
        """Verdicts of groups that no step has trained on yet."""
        with self._lock:
            return Verdicts({**self._by_lease})

    def recall(self, verdicts: Verdicts) -> None:
        """Takes verdicts that an earlier master knew."""
        with self._lock:
            self._by_lease.update(verdicts.groups)

    def forget(self, leases: Iterable[int]) -> None:
        """Forgets the judgements of groups that no step will train on."""
        with self._lock:
            for lease in leases:
                self._by_lease.pop(lease, None)

    def close(self) -> None:
        """Ends the workers, and closes the records."""
        self._judge.close()
        self._clerk.shutdown()
        self._records.close()
        self._spans.close()

    def solves(self, judgement: Judgement) -> bool:
        """Says whether a judgement's completion solves its problem."""
        return solves(judgement, self._terms)

    def first_score(self, judgement: Judgement) -> float:
        """Returns the score of a judgement by the reward's first term."""
        return first_score(judgement, self._terms)

    def _count(
        self,
        prompts: Sequence[Prompt],
        items: Sequence[CompletionToScore],
        judged: Sequence[Judgement],
    ) -> None:
        for prompt, item, one in zip(prompts, items, judged, strict=True):
            with self._lock:
                if item.lease_id != NO_LEASE:
                    self._latest.append((prompt.text, item.text, one.why))
                self._window.append(_Seen((item.held_out, item.prompt_id), one.is_known))
                if not one.is_known:
                    self._examples.append(f"{_shown(prompt.text)} → {_shown(item.text)}: {one.why}")
            if not one.is_known:
                self._limit()

    def _note(self, items: Sequence[CompletionToScore], judged: Sequence[Judgement]) -> None:
        """Keeps the verdicts of groups; groups that are judged again get the new ones."""
        groups = collections.defaultdict[int, list[JudgedCompletion]](list)
        for item, one in zip(items, judged, strict=True):
            if item.lease_id != NO_LEASE:
                found = JudgedCompletion(one, item.ending, has_unprintable(item.text))
                groups[item.lease_id].append(found)
        verdicts = Verdicts({lease_id: tuple(group) for lease_id, group in groups.items()})
        self.recall(verdicts)
        if self._noted is not None and groups:
            self._noted(verdicts)

    def _write(self, items: Sequence[CompletionToScore], judged: Sequence[Judgement]) -> None:
        """Records judgements, in the background."""
        record = self._settings.record
        self._records.write(
            [
                encoded(_record(item, one))
                for item, one in zip(items, judged, strict=True)
                if record == "all" or (record == "unjudged" and not one.is_known)
            ]
        )

    def _limit(self) -> None:
        """Stops the run if too many of the recent completions could not be judged."""
        with self._lock:
            count, problems = len(self._window), {one.problem for one in self._window}
            lost = [one.problem for one in self._window if not one.is_known]
            examples = "\n  ".join(self._examples)
        limit = self._settings.unjudged_limit
        # The completions of one problem fail together, so a single problem says little.
        has_cause = len(set(lost)) > 1 or len(problems) == 1
        if count >= _LEAST_JUDGED and has_cause and is_above(len(lost), count, limit):
            self._fail(
                f"{len(lost)} of the last {count} completions could not be judged: with a"
                f" confidence of {_CONFIDENCE:.0%} that is more than"
                f" reward.unjudged_limit={limit:g} allows. The last ones:\n  {examples}"
            )

    def _encoded(self, answer: str) -> list[int]:
        """Encodes an answer as a completion; empty if the policy has no tokens for it."""
        tokenizer = self._task.tokenizer
        try:
            return [*tokenizer.encode(answer), tokenizer.eos_id]
        except ValueError:
            return []

    def _try(self) -> None:
        rows = [prompt.fields for prompt in self._task.train[:_TRIED_ROWS]]
        items = example_rows(rows, _TRIED_ROWS, self._encoded)
        try:
            judged = self._judge.judge(items)
        except concurrent.futures.CancelledError:
            return  # The run ends already, and its workers with it.
        except (TimeoutError, OSError, RuntimeError, TypeError) as error:
            self._fail(f"The reward cannot be used: {error}")
            return
        if self._settings.unjudged_limit < 1 and not any(one.is_known for one in judged):
            prompt = self._task.train[0].text
            self._fail(
                f"The reward {self._task.reward} judged none of the first problems, tried with"
                f" their own answers. Of {_shown(prompt)}: {judged[0].why}"
            )


def is_above(lost: int, count: int, limit: float) -> bool:
    """Says whether a share is significantly above a limit.

    It is if the lower bound of Clopper and Pearson (1934) is above the limit: if each completion
    were lost with the limit as probability, less than one window in a hundred would lose that many.
    """
    if lost == 0:
        return False
    # A tenth of the time that a role's imports take, and few runs need it.
    from scipy.special import betainc

    return float(betainc(lost, count - lost + 1, limit)) < 1 - _CONFIDENCE


def problem_of(task: Task, item: CompletionToScore) -> Prompt:
    """Returns the problem of a completion."""
    return (task.held_out if item.held_out else task.train)[item.prompt_id]


def to_judge(task: Task, item: CompletionToScore) -> ScoringRequest:
    """Makes the request to judge a completion, with its answer apart from its thoughts."""
    answer = split(item.text, item.begun, task.tokenizer.thoughts).answer
    return ScoringRequest(
        problem_of(task, item).fields,
        Completion(
            answer, item.tokens, item.truncated, item.ending, begun=item.begun, reply=item.text
        ),
    )


def solves(judgement: Judgement, terms: Sequence[str]) -> bool:
    """Says whether the first term of a reward that applies gives a completion 1 or more."""
    return first_score(judgement, terms) >= SOLVING_SCORE


def first_score(judgement: Judgement, terms: Sequence[str]) -> float:
    """Returns the score by the first term of a reward that applies; 0 if nothing was judged.

    Each set of a mixture has a first term of its own.

    Args:
      terms: the labels of the reward's terms.
    """
    if not judgement.is_known:
        return 0.0
    names = (f"{BY_SET}/{ACCURACY}" if name == BY_SET else name for name in terms)
    return next((judgement.components[name] for name in names if name in judgement.components), 0.0)


def _unsolved(group: Sequence[Judgement], terms: Sequence[str]) -> dict[str, float]:
    """Says whether the first term that applies gives no judged completion of a group more than 0.

    Of such a group it also says whether the other terms alone make its rewards differ. Nothing is
    said of a group without a judged completion.
    """
    known = [one for one in group if one.is_known]
    firsts = [first_score(one, terms) for one in known]
    if not firsts:
        return {}
    unsolved = max(firsts) <= 0
    differs = len({one.score for one in known}) > 1
    shaped = unsolved and differs and len({*firsts}) == 1
    return {"groups_unsolved": float(unsolved), "groups_shaped_only": float(shaped)}


def _means(of_items: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Averages each value over the items that have it."""
    values = collections.defaultdict(list)
    for item in of_items:
        for name, value in item.items():
            values[name].append(value)
    return {name: sum(of) / len(of) for name, of in values.items()}


def _statistics(scores: Sequence[float | None]) -> dict[str, float]:
    """Returns the statistics of the rewards of a step; NaN if nothing was judged."""
    known = np.array([np.nan if score is None else score for score in scores])
    known = known[~np.isnan(known)]
    if not known.size:
        known = np.array([np.nan])
    return {
        "reward_mean": float(known.mean()),
        "reward_std": float(known.std()),
        "reward_min": float(known.min()),
        "reward_max": float(known.max()),
    }


def _described(ending: Ending) -> dict[str, float]:
    reasons = {
        f"episode/ended/{reason.replace(' ', '_')}": float(reason == ending.reason)
        for reason in REASONS
    }
    own = {f"episode/{name}": value for name, value in ending.metrics.items()}
    sizes = {"episode/turns": ending.turns, "episode/segments": ending.segments}
    return {**own, **sizes, **reasons}


def _record(item: CompletionToScore, one: Judgement) -> Mapping[str, object]:
    ending = {} if item.ending is None else {"episode": _episode(item.ending)}
    return {
        "problem": item.prompt_id,
        "held_out": item.held_out,
        "lease": item.lease_id,
        "score": one.score,
        "why": one.why,
        "components": one.components,
        "completion": item.text[:_RECORDED_CHARACTERS],
        "truncated": item.truncated,
        **ending,
    }


def _episode(ending: Ending) -> dict[str, object]:
    """Describes the end of an episode, with the seat and moves in games of several players."""
    fields = ending._asdict()
    del fields["is_cut"]  # The record of the completion says `truncated`.
    moves = [move._asdict() for move in fields.pop("moves")]
    seat = fields.pop("seat")
    return fields if seat is None else {**fields, "seat": seat, "moves": moves}


def _shown(text: str) -> str:
    return repr(text if len(text) <= 100 else f"{text[:99]}…")
