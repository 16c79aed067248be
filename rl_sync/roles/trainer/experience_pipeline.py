"""The user's functions between scoring and training: they filter, reshape and annotate groups.

They get a step's whole batch, in the batch's order, in the trainer's first process. A completion
that they leave out keeps its place, and is masked like one that could not be scored, so that shapes
stay the same.
"""

from __future__ import annotations

import collections
import dataclasses
import inspect
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rl_sync.cluster.user_errors import RunEndedError
from rl_sync.expression import parse_calls
from rl_sync.references import is_reference, resolve
from rl_sync.scoring.score_requests import last_reply
from rl_sync.settings.records import require
from rl_sync.spelling import hint
from rl_sync.tasks.task import Task
from rl_sync.types import Group

_NUMBERS = (int, float, np.number, np.bool_)
_GREATEST = float(np.finfo(np.float32).max)
"""Largest reward, which must fit into 32 bits."""


@dataclasses.dataclass(eq=False)
class CompletionExperience:
    """A completion of a group, or an episode, as the user's functions get it.

    Attributes:
      text: text of the completion; for an episode, its last reply.
      tokens: number of tokens that are learned; 0 for a completion that was not judged.
      reward: its reward; a function may change it.
      is_judged: whether it could be scored; otherwise it is not trained on anyway.
      truncated: whether a limit cut it.
      version: oldest version of the weights that sampled it.
      notes: numbers by name; the mean of each over samples becomes the metric `pipeline/NAME`.
    """

    text: str
    tokens: int
    reward: float
    is_judged: bool
    truncated: bool
    version: int
    notes: dict[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(eq=False)
class GroupExperience:
    """A group of a trainer step, as the user's functions get it.

    Attributes:
      step: the trainer step.
      prompt_id: id of the training problem, and `row` its fields, with `prompt` and `answer`.
      samples: completions of the group; a function may leave some out.
    """

    step: int
    prompt_id: int
    row: Mapping[str, Any]
    samples: list[CompletionExperience]


Function = Callable[[list[GroupExperience]], Iterable[GroupExperience] | None]


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """Functions that get a step's groups, one function after the other.

    Attributes:
      functions: functions by their names in the setting.
      task: task with the problems.
    """

    functions: Mapping[str, Function]
    task: Task

    def __call__(self, step: int, groups: Sequence[Group]) -> tuple[list[Group], dict[str, float]]:
        """Applies the functions to a step's groups.

        Returns:
          The groups in their places, with new rewards, and with a mask over the samples that were
          left out; and the metrics.

        Raises:
          RunEndedError: a function failed, or returned an invalid result.
        """
        given = [self._experience(step, group) for group in groups]
        all_samples = {one: [*one.samples] for one in given}
        left = [*given]
        for name, function in self.functions.items():
            left = _applied(name, function, left, all_samples)
        kept = {id(sample) for one in left for sample in one.samples}
        there = {id(one) for one in left}
        masks = [
            np.array([id(one) in there and id(sample) in kept for sample in samples])
            for one, samples in all_samples.items()
        ]
        made = [
            _changed(group, samples, mask)
            for group, samples, mask in zip(groups, all_samples.values(), masks, strict=True)
        ]
        notes = collections.defaultdict[str, list[float]](list)
        for samples in all_samples.values():
            for sample in samples:
                for name, value in sample.notes.items():
                    notes[f"pipeline/{name}"].append(float(value))
        metrics = {name: float(np.mean(values)) for name, values in notes.items()}
        return made, metrics | {"pipeline/left_out": float((~np.concatenate(masks)).mean())}

    def _experience(self, step: int, group: Group) -> GroupExperience:
        cut = [False] * len(group.rewards) if group.truncated is None else group.truncated.tolist()
        samples = []
        for row, mask in enumerate(group.completion_mask):
            drawn = group.policy_versions[row] >= 0
            ids = last_reply(group.tokens[row], drawn).tolist()
            samples.append(
                CompletionExperience(
                    text=self.task.tokenizer.decode(ids),
                    tokens=int(mask.sum()),
                    reward=float(group.rewards[row]),
                    is_judged=bool(mask.any()),
                    truncated=bool(cut[row]),
                    version=int(group.policy_versions[row][drawn].min()) if drawn.any() else -1,
                )
            )
        return GroupExperience(
            step, group.prompt_id, self.task.train[group.prompt_id].fields, samples
        )


def pipeline_of(expression: str | None, task: Task) -> Pipeline | None:
    """Makes the pipeline that `experience.pipeline` names; None if it is not set.

    Raises:
      ConfigError: a function cannot be imported, or does not have such an option.
    """
    if expression is None:
        return None
    functions: dict[str, Function] = {}
    try:
        for number, call in enumerate(parse_calls(expression), start=1):
            if not is_reference(call.name):
                raise ValueError(f"{call.name} is not module:function or path/to/file.py:function.")
            functions[f"{call.name} ({number})"] = _made(call.name, call.options)
    except ValueError as error:
        require(False, f"experience.pipeline={expression!r}: {error}")
    return Pipeline(functions, task)


def _made(name: str, options: Mapping[str, Any]) -> Function:
    """Makes a function from a reference; a class is instantiated, so that it can keep a state."""
    found = resolve(name)
    is_class = inspect.isclass(found)
    signature = inspect.signature(found)
    if not is_class and not signature.parameters:
        raise ValueError(f"{name} takes no argument, but must take the list of experiences.")
    given = [*signature.parameters.values()][0 if is_class else 1 :]
    names = [one.name for one in given if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    try:
        signature.bind(*(() if is_class else (None,)), **options)
    except TypeError as error:
        has = f"it has {', '.join(names)}" if names else "it has none"
        for option in options:
            if option not in names:
                raise ValueError(
                    f"{name} has no option {option!r}: {has}{hint(option, names)}"
                ) from error
        takes = "its options" if is_class else "the list of experiences, and then its options"
        raise ValueError(f"{name} takes {takes}: {error}; {has}.") from error
    if not is_class:
        return lambda experiences: found(experiences, **options)
    try:
        made = found(**options)
    except Exception as error:
        raise ValueError(f"{name} cannot be made: {type(error).__name__}: {error}") from error
    if not callable(made):
        raise ValueError(f"{name} must have __call__(self, experiences), but does not.")
    return made


def _applied(
    name: str,
    function: Function,
    given: list[GroupExperience],
    all_samples: Mapping[GroupExperience, Sequence[CompletionExperience]],
) -> list[GroupExperience]:
    """Calls a function; returns the experiences that it keeps.

    Args:
      all_samples: samples that each experience of the step began with.

    Raises:
      RunEndedError: the function failed, or its result is invalid.
    """
    try:
        found = function([*given])
        left = given if found is None else list(found)
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if frame.filename != __file__]
        place = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
        raise RunEndedError(
            f"The function {name} of experience.pipeline failed: {type(error).__name__}:"
            f" {error}{place}"
        ) from error
    known = {id(one) for one in given}
    if any(id(one) not in known for one in left):
        raise RunEndedError(
            f"The function {name} of experience.pipeline returned something that was not among"
            " its arguments: it must return those of its experiences to train on."
        )
    for one, its in all_samples.items():
        if left.count(one) > 1:
            raise RunEndedError(
                f"The function {name} of experience.pipeline returned problem {one.prompt_id}"
                f" {left.count(one)} times: experiences can be left out, not repeated."
            )
        added = collections.Counter(map(id, one.samples)) - collections.Counter(map(id, its))
        if added:
            raise RunEndedError(
                f"The function {name} of experience.pipeline added a sample to problem"
                f" {one.prompt_id} that was not there, or was there already: samples can be left"
                " out, but not added or repeated."
            )
        for sample in its:
            numbers = {"reward": sample.reward, **sample.notes}
            for what, value in numbers.items():
                if not isinstance(value, _NUMBERS) or not abs(value) <= _GREATEST:
                    raise RunEndedError(
                        f"The function {name} of experience.pipeline set {what}={_shown(value)} in"
                        f" a sample of problem {one.prompt_id}: it must be a finite number, of at"
                        f" most {_GREATEST:.2g}."
                    )
    return left


def _shown(value: object) -> str:
    """Returns a value as text, or the size of an integer that is too long for Python to write."""
    if isinstance(value, int) and value.bit_length() > 1024:
        return f"a number of {value.bit_length()} bits"
    return repr(value)[:80]


def _changed(group: Group, samples: Sequence[CompletionExperience], kept: np.ndarray) -> Group:
    """Gives a group the samples' rewards, and masks samples that were left out.

    A masked sample gets the mean reward of the other samples, so that it changes no baseline.
    """
    rewards = np.array([sample.reward for sample in samples], np.float32)
    learned = kept & np.array([sample.is_judged for sample in samples])
    if not learned.all():
        mean = rewards[learned].mean() if learned.any() else np.float32(0.0)
        rewards = np.where(learned, rewards, mean).astype(np.float32)
    return dataclasses.replace(
        group, rewards=rewards, completion_mask=group.completion_mask & learned[:, None]
    )
