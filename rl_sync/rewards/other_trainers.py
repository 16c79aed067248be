"""Rewards that were written for TRL or verl, called as those trainers call them.

TRL's `GRPOTrainer` calls `f(prompts=…, completions=…, completion_ids=…, **fields)` with a list for
each column of the data, and takes a list of numbers, or None where a reward does not apply
(https://huggingface.co/docs/trl/grpo_trainer, Using a custom reward function). verl calls
`f(data_source=…, solution_str=…, ground_truth=…, extra_info=…)` for each completion, and takes a
number, or a dict with `score` (https://verl.readthedocs.io, Implement Reward Function).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rl_sync.rewards.judgement import (
    MESSAGES,
    NOT_APPLICABLE,
    ONE_MESSAGE,
    TOOLS,
    Completion,
    Judgement,
    Row,
)

_IDS = ("completion_ids", "completions_ids")
_OF_TRL = {"prompts", "completions", *_IDS}
_OF_TRL_ALONE = {"trainer_state", "environments", "log_extra", "log_metric"}
_OF_VERL = ("data_source", "solution_str", "ground_truth", "extra_info")
_OF_VERL_BATCHES = {f"{name}s" for name in _OF_VERL[:3]}
_HIDDEN = {"prompt", "completion", MESSAGES, TOOLS, ONE_MESSAGE}


def is_foreign(reward: Callable[..., Any]) -> bool:
    """Says whether a reward has the arguments of TRL's or of verl's rewards."""
    names = _parameters(reward).keys()
    return not names & {"row", "rows"} and bool(
        names & (_OF_TRL | _OF_VERL_BATCHES) or "solution_str" in names
    )


def translated(
    label: str, reward: Callable[..., Any], options: Mapping[str, Any]
) -> Callable[..., Any]:
    """Makes a reward of rl_sync from one of TRL or of verl.

    Args:
      label: its name in messages.
      reward: a function, or an object that is called; `is_foreign` must hold.
      options: further arguments of each call.

    Raises:
      ValueError: it needs what only the other trainer has; the message has the translation.
    """
    parameters = _parameters(reward)
    if batched := sorted(parameters.keys() & _OF_VERL_BATCHES):
        raise ValueError(
            f"The reward {label} takes {', '.join(batched)}, as verl's reward manager for batches"
            " gives them: write it for one completion, as"
            f" {label}({', '.join(_OF_VERL)}), or for rl_sync, as {label}(rows, completions)."
        )
    is_async = inspect.iscoroutinefunction(_called(reward))
    kind: Callable[..., Callable[..., Any]]
    if "solution_str" in parameters:
        kind = _AsyncVerlReward if is_async else _VerlReward
    else:
        kind = _AsyncTrlReward if is_async else _TrlReward
        needed = [name for name in _required(parameters, options) if name in _OF_TRL_ALONE]
        if needed:
            raise ValueError(
                f"The reward {label} takes {', '.join(needed)}, which only TRL's trainer has: write"
                f" it without, or for rl_sync, as {label}(rows, completions)."
            )
    return kind(label, reward, options)


class _Foreign:
    """A reward of another trainer, and the arguments of each call besides those of the rows."""

    def __init__(self, label: str, reward: Callable[..., Any], options: Mapping[str, Any]) -> None:
        self._label, self._reward, self._options = label, reward, options
        self._parameters = _parameters(reward)
        self._takes_any = any(one.kind is one.VAR_KEYWORD for one in self._parameters.values())

    def _accepted(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        taken = {
            name: value
            for name, value in arguments.items()
            if self._takes_any or name in self._parameters
        }
        return {**taken, **self._options}

    def _require(self, given: Mapping[str, Any]) -> None:
        needed = _required(self._parameters, self._options)
        if missing := [name for name in needed if name not in given]:
            raise ValueError(
                f"the function takes {', '.join(missing)}, which the row lacks: add the field, or"
                " give the argument a default."
            )


class _OfTrl(_Foreign):
    def check(self, row: Row) -> None:
        """Raises `ValueError` if a row lacks a field that the function needs."""
        self._require(self._arguments([row], [Completion("")]))

    def _arguments(self, rows: Sequence[Row], completions: Sequence[Completion]) -> dict[str, Any]:
        texts = [
            [{"role": "assistant", "content": one.whole}] if _is_conversation(row) else one.whole
            for row, one in zip(rows, completions, strict=True)
        ]
        fields = {name for row in rows for name in row} - _HIDDEN - _OF_TRL
        arguments: dict[str, Any] = {name: [row.get(name) for row in rows] for name in fields}
        arguments |= {"prompts": [_prompt(row) for row in rows], "completions": texts}
        ids = [list(one.tokens) for one in completions]
        arguments |= {name: ids for name in _IDS if name in self._parameters or name == _IDS[0]}
        return self._accepted(arguments)


class _TrlReward(_OfTrl):
    def __call__(self, rows: Sequence[Row], completions: Sequence[Completion]) -> list[Any]:
        return _scores(self._reward(**self._arguments(rows, completions)))


class _AsyncTrlReward(_OfTrl):
    async def __call__(self, rows: Sequence[Row], completions: Sequence[Completion]) -> list[Any]:
        return _scores(await self._reward(**self._arguments(rows, completions)))


class _OfVerl(_Foreign):
    def check(self, row: Row) -> None:
        """Raises `ValueError` if a row lacks a field that the function needs."""
        self._require(self._arguments(row, Completion("")))

    def _arguments(self, row: Row, completion: Completion) -> dict[str, Any]:
        arguments = {
            "data_source": row.get("data_source", ""),
            "solution_str": completion.whole,
            "extra_info": row.get("extra_info") or {},
        }
        of_model = row.get("reward_model")
        of_model = of_model if isinstance(of_model, Mapping) else {}
        for truth in (of_model.get("ground_truth"), row.get("ground_truth"), row.get("answer")):
            if truth not in (None, ""):
                arguments["ground_truth"] = truth
                break
        return self._accepted(arguments)


class _VerlReward(_OfVerl):
    def __call__(self, row: Row, completion: Completion) -> Any:
        return _score(self._reward(**self._arguments(row, completion)))


class _AsyncVerlReward(_OfVerl):
    async def __call__(self, row: Row, completion: Completion) -> Any:
        return _score(await self._reward(**self._arguments(row, completion)))


def _called(reward: Callable[..., Any]) -> Callable[..., Any]:
    return reward if inspect.isroutine(reward) else type(reward).__call__


def _parameters(reward: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    found = dict(inspect.signature(_called(reward)).parameters)
    found.pop("self", None)
    return found


def _required(parameters: Mapping[str, inspect.Parameter], options: Mapping[str, Any]) -> list[str]:
    """Names the parameters without a default that the options do not give."""
    return [
        name
        for name, one in parameters.items()
        if one.default is one.empty
        and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
        and name not in options
    ]


def _is_conversation(row: Row) -> bool:
    return bool(row.get(MESSAGES) or row.get(ONE_MESSAGE))


def _prompt(row: Row) -> Any:
    if row.get(ONE_MESSAGE):
        return [{"role": "user", "content": row["prompt"]}]
    return row.get(MESSAGES) or row["prompt"]


def _scores(found: Any) -> list[Any]:
    return [NOT_APPLICABLE if one is None else one for one in found]


def _score(found: object) -> Any:
    """Reads what verl's manager reads: a number, a dict with `score`, or a list that begins with
    it. Other numbers of a dict are components, and its `pred` is the answer of `majority@k`."""
    if isinstance(found, Mapping):
        if "score" not in found:
            raise ValueError(f"it returned a dict without 'score', with {', '.join(found)}")
        numbers = {
            name: float(value)
            for name, value in found.items()
            if name != "score" and isinstance(value, bool | int | float)
        }
        answer = found.get("pred")
        return Judgement(
            found["score"], components=numbers, answer=None if answer is None else str(answer)
        )
    return found[0] if isinstance(found, list | tuple) and found else found
