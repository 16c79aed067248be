"""The rewards of the package by name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from rl_sync.expression import Term, parse_sum
from rl_sync.references import is_reference, resolve
from rl_sync.rewards.other_trainers import is_foreign, translated
from rl_sync.spelling import hint, require_one_of


class RewardKind(NamedTuple):
    """A named reward.

    Attributes:
      where: a reference to its class, which is imported on first use.
      meaning: its description, one sentence.
      has_answers: whether its judgements have an `answer`, on which evaluations vote; see
        `Judgement`.
      is_quick: whether it takes microseconds and little memory for any completion, so it needs no
        worker with limits.
      reads_answer: whether it reads the row's answer.
      shapes: whether it judges the form of a completion, and not its outcome.
    """

    where: str
    meaning: str
    has_answers: bool
    is_quick: bool = False
    reads_answer: bool = True
    shapes: bool = False


_LIGHT = "rl_sync.rewards."
BY_SET = "by_set"
THOUGHTS = "thoughts"
SET = "task_set"
"""The field of a row that names its set in a mixture of tasks."""

REWARDS = {
    "exact": RewardKind(
        "rl_sync.rewards.exact:ExactMatch",
        "Compares the completion with the answer as text.",
        has_answers=True,
        is_quick=True,
    ),
    "final_answer": RewardKind(
        "rl_sync.rewards.exact:FinalAnswer",
        "Compares the text after the last # with the answer.",
        has_answers=True,
        is_quick=True,
    ),
    "environment": RewardKind(
        "rl_sync.rewards.environment:EnvironmentReward",
        "Takes the rewards that the environment of an episode gave.",
        has_answers=False,
        is_quick=True,
        reads_answer=False,
    ),
    BY_SET: RewardKind(
        "rl_sync.rewards.rewards_by_set:RewardBySet",
        "Judges each set of a mixture of tasks by a reward of its own.",
        has_answers=True,
    ),
    "math": RewardKind(
        "rl_sync.rewards.math:MathAnswer",
        "Compares mathematical answers by value.",
        has_answers=True,
    ),
    "k12": RewardKind(
        "rl_sync.rewards.k12:SchoolAnswer",
        "Judges school questions of seven kinds.",
        has_answers=True,
    ),
    "code": RewardKind(
        "rl_sync.rewards.code:Code",
        "Runs a program against tests, in a sandbox.",
        has_answers=False,
    ),
    "format": RewardKind(
        "rl_sync.rewards.text_shaping:FormatMatch",
        "Looks for a pattern or for tags.",
        reads_answer=False,
        has_answers=False,
        shapes=True,
    ),
    "length_band": RewardKind(
        "rl_sync.rewards.text_shaping:LengthBand",
        "Prefers completions within a range of lengths.",
        has_answers=False,
        is_quick=True,
        reads_answer=False,
        shapes=True,
    ),
    "soft_overlong": RewardKind(
        "rl_sync.rewards.text_shaping:SoftOverlong",
        "Punishes the last tokens before the limit.",
        has_answers=False,
        is_quick=True,
        reads_answer=False,
        shapes=True,
    ),
    "repetition": RewardKind(
        "rl_sync.rewards.text_shaping:Repetition",
        "Punishes repeated n-grams.",
        reads_answer=False,
        has_answers=False,
        shapes=True,
    ),
    "language": RewardKind(
        "rl_sync.rewards.text_shaping:LanguageShare",
        "Measures the share of letters of a script.",
        reads_answer=False,
        has_answers=False,
        shapes=True,
    ),
    "vision": RewardKind(
        "rl_sync.rewards.images.vision:VisionReward",
        "Judges questions about images by `kind` of the row.",
        has_answers=True,
    ),
    "iou": RewardKind(
        "rl_sync.rewards.images.grounding:BoxOverlap",
        "Compares boxes by their overlap.",
        has_answers=True,
    ),
    "point_in_box": RewardKind(
        "rl_sync.rewards.images.grounding:PointInBox",
        "Counts the boxes that have a point in them.",
        has_answers=True,
    ),
    "count": RewardKind(
        "rl_sync.rewards.images.visual_answers:Count",
        "Compares a number of things.",
        has_answers=True,
    ),
    "vqa": RewardKind(
        "rl_sync.rewards.images.visual_answers:VqaAccuracy",
        "Counts the people who gave that answer.",
        has_answers=True,
    ),
    "anls": RewardKind(
        "rl_sync.rewards.images.visual_answers:Anls",
        "Compares texts by their Levenshtein distance.",
        has_answers=True,
    ),
    "relaxed_number": RewardKind(
        "rl_sync.rewards.images.visual_answers:RelaxedNumber",
        "Compares numbers within 5 %.",
        has_answers=True,
    ),
    "choice": RewardKind(
        "rl_sync.rewards.images.visual_answers:OptionMatch",
        "Compares the chosen option.",
        has_answers=True,
    ),
    "llm_judge": RewardKind(
        "rl_sync.rewards.llm.llm_judge:LlmJudge",
        "Asks a language model behind an OpenAI-compatible endpoint.",
        has_answers=False,
    ),
    "reward_model": RewardKind(
        "rl_sync.reward_models.reward_model:RewardModel",
        "Scores completions by a model with a head.",
        reads_answer=False,
        has_answers=False,
    ),
    "self_judge": RewardKind(
        "rl_sync.reward_models.self_judge:SelfJudge",
        "Asks a model, such as the policy's earlier self, how likely a verdict is.",
        has_answers=False,
    ),
}


def is_quick(expression: str) -> bool:
    """Says whether every term of an expression is a quick reward of the table."""
    kinds = [REWARDS.get(term.name) for term in _terms(expression)]
    return all(kind is not None and kind.is_quick for kind in kinds)


def imports_little(expression: str) -> bool:
    """Says whether all terms of an expression belong to the package and need no model in JAX."""
    kinds = [REWARDS.get(term.name) for term in _terms(expression)]
    return all(kind is not None and kind.where.startswith(_LIGHT) for kind in kinds)


def reads_answer(expression: str) -> bool:
    """Says whether a term of an expression may read the row's answer.

    A user's own reward may. One of TRL or verl checks the fields that it takes itself; see
    `rl_sync.rewards.other_trainers`.
    """
    return any(map(_reads_answer, _terms(expression)))


def _reads_answer(term: Term) -> bool:
    if (kind := REWARDS.get(term.name)) is not None:
        return kind.reads_answer
    if not is_reference(term.name):
        return True
    try:
        found = resolve(term.name)
    except ValueError:
        return False  # It is refused where it is made.
    return inspect.isclass(found) or not is_foreign(found)


def may_vote(expression: str) -> bool:
    """Says whether the first term may read answers to vote on; a user's own reward may."""
    first = parse_sum(expression)[0]
    if first.name == BY_SET:
        return all(may_vote(str(of_set)) for of_set in first.options.values())
    kind = REWARDS.get(first.name)
    return kind is None or kind.has_answers


def by_set(rewards: Mapping[str, str]) -> str:
    """Returns the expression `by_set(…)` for the reward expression of each set."""
    return f"{BY_SET}({', '.join(f'{name}={reward!r}' for name, reward in rewards.items())})"


def _terms(expression: str) -> list[Term]:
    """Reads the terms of an expression, and the terms inside `by_set`."""
    terms = parse_sum(expression)
    inner = [str(one) for term in terms if term.name == BY_SET for one in term.options.values()]
    return [term for term in terms if term.name != BY_SET] + [
        term for one in inner for term in _terms(one)
    ]


class MadeReward(NamedTuple):
    """A reward of a term.

    Attributes:
      judges: the reward, a callable.
      thoughts: the option `thoughts` of every reward: true for a reward that reads the whole reply,
        false for one that reads its answer alone; None if it is not given.
    """

    judges: Callable[..., Any]
    thoughts: bool | None = None


def make(term: Term) -> MadeReward:
    """Makes the reward of a term: a reward of the table, or the object that a reference names.

    A class gets the options when it is made, a function gets them as keyword arguments of each
    call. Functions of TRL and verl are taken, too. `thoughts` is an option of every reward, unless
    the reward has its own of that name.

    Raises:
      ValueError: there is no such reward (the message names the nearest) or no such option, or the
        class refuses the options.
    """
    if is_reference(term.name):
        found = resolve(term.name)
    else:
        require_one_of("task.reward", term.name, REWARDS)
        found = resolve(REWARDS[term.name].where)
    is_class = inspect.isclass(found)
    parameters = inspect.signature(found).parameters
    is_own = is_class or not is_foreign(found)
    names = list(parameters)[2 if is_own and not is_class else 0 :]
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    options = {**term.options}
    thoughts = None if takes_any or THOUGHTS in names else options.pop(THOUGHTS, None)
    if thoughts not in (None, True, False):
        raise ValueError(
            f"The reward {term.name} has {THOUGHTS}={thoughts!r}: write {THOUGHTS}=True for the"
            f" whole reply, or {THOUGHTS}=False for its answer alone."
        )
    for name in options:
        if name not in names and not takes_any:
            known = [*names, THOUGHTS]
            raise ValueError(
                f"The reward {term.name} has no option {name!r}: it has {', '.join(known)}"
                f"{hint(name, known)}"
            )
    if not is_class:
        bind = _bound if is_own else functools.partial(translated, term.name)
        return MadeReward(bind(found, options), thoughts)
    try:
        made = found(**options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"The reward {term.name} cannot be made: {error}") from error
    if not callable(made):
        raise ValueError(
            f"The reward {term.name} must have a method __call__(self, row, completion)."
        )
    made = translated(term.name, made, {}) if is_foreign(made) else made
    return MadeReward(made, thoughts)


def _bound(function: Callable[..., Any], options: Any) -> Callable[..., Any]:
    if not options:
        return function
    if inspect.iscoroutinefunction(function):

        async def call_async(row: Any, completion: Any) -> Any:
            return await function(row, completion, **options)

        return call_async
    first = next(iter(inspect.signature(function).parameters), "")
    if first == "rows":
        return lambda rows, completions: function(rows, completions, **options)
    return lambda row, completion: function(row, completion, **options)
