"""Chooses a run's next prompts by the history of prompts (the curriculum).

Every choice is a pure function of the settings, the seed and the history
(`rl_sync.tasks.prompt_history`).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from rl_sync.rewards.reward_catalog import SET
from rl_sync.setting import check, setting
from rl_sync.tasks.mixture import MixtureConfig, sets_of
from rl_sync.tasks.order import prompt_at
from rl_sync.tasks.prompt_history import PromptHistory
from rl_sync.types import ChosenPrompt, Prompt

SHUFFLED, BAND, EASY_TO_HARD, LEAST_SEEN = (
    "shuffled",
    "difficulty_band",
    "easy_to_hard",
    "least_seen",
)
SOLVED = "solved"
IN_BAND, UNSEEN, OUTSIDE = "in band", "unseen", "outside the band"
"""Reasons why `difficulty_band` chose a prompt."""

_ORDERS, _DRAWS, _SETS = 1, 2, 3  # Seed words, in addition to those of `rl_sync.tasks.order`.
_BLOCK = 1000  # Number of places in which each set of a mixture gets its share.
_RECENT = 64  # Number of prompts whose success rates give the learnability of a set.


@dataclasses.dataclass(frozen=True)
class CurriculumSettings:
    """`config.curriculum`.

    Raises:
      ValueError: a value outside its bounds, or an unknown choice.
    """

    selection: str = setting(
        SHUFFLED,
        "Choice of the next prompts: `shuffled`, all in a new random order for each epoch;"
        " `difficulty_band`, those whose success rate is in a band; `easy_to_hard`, all, the"
        " easiest first; `least_seen`, those with the fewest uses. All except `shuffled` depend on"
        " each prompt's history.",
        choices=(SHUFFLED, BAND, EASY_TO_HARD, LEAST_SEEN),
    )
    success: str = setting(
        SOLVED,
        "Success of a group: `solved`, the fraction of its completions that solve the problem (the"
        " reward's first term is 1 or more), or `reward`, their mean reward.",
        choices=(SOLVED, "reward"),
    )
    newest_weight: float = setting(
        0.5,
        "Weight of a prompt's newest group in its success rate; earlier groups have the rest. With"
        " 1 only the newest counts.",
        above=0,
        greatest=1,
    )
    low: float = setting(0.2, "Minimum success rate of the band of `difficulty_band`.")
    high: float = setting(0.8, "Maximum success rate of the band of `difficulty_band`.")
    explore: float = setting(
        0.5,
        "Fraction of the prompts of `difficulty_band` that come from outside the band: new ones,"
        " and after those the ones that were used longest ago, which may be in it by now.",
        least=0,
        below=1,
    )
    difficulty: str | None = setting(
        None,
        "Field of the rows with a number that `easy_to_hard` sorts by, such as a level.",
        implied="1 minus the success rate, so that a first pass tries all",
    )

    def __post_init__(self) -> None:
        check(self, "curriculum")

    @property
    def follows_history(self) -> bool:
        """True if the choice depends on the history of prompts."""
        return self.selection != SHUFFLED

    def is_in_band(self, rates: Float[np.ndarray, " P"]) -> Bool[np.ndarray, " P"]:
        """Returns a mask of the success rates that are in the band."""
        return (rates >= self.low) & (rates <= self.high)


@dataclasses.dataclass(frozen=True, eq=False)
class PromptPool:
    """The prompts that a run chooses from.

    Attributes:
      count: number of prompts.
      difficulty: difficulties of the prompts from their rows; None if rows have none.
      sets: sets of a mixture; none if the task is not a mixture.
      by_progress: whether the shares of sets depend on how much their prompts teach.
    """

    count: int = 1
    difficulty: Float[np.ndarray, " P"] | None = None
    sets: Sequence[PromptSet] = ()
    by_progress: bool = False

    def shares(self, history: PromptHistory) -> Float[np.ndarray, " S"]:
        """Returns the shares of the sets among the next prompts, which sum to 1.

        With `by_progress`, the share of a set is proportional to its weight times (0.1 + its
        `learnability`); the tenth keeps every set in use.
        """
        weights = np.array([one.weight for one in self.sets])
        if self.by_progress:
            weights = weights * [0.1 + learnability(history, one.members) for one in self.sets]
        return weights / weights.sum()


class PromptSet(NamedTuple):
    """A set of a mixture.

    Attributes:
      name, weight: see `rl_sync.tasks.mixture.TaskSet`.
      members: ids of its prompts.
    """

    name: str
    weight: float
    members: Int[np.ndarray, " M"]


def learnability(history: PromptHistory, members: Int[np.ndarray, " M"]) -> float:
    """Returns the mean of 4p(1-p) over a set's most recently used prompts; 1 if none was used.

    Success rates below 0 count as 0, and above 1 as 1, since mean rewards may be any number.
    """
    used = members[history.uses[members] > 0]
    if not len(used):
        return 1.0
    last = used[np.lexsort((used, -history.last_step[used]))[:_RECENT]]
    rates = history.success[last].clip(0, 1)
    return float((4 * rates * (1 - rates)).mean())


def sets_at(
    pool: PromptPool, history: PromptHistory, seed: int, ordinals: Sequence[int]
) -> list[int]:
    """Returns the number of the set for each place in a run's order.

    The set depends only on the place, or with `by_progress` on the place and the history.
    """
    if not pool.by_progress:
        return [_set_and_place(pool, seed, ordinal)[0] for ordinal in ordinals]
    bounds = np.cumsum(pool.shares(history.of(pool.count)))
    draws = [np.random.default_rng([seed, _SETS, ordinal]).random() for ordinal in ordinals]
    return [min(int(np.searchsorted(bounds, draw)), len(bounds) - 1) for draw in draws]


def shuffled_at(pool: PromptPool, seed: int, ordinal: int, replacement: int) -> int:
    """Returns the prompt at a place in a random order; see `prompt_at`."""
    if not pool.sets:
        return prompt_at(ordinal, pool.count, seed, replacement)
    number, place = _set_and_place(pool, seed, ordinal)
    members = pool.sets[number].members
    return int(members[prompt_at(place, len(members), seed, replacement)])


def _set_and_place(pool: PromptPool, seed: int, ordinal: int) -> tuple[int, int]:
    """Returns the set at a place under fixed weights, and how many earlier places the set has."""
    weights = tuple(one.weight for one in pool.sets)
    block, at = divmod(ordinal, _BLOCK)
    numbers = _block(seed, block, weights)
    number = int(numbers[at])
    of_a_block = int((numbers == number).sum())
    return number, block * of_a_block + int((numbers[:at] == number).sum())


@functools.lru_cache(maxsize=16)
def _block(seed: int, block: int, weights: tuple[float, ...]) -> Int[np.ndarray, " N"]:
    """Returns the sets of a block of places in random order; each set gets its exact share."""
    shares = np.array(weights) / sum(weights) * _BLOCK
    counts = np.maximum(1, np.floor(shares).astype(int))
    for number in np.argsort(-(shares - counts), kind="stable")[: max(0, _BLOCK - counts.sum())]:
        counts[number] += 1
    counts[int(np.argmax(counts))] -= counts.sum() - _BLOCK
    numbers = np.repeat(np.arange(len(weights)), counts)
    return np.random.default_rng([seed, _SETS, block]).permutation(numbers)


def pool_of(
    settings: CurriculumSettings, train: Sequence[Prompt], mixture: MixtureConfig | None = None
) -> PromptPool:
    """Makes the pool of a task's training problems.

    Raises:
      ValueError: a row lacks the difficulty field, or its value is not a number.
    """
    sets, by_progress = _prompt_sets(train, mixture), bool(mixture and mixture.weights != "fixed")
    if (field := settings.difficulty) is None:
        return PromptPool(len(train), None, sets, by_progress)
    difficulty = np.zeros(len(train))
    for i, prompt in enumerate(train):
        value = prompt.fields.get(field)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is None or not is_number or not math.isfinite(value):
            there = ", ".join(map(repr, prompt.fields))
            found = f"has {value!r} there" if field in prompt.fields else f"has only {there}"
            raise ValueError(
                f"curriculum.difficulty={field!r} must be a field of every row, with a number;"
                f" training problem {i} ({prompt.text[:60]!r}) {found}."
            )
        difficulty[i] = value
    return PromptPool(len(train), difficulty, sets, by_progress)


def _prompt_sets(train: Sequence[Prompt], mixture: MixtureConfig | None) -> tuple[PromptSet, ...]:
    if mixture is None or mixture.sets is None:
        return ()
    names = np.array([(prompt.row or {})[SET] for prompt in train])
    sets = [
        PromptSet(one.name, one.weight, np.flatnonzero(names == one.name))
        for one in sets_of(mixture.sets)
    ]
    for one in sets:
        if not len(one.members):
            raise ValueError(f"The set {one.name} of task.mixture.sets has no problems left.")
    return tuple(sets)


@dataclasses.dataclass(frozen=True, eq=False)
class Curriculum:
    """The choice of a run's prompts by their history.

    Attributes:
      settings: the rule of the choice.
      pool: prompts to choose from.
      seed: seed of the run.
    """

    settings: CurriculumSettings
    pool: PromptPool
    seed: int

    def choose(
        self, history: PromptHistory, ordinals: Sequence[int], busy: Collection[int] = ()
    ) -> list[ChosenPrompt]:
        """Chooses the next prompts, all different as long as there are enough.

        Args:
          ordinals: place of each prompt in the run's order, which seeds the draws.
          busy: prompts with groups in flight, which come last.
        """
        if not self.pool.sets:
            return self._chosen(history, ordinals[0], len(ordinals), busy)
        history = history.of(self.pool.count)
        numbers = sets_at(self.pool, history, self.seed, ordinals)
        found = {}
        for number in set(numbers):
            members, picks = self.pool.sets[number].members, numbers.count(number)
            part = PromptHistory(
                *(x[members] for x in (history.uses, history.success, history.last_step))
            )
            places = np.flatnonzero(np.isin(members, list(busy))).tolist()
            choices = self._of_set(members)._chosen(part, ordinals[0], picks, places)
            found[number] = iter([one._replace(prompt=int(members[one.prompt])) for one in choices])
        return [next(found[number]) for number in numbers]

    def _of_set(self, members: Int[np.ndarray, " M"]) -> Curriculum:
        """Returns the choice among the prompts of one set."""
        difficulty = None if self.pool.difficulty is None else self.pool.difficulty[members]
        return dataclasses.replace(self, pool=PromptPool(len(members), difficulty))

    def _chosen(
        self, history: PromptHistory, ordinal: int, picks: int, busy: Collection[int]
    ) -> list[ChosenPrompt]:
        settings, pool = self.settings, self.pool
        history, rank = history.of(pool.count), _ranks(self.seed, ordinal // pool.count, pool.count)
        is_busy = np.zeros(pool.count, bool)
        is_busy[[prompt for prompt in busy if prompt < pool.count]] = True
        if settings.selection == BAND:
            draws = np.random.default_rng([self.seed, _DRAWS, ordinal]).random(picks)
            order = _band_order(settings, history, rank, is_busy, draws < settings.explore)
        elif settings.selection == EASY_TO_HARD:
            measured = np.where(history.uses > 0, 1 - history.success, 0.0)
            difficulty = measured if pool.difficulty is None else pool.difficulty
            order = np.lexsort((rank, difficulty, history.uses + is_busy))
        else:
            order = np.lexsort((rank, history.last_step, history.uses + is_busy))
        chosen = [int(prompt) for prompt in np.resize(order[:picks], picks)]
        if settings.selection != BAND:
            return [ChosenPrompt(prompt) for prompt in chosen]
        in_band = settings.is_in_band(history.success)
        return [
            ChosenPrompt(
                prompt,
                (IN_BAND if in_band[prompt] else OUTSIDE) if history.uses[prompt] else UNSEEN,
            )
            for prompt in chosen
        ]


def _band_order(
    settings: CurriculumSettings,
    history: PromptHistory,
    rank: Int[np.ndarray, " P"],
    is_busy: Bool[np.ndarray, " P"],
    explores: Bool[np.ndarray, " N"],
) -> Int[np.ndarray, " P"]:
    """Sorts prompts: prompts in the band, mixed with prompts to explore.

    If the band has too few prompts, new prompts follow, then the prompts nearest to the band.

    Args:
      rank: order of prompts that are equal otherwise.
      explores: whether each place in the result takes a prompt to explore.
    """
    is_new, rates = history.uses == 0, history.success
    in_band = settings.is_in_band(rates) & ~is_new
    distance = np.maximum(settings.low - rates, rates - settings.high).clip(0)
    # New prompts come after all prompts in the band, and before all prompts outside.
    stage = np.where(in_band, 0, np.where(is_new, 1, 2))
    away = np.where(is_new, 0.0, distance)
    main = np.lexsort((rank, history.last_step, away, stage, is_busy))
    aside = np.where(is_new, 0, np.where(in_band, 2, 1))
    explored = np.lexsort((rank, history.last_step, aside, is_busy))
    queues, taken = {True: iter(explored.tolist()), False: iter(main.tolist())}, dict[int, None]()
    for of in explores.tolist():
        found = next((prompt for prompt in queues[of] if prompt not in taken), None)
        if found is None:
            break
        taken[found] = None
    return np.fromiter(taken, np.int64, len(taken))


@functools.lru_cache(maxsize=4)
def _ranks(seed: int, epoch: int, count: int) -> Int[np.ndarray, " P"]:
    """Returns the rank of each prompt in an epoch's random order, for ties."""
    return np.random.default_rng([seed, _ORDERS, epoch, count]).permutation(count)
