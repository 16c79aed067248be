"""Rubrics: weighted sums of rewards, judged one by one, in batches, or asynchronously."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import os
import re
import traceback
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple, TypeVar

from rl_sync.ending import Ending, Fault, Move
from rl_sync.expression import parse_sum
from rl_sync.isolation.codec import record
from rl_sync.rewards.judgement import NOT_APPLICABLE, Completion, Judgement, Row
from rl_sync.rewards.other_trainers import is_foreign, translated
from rl_sync.rewards.reward_catalog import MadeReward, is_quick, make
from rl_sync.rewards.reward_parts import labels_of
from rl_sync.row_answers import answer_text

T = TypeVar("T")

_SHOWN_CHARACTERS = 500
_SURELY_FINITE = 1e30  # In float32, too.
_MOST_CHARACTERS = 10_000
_UNCLEAN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters, which a terminal obeys, and halves of surrogate pairs."""

_BATCH_ARGUMENTS = ["rows", "completions"]


for _class in (Ending, Fault, Move, Completion, Judgement):
    record(_class)


class _EndError(Exception):
    """Raised for a reward that tries to end its process, as by `sys.exit`."""


@record
class ScoringRequest(NamedTuple):
    """A completion to judge, and the row that its prompt was made from."""

    row: Row
    completion: Completion


class _Part(NamedTuple):
    """A term of the sum.

    Attributes:
      label: its unique name in metrics.
      thoughts: see `rl_sync.rewards.reward_catalog.MadeReward`.
    """

    label: str
    weight: float
    reward: Callable[..., Any]
    takes_batch: bool
    is_async: bool
    thoughts: bool | None

    def given(self, items: Sequence[ScoringRequest]) -> Sequence[ScoringRequest]:
        """Returns completions with the text that the reward reads."""
        if self.thoughts is None:
            return items
        view = Completion.with_thoughts if self.thoughts else Completion.without_thoughts
        return [ScoringRequest(row, view(completion)) for row, completion in items]


class Rubric:
    """Judges completions by a weighted sum of rewards.

    A completion stays unjudged if one of the rewards raises, takes too long, or returns neither a
    number nor a `Judgement`. Surrogates and control characters in a reward's texts are escaped.

    Args:
      reward: an expression (see `rl_sync.expression`), or a reward itself: a callable
        `(row, completion)`, or `(rows, completions)` for a batch, which may be `async`, or one of
        TRL or verl (see `rl_sync.rewards.other_trainers`).

    Attributes:
      in_batches: whether a term gains from judging many completions at once.
      is_quick: whether every term is quick; see `rl_sync.rewards.reward_catalog.is_quick`.

    Raises:
      ValueError: the expression names an unknown reward, or an option that a reward lacks.
    """

    def __init__(self, reward: str | Callable[..., Any]) -> None:
        self.text = reward if isinstance(reward, str) else getattr(reward, "__name__", "reward")
        if isinstance(reward, str):
            terms = parse_sum(reward)
            labels = labels_of([term.name for term in terms])
            made = [(term.weight, make(term)) for term in terms]
        else:
            own = translated(self.text, reward, {}) if is_foreign(reward) else reward
            labels, made = [self.text], [(1.0, MadeReward(own))]
        self._parts = [
            _part(label, weight, one) for label, (weight, one) in zip(labels, made, strict=True)
        ]
        self.in_batches = any(part.takes_batch or part.is_async for part in self._parts)
        self.is_quick = isinstance(reward, str) and is_quick(reward)

    @property
    def labels(self) -> list[str]:
        """The names of the terms, as in metrics."""
        return [part.label for part in self._parts]

    def check(self, rows: Iterable[Row]) -> None:
        """Checks rows of the data with every term that has `check(row)`.

        Raises:
          ValueError: a row lacks something that a term needs; the message names the term, the row
            and the fault.
        """
        checks = [
            (part.label, part.reward.check) for part in self._parts if hasattr(part.reward, "check")
        ]
        for number, row in enumerate(rows if checks else (), start=1):
            for label, check in checks:
                try:
                    check(row)
                except ValueError as error:
                    raise ValueError(
                        f"The reward {label} cannot judge problem {number}"
                        f" ({_short(str(row.get('prompt', '')), 80)!r}): {error}"
                    ) from error

    def try_out(self, rows: Iterable[Row]) -> list[str]:
        """Checks that this machine has what terms with `try_out(rows)` need, such as a compiler.

        Returns:
          Sentences on problems that could not be judged here.

        Raises:
          ValueError: a term could judge no problem; the message names the term and the cause.
        """
        kept, notes = list(rows), []
        for part in self._parts:
            if hasattr(part.reward, "try_out"):
                try:
                    found = part.reward.try_out(kept)
                except ValueError as error:
                    raise ValueError(f"The reward {part.label} does not work: {error}") from error
                notes += [f"The reward {part.label}: {fault}" for fault in found]
        return notes

    def warm_up(self) -> None:
        """Calls `warm_up()` of every term that has it, before time limits apply."""
        for part in self._parts:
            if hasattr(part.reward, "warm_up"):
                part.reward.warm_up()

    def judge(
        self, items: Sequence[ScoringRequest], limit_secs: float | None = None
    ) -> list[Judgement]:
        """Judges completions, in their order. Episodes whose environment failed are not judged.

        Args:
          limit_secs: the time limit of an asynchronous reward for one completion. Workers limit
            other rewards; see `rl_sync.scoring.local_scorer`.
        """
        whole = [item for item in items if not _has_failed(item)]
        with _one_process():
            columns = [
                _judged(part, part.given(whole), limit_secs) for part in self._parts if whole
            ]
        judged = iter([self._sum(of_item) for of_item in zip(*columns, strict=True)])
        return [_lost(item) if _has_failed(item) else next(judged) for item in items]

    def _sum(self, judged: Sequence[Judgement]) -> Judgement:
        components: dict[str, float] = {}
        score, reasons, unknown = 0.0, [], all(one is NOT_APPLICABLE for one in judged)
        for part, one in zip(self._parts, judged, strict=True):
            several = len(self._parts) > 1
            if one.why:
                reasons.append(f"{part.label}: {one.why}" if several else one.why)
            if one is NOT_APPLICABLE:
                continue
            components |= {f"{part.label}/{name}": of for name, of in one.components.items()}
            if one.score is None:
                unknown = True
                continue
            score += part.weight * one.score
            components[part.label] = one.score
        why, answer = _clean("; ".join(reasons)), judged[0].answer
        try:
            return Judgement(None if unknown else score, why, components, answer)
        except ValueError as error:
            return Judgement.unknown(f"the sum cannot be used: {error}")


@contextlib.contextmanager
def _one_process() -> Iterator[None]:
    """Ends a process that a reward has forked, so that it does not go on judging."""
    here = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != here:
            os._exit(0)


def _part(label: str, weight: float, made: MadeReward) -> _Part:
    reward = made.judges
    called = reward if inspect.isroutine(reward) else type(reward).__call__
    names = [name for name in inspect.signature(called).parameters if name != "self"]
    if len(names) < 2:
        raise ValueError(
            f"The reward {label} takes {', '.join(names) or 'nothing'}, and must take"
            " (row, completion), or (rows, completions) for a batch."
        )
    return _Part(
        label=label,
        weight=weight,
        reward=reward,
        takes_batch=names[:2] == _BATCH_ARGUMENTS,
        is_async=inspect.iscoroutinefunction(called),
        thoughts=made.thoughts,
    )


def _judged(
    part: _Part, items: Sequence[ScoringRequest], limit_secs: float | None
) -> list[Judgement]:
    if part.is_async:
        return asyncio.run(_gathered(part, items, limit_secs))
    if part.takes_batch:
        return _of_batch(part, items, lambda: part.reward(*_columns(items)))
    return [_of_one(part, functools.partial(part.reward, *item)) for item in items]


def _has_failed(item: ScoringRequest) -> bool:
    return item.completion.ending is not None and item.completion.ending.failed


def _lost(item: ScoringRequest) -> Judgement:
    ending = item.completion.ending
    assert ending is not None, "it has failed"
    why = f"{ending.reason}: {ending.why}" if ending.why else ending.reason
    return Judgement.unknown(_clean(why))


async def _gathered(
    part: _Part, items: Sequence[ScoringRequest], limit_secs: float | None
) -> list[Judgement]:
    if part.takes_batch:
        try:
            found = await asyncio.wait_for(_lasting(part.reward(*_columns(items))), limit_secs)
        except Exception as error:
            return [_failed(part, error, limit_secs)] * len(items)
        return _of_batch(part, items, lambda: found)

    async def one(item: ScoringRequest) -> Judgement:
        try:
            found = await asyncio.wait_for(_lasting(part.reward(*item)), limit_secs)
        except Exception as error:
            return _failed(part, error, limit_secs)
        return _read(part, found)

    return list(await asyncio.gather(*map(one, items)))


async def _lasting(judging: Awaitable[T]) -> T:
    """Waits for a reward, and keeps it from ending the event loop of other rewards.

    Raises:
      Exception: the reward raises an error.
    """
    try:
        return await judging
    except (Exception, asyncio.CancelledError):
        raise
    except BaseException as error:
        raise _EndError(_written(error)) from error


def _columns(items: Sequence[ScoringRequest]) -> tuple[list[Row], list[Completion]]:
    return [item.row for item in items], [item.completion for item in items]


def _of_one(part: _Part, judge: Callable[[], object]) -> Judgement:
    try:
        found = judge()
    except BaseException as error:  # Also `sys.exit`, which would end the process that judges.
        return _failed(part, error)
    return _read(part, found)


def _read(part: _Part, found: object) -> Judgement:
    try:
        return _judgement(found)
    except Exception as error:
        return Judgement.unknown(f"{part.label} cannot be used: {_message(error)}")


def _of_batch(
    part: _Part, items: Sequence[ScoringRequest], judge: Callable[[], Any]
) -> list[Judgement]:
    try:
        found = list(judge())
        if len(found) != len(items):
            raise ValueError(f"it returned {len(found)} judgements of {len(items)} completions")
    except BaseException as error:
        return [_failed(part, error)] * len(items)
    return [_read(part, one) for one in found]


def _judgement(found: object) -> Judgement:
    """Converts the value that a reward returned into a judgement.

    Raises:
      ValueError: it is neither a finite number nor a judgement.
      Exception: the value's own methods fail.
    """
    if found is NOT_APPLICABLE:
        return NOT_APPLICABLE
    if isinstance(found, Judgement):
        score = None if found.score is None else _number(found.score)
        parts = {_clean(str(name)): _number(value) for name, value in found.components.items()}
        answer = None if found.answer is None else _clean(str(found.answer))
        return Judgement(score, _clean(str(found.why)), parts, answer)
    found = _plain(found)
    if isinstance(found, bool | int | float | Decimal | Fraction):
        return Judgement(_number(found))
    try:
        text = _short(repr(found), 80)
    except Exception:  # A user's class whose own methods fail.
        text = f"a {type(found).__name__}"
    way_out = "; a Judgement.unknown(why) gives no score" * (found is None)
    raise ValueError(f"it returned {text}, not a number or a Judgement{way_out}")


def _plain(value: object) -> Any:
    """Returns the number in an array of NumPy, of JAX or of PyTorch with one entry."""
    if not hasattr(value, "item"):
        return value
    try:
        return value.item()
    except (TypeError, ValueError, RuntimeError):  # It has several entries.
        return value


def _number(value: Any) -> float:
    """Returns a finite number as a float.

    Raises:
      ValueError: the value is not a finite number.
    """
    value = _plain(value)
    if type(value) is not float or not abs(value) < _SURELY_FINITE:
        Judgement(value)
    return float(value)


def _failed(part: _Part, error: BaseException, limit_secs: float | None = None) -> Judgement:
    if isinstance(error, TimeoutError) and limit_secs is not None:
        return Judgement.unknown(f"{part.label} took longer than {limit_secs:g} s")
    cause = error.__cause__ if isinstance(error, _EndError) and error.__cause__ else error
    frames = traceback.extract_tb(cause.__traceback__)
    own = [frame for frame in frames if frame.filename != __file__]
    place = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    return Judgement.unknown(_clean(f"{part.label} failed with {_written(cause)}{place}"))


def _written(error: BaseException) -> str:
    """Writes an error as its class and its message."""
    message, name = _message(error), type(error).__name__
    return _short(f"{name}: {message}" if message else name, _SHOWN_CHARACTERS)


def _message(error: BaseException) -> str:
    try:
        return _clean(str(error))
    except Exception:  # A user's class whose own methods fail.
        return ""


def _clean(text: str) -> str:
    """Escapes surrogates and control characters, and cuts a very long text."""
    if len(text) <= _MOST_CHARACTERS and text.isprintable():
        return text
    text = _short(text, _MOST_CHARACTERS)
    return _UNCLEAN.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def example_rows(
    rows: Sequence[Row],
    count: int,
    encode: Callable[[str], Sequence[int]] = lambda text: (),
) -> list[ScoringRequest]:
    """Returns the first rows with their own answers as completions, to try a rubric with.

    Each completion is the end of an episode without rewards.

    Args:
      encode: returns the tokens of an answer, the end of sequence included.
    """
    ending = Ending({}, {}, "done", "", turns=1)
    answers = [answer_text(row.get("answer", "")) for row in rows[:count]]
    return [
        ScoringRequest(row, Completion(answer, encode(answer), ending=ending))
        for row, answer in zip(rows, answers, strict=False)
    ]
