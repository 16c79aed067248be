"""Sync schedules: when weights are published, which version an explorer uses, how stale data gets.

One *explorer step* e = 1, 2, … generates a batch of groups; one *trainer step* t = 1, 2, …
consumes a batch. A *policy version* is the number of trainer steps that its weights have behind
them, 0 at the start. The *staleness* of a group is counted in trainer steps: when step t consumes
tokens of version v it is (t - 1) - v, since t - 1 is the version that step t improves.

Everything here is a pure function of integers: no clocks, no threads, no I/O.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal, NamedTuple

Pull = Literal["exact", "latest"]


@dataclasses.dataclass(frozen=True)
class SyncSchedule:
    """When weights move from the trainer to the explorers.

    Attributes:
      interval: I >= 1; the trainer publishes after every I-th step.
      offset: O >= 0; how many batches the explorers run ahead of the trainer. Used by exact pulls.
      pull: `exact`, explorer step e uses one version that this object names; `latest`, it uses the
        newest that is published, within `max_staleness`.
      max_staleness: no group staler than this is ever trained on, in trainer steps.

    Raises:
      ValueError: the values contradict each other; the message says which and what to do.
    """

    interval: int
    offset: int
    pull: Pull
    max_staleness: int

    def __post_init__(self) -> None:
        if self.interval < 1:
            raise ValueError(
                f"sync.interval is the number of trainer steps between two publications: it must be"
                f" at least 1, not {self.interval}."
            )
        if self.offset < 0:
            raise ValueError(
                f"sync.offset is how many batches the explorers run ahead: it must be at least 0,"
                f" not {self.offset}."
            )
        if self.pull == "exact":
            least, why = self.interval + self.offset - 1, "interval + offset - 1"
        else:
            least, why = self.interval - 1, "interval - 1"
        if self.max_staleness < least:
            raise ValueError(
                f"sync.max_staleness={self.max_staleness} is below {why} = {least}, the staleness"
                f" that interval={self.interval}"
                + (f" and offset={self.offset} need" if self.pull == "exact" else " needs")
                + ": explorers would wait for weights that the trainer cannot publish before it"
                f" gets their groups. Use at least {least}, or a smaller interval."
            )

    def publishes_after(self, t: int) -> bool:
        """Whether the trainer publishes its weights after trainer step t (t = 0: the start)."""
        return t % self.interval == 0

    def exact_version(self, e: int) -> int:
        """The version that explorer step e uses under exact pulls: max(0, I·⌊(e−1−O)/I⌋)."""
        return max(0, self.interval * ((e - 1 - self.offset) // self.interval))

    def first_user(self, version: int) -> int:
        """The first explorer step that uses a published version under exact pulls."""
        return 1 if version == 0 else version + self.offset + 1

    def may_start(self, e: int, version: int) -> bool:
        """Whether explorer step e may generate with weights of `version`.

        Under exact pulls only with the one version that is due; under latest pulls with any that
        cannot become too stale before trainer step e consumes the batch.
        """
        if self.pull == "exact":
            return version == self.exact_version(e)
        return version >= e - 1 - self.max_staleness

    def staleness(self, t: int, version: int) -> int:
        """Staleness, in trainer steps, of tokens of `version` when trainer step t consumes them."""
        return t - 1 - version

    def accepts(self, t: int, version: int) -> bool:
        """Whether trainer step t may train on a group whose oldest token is of `version`.

        A negative staleness is refused too: it means that the trainer went back to an earlier
        state after the group was generated.
        """
        return 0 <= self.staleness(t, version) <= self.staleness_bound

    @property
    def staleness_bound(self) -> int:
        """The staleness, in trainer steps, that no trained group exceeds."""
        return self.interval + self.offset - 1 if self.pull == "exact" else self.max_staleness

    @property
    def batches_ahead(self) -> int:
        """The most batches that are generated, or being generated, but not yet trained on."""
        return self.staleness_bound + 1

    @property
    def versions_kept(self) -> int:
        """How many published versions must stay readable at the same time."""
        return max(3, -(-self.batches_ahead // self.interval) + 2)


class Mode(NamedTuple):
    """A named way to synchronize: what it fixes, and what it leaves to the config.

    Attributes:
      pull: see `SyncSchedule`; None when `sync.pull` in the config says.
      interval, offset: the defaults.
      fixed_offset: whether another offset contradicts the mode.
      transfer: the default transfer.
      explorers: the least and the most explorers; None for no limit.
      max_staleness: from (interval, offset) to the default bound.
      summary: who waits for whom, in words.
    """

    pull: Pull
    interval: int
    offset: int
    fixed_offset: bool
    fixed_interval: bool
    transfer: str
    explorers: tuple[int, int | None]
    max_staleness: Callable[[int, int], int]
    summary: str


def _exact_bound(interval: int, offset: int) -> int:
    return interval + offset - 1


def _latest_bound(interval: int, offset: int) -> int:
    del offset
    return interval + 1


MODES: dict[str, Mode] = {
    "synchronous": Mode(
        "exact", 1, 0, True, False, "collective", (1, None), _exact_bound,
        "The trainer waits for experiences; the explorers wait for the new weights.",
    ),
    "one_step_off_policy": Mode(
        "exact", 1, 1, True, True, "collective", (1, None), _exact_bound,
        "The explorers run one step ahead of the trainer; both meet at each sync.",
    ),
    "asynchronous": Mode(
        "latest", 1, 0, True, False, "checkpoint", (1, 1), _latest_bound,
        "Nobody waits for anybody, as long as staleness stays within the bound.",
    ),
    "multi_explorer": Mode(
        "latest", 1, 0, True, False, "checkpoint", (2, None), _latest_bound,
        "Each explorer goes at its own pace, as long as staleness stays within the bound.",
    ),
    "custom": Mode(
        "exact", 1, 0, False, False, "collective", (1, None), _exact_bound,
        "The explorers run `offset` batches ahead; weights move every `interval` trainer steps.",
    ),
}  # fmt: skip


def resolve(
    mode: str,
    interval: int | None = None,
    offset: int | None = None,
    max_staleness: int | None = None,
) -> SyncSchedule:
    """Makes the schedule of a named mode, with what the user set in place of the defaults.

    Args:
      mode: a key of `MODES`.
      interval, offset, max_staleness: None for the mode's own.

    Raises:
      ValueError: an unknown mode, or values that the mode or each other rule out.
    """
    if mode not in MODES:
        raise ValueError(f"sync.mode={mode!r} is not one of {', '.join(MODES)}.")
    named = MODES[mode]
    chosen_interval = named.interval if interval is None else interval
    chosen_offset = named.offset if offset is None else offset
    if named.fixed_offset and chosen_offset != named.offset and chosen_offset >= 0:
        raise ValueError(
            f"sync.offset={offset} contradicts sync.mode={mode}, whose offset is {named.offset};"
            " leave it out, or use sync.mode=custom."
        )
    if named.fixed_interval and chosen_interval != named.interval and chosen_interval >= 1:
        raise ValueError(
            f"sync.interval={interval} contradicts sync.mode={mode}, whose interval is"
            f" {named.interval}; leave it out, or use sync.mode=custom."
        )
    bound = named.max_staleness(chosen_interval, chosen_offset)
    return SyncSchedule(
        interval=chosen_interval,
        offset=chosen_offset,
        pull=named.pull,
        max_staleness=bound if max_staleness is None else max_staleness,
    )
