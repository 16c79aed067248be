"""Sync schedules: when weights are published, which version explorers use, how stale data gets.

In each *explorer step* e = 1, 2, … the explorers generate a batch of groups; in each *trainer step*
t = 1, 2, … the trainer consumes a batch. A *policy version* is the number of trainer steps that
made its weights, 0 at the start. The *staleness* of a group is counted in trainer steps: when step
t consumes tokens of version v it is (t - 1) - v, since t - 1 is the version that step t improves.

Everything here is a pure function of integers: no clocks, no threads, no I/O.
"""

from __future__ import annotations

import dataclasses
from typing import Literal, NamedTuple, NoReturn

from rl_sync.spelling import hint

Pull = Literal["exact", "latest"]


@dataclasses.dataclass(frozen=True)
class SyncSchedule:
    """Schedule of the weights' way from the trainer to the explorers.

    Attributes:
      interval: I >= 1; the trainer publishes after every I-th step.
      offset: O >= 0; number of batches that the explorers run ahead of the trainer. Used by exact
        pulls.
      pull: with `exact`, explorer step e uses the version that `exact_version` gives; with
        `latest`, it uses the newest published version within `max_staleness`.
      max_staleness: maximum staleness, in trainer steps, of a group that is trained on.
      start: trainer step that the schedule counts from: 0, or the step that a run resumes from.
        Explorers use the weights of that step first.

    Raises:
      ValueError: the values contradict each other; the message says which do and how to fix them.
    """

    interval: int
    offset: int
    pull: Pull
    max_staleness: int
    start: int = 0

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
        """Says whether the trainer publishes after trainer step t; for t = start it always does."""
        return (t - self.start) % self.interval == 0

    def exact_version(self, e: int) -> int:
        """Returns the version that explorer step e uses under exact pulls.

        I·⌊(e − 1 − O)/I⌋ if e > O, else 0; e and the version are both counted from `start`.
        """
        ahead = e - self.start - self.offset
        return self.start + self.interval * max(0, (ahead - 1) // self.interval)

    def first_user(self, version: int) -> int:
        """Returns the first explorer step that uses a published version under exact pulls."""
        return version + 1 if version == self.start else version + self.offset + 1

    def may_start(self, e: int, version: int) -> bool:
        """Says whether explorer step e may generate with weights of `version`.

        Under exact pulls, only one version is allowed: `exact_version`. Under latest pulls, a
        version is allowed if it cannot become too stale before trainer step e consumes the batch.
        """
        if self.pull == "exact":
            return version == self.exact_version(e)
        return version >= e - 1 - self.max_staleness

    def staleness(self, t: int, version: int) -> int:
        """Returns the staleness, in trainer steps, of tokens of `version` in trainer step t."""
        return t - 1 - version

    def accepts(self, t: int, version: int) -> bool:
        """Says whether trainer step t may train on a group whose oldest token is of `version`.

        A negative staleness is refused too: it means that the trainer went back to an earlier state
        after the group was generated.
        """
        return 0 <= self.staleness(t, version) <= self.staleness_bound

    @property
    def staleness_bound(self) -> int:
        """Maximum staleness, in trainer steps, of a group that is trained on."""
        return self.interval + self.offset - 1 if self.pull == "exact" else self.max_staleness

    @property
    def batches_ahead(self) -> int:
        """Maximum number of batches that are generated or in flight, but not yet trained on."""
        return self.staleness_bound + 1

    @property
    def versions_in_use(self) -> int:
        """Number of published versions that an explorer may still request, including the newest."""
        return 1 if self.pull == "latest" else 1 + -(-self.offset // self.interval)

    @property
    def versions_kept(self) -> int:
        """Number of published versions that must stay readable at the same time."""
        return max(3, -(-self.batches_ahead // self.interval) + 2)


class Mode(NamedTuple):
    """A named way to synchronize: values that the mode fixes, and defaults that users may change.

    Attributes:
      summary: one sentence that says who waits for whom.
      pulls: kinds of pulls that the mode allows, its default first.
      fixed_interval, fixed_offset: whether the config must not set another value.
      interval, offset: default values.
      transfer: default weight transfer.
      least_explorers, most_explorers: allowed numbers of explorers; None for no limit.
    """

    summary: str
    pulls: tuple[Pull, ...]
    fixed_interval: bool
    fixed_offset: bool
    interval: int = 1
    offset: int = 0
    transfer: str = "collective"
    least_explorers: int = 1
    most_explorers: int | None = None


MODES: dict[str, Mode] = {
    "synchronous": Mode(
        summary="The trainer waits for experiences; the explorers wait for the new weights.",
        pulls=("exact",),
        fixed_interval=False,
        fixed_offset=True,
    ),
    "one_step_off_policy": Mode(
        summary="The explorers run one step ahead of the trainer; both meet at every sync.",
        pulls=("exact",),
        fixed_interval=True,
        fixed_offset=True,
        offset=1,
    ),
    "asynchronous": Mode(
        summary="Neither waits for the other, as long as staleness stays within the bound.",
        pulls=("latest",),
        fixed_interval=False,
        fixed_offset=True,
        transfer="checkpoint",
        most_explorers=1,
    ),
    "multi_explorer": Mode(
        summary="Every explorer goes at its own pace, as long as staleness stays within the bound.",
        pulls=("latest",),
        fixed_interval=False,
        fixed_offset=True,
        transfer="checkpoint",
        least_explorers=2,
    ),
    "custom": Mode(
        summary="The explorers run up to `offset` batches ahead of what `interval` alone asks for.",
        pulls=("exact", "latest"),
        fixed_interval=False,
        fixed_offset=False,
    ),
}


def resolve(
    mode: str,
    interval: int | None = None,
    offset: int | None = None,
    max_staleness: int | None = None,
    pull: str | None = None,
) -> SyncSchedule:
    """Makes the schedule of a named mode; the values that the user set replace the defaults.

    Args:
      mode: a key of `MODES`.
      interval, offset, max_staleness, pull: None for the mode's default. The default of
        max_staleness is interval + offset - 1 for exact pulls, which never exceed it. For latest
        pulls it is interval + 1: a trainer and an explorer of equal speed then never wait.

    Raises:
      ValueError: the mode is unknown, or values contradict the mode or each other.
    """
    if mode not in MODES:
        raise ValueError(
            f"sync.mode={mode!r} is not a mode{hint(mode, MODES)} The modes are {', '.join(MODES)}."
        )
    named = MODES[mode]
    if interval is not None and named.fixed_interval and interval != named.interval:
        _contradiction(mode, "interval", interval, named.interval)
    if offset is not None and named.fixed_offset and offset != named.offset:
        _contradiction(mode, "offset", offset, named.offset)
    if pull is not None and pull not in named.pulls:
        _contradiction(mode, "pull", pull, " or ".join(named.pulls))
    chosen: Pull = "latest" if (pull or named.pulls[0]) == "latest" else "exact"
    interval = named.interval if interval is None else interval
    offset = named.offset if offset is None else offset
    if max_staleness is None:
        max_staleness = interval + offset - 1 if chosen == "exact" else interval + 1
    return SyncSchedule(interval, offset, chosen, max_staleness)


def _contradiction(mode: str, name: str, value: object, own: object) -> NoReturn:
    raise ValueError(
        f"sync.{name}={value} contradicts sync.mode={mode}, whose {name} is {own}: leave it out,"
        " or use sync.mode=custom, where it is free."
    )
