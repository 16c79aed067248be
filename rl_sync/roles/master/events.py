"""Messages to and from the master: its settings, events and commands, as plain records."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from rl_sync.algorithms.screening import NO_SCREENING, Screening
from rl_sync.schedule import SyncSchedule
from rl_sync.tasks.curriculum import ChosenPrompt, CurriculumSettings, PromptPool
from rl_sync.types import Seen, Use

TOO_STALE = "too stale"
LEASE_EXPIRED = "lease expired"
EXPLORER_DIED = "its explorer died"
LEFT_OUT = "left out of the batch"
RUN_ENDED = "the run ended"


@dataclasses.dataclass(frozen=True)
class MasterSettings:
    """Facts of the run that the master decides by.

    Attributes:
      schedule: the sync schedule.
      steps: trainer steps of the whole run.
      groups_per_step: groups that one trainer step consumes, B; those that it leaves out included.
      explorers: how many explorers take part; under exact pulls in lockstep.
      groups_per_lease: the most groups that an explorer has under way at once, unless it says how
        many it has room for.
      lease_secs: how long a lease lives without a sign of life from its explorer.
      carries_over: whether explorers leave groups unfinished and go on with them in their next
        rollouts; under latest pulls.
      screening: which groups are replaced before they reach the replay buffer.
      max_leases: the most leases of a prompt that are given since environments failed; under latest
        pulls. Under exact pulls a batch has the groups of its step, so a prompt is not leased again
        for that.
      times_sampled: how many steps may train on a group; more than one under latest pulls.
      evaluate_every_steps: trainer steps between two evaluations by explorers; 0 for none.
      curriculum, pool: how prompts are chosen, and of which.
      seed: of the run.
    """

    schedule: SyncSchedule
    steps: int
    groups_per_step: int
    explorers: int
    groups_per_lease: int
    lease_secs: float
    carries_over: bool = False
    screening: Screening = NO_SCREENING
    max_leases: int = 1
    times_sampled: int = 1
    evaluate_every_steps: int = 0
    curriculum: CurriculumSettings = dataclasses.field(default_factory=CurriculumSettings)
    pool: PromptPool = dataclasses.field(default_factory=PromptPool)
    seed: int = 0

    @property
    def follows_history(self) -> bool:
        """Says whether the choice of prompts depends on what became of them before."""
        return self.curriculum.follows_history or self.pool.by_progress

    def step_of(self, ordinal: int) -> int:
        """Returns the explorer step of an ordinal under exact pulls."""
        return ordinal // self.groups_per_step + 1

    def share(self, explorer: int, step: int) -> range:
        """Returns one explorer's ordinals of an explorer step under exact pulls."""
        first = (step - 1) * self.groups_per_step
        return range(first + explorer - 1, first + self.groups_per_step, self.explorers)


class Assignment(NamedTuple):
    """Work to generate for an ordinal.

    Attributes:
      attempt: 0 for the ordinal's first lease, 1 for the second, and so on.
      replacement: the number of prompts that were already tried there and taught nothing. Together
        with the ordinal it determines the prompt.
      failures: the number of leases of the prompt that were dropped as environments failed.
      choice: the prompt; None until it is chosen.
    """

    ordinal: int
    attempt: int = 0
    replacement: int = 0
    failures: int = 0
    choice: ChosenPrompt | None = None


class LiveLease(NamedTuple):
    """A lease that has not ended.

    Attributes:
      version: no token of its group is of an older one.
      replacement, failures, choice: see `Assignment`.
      trained: how many steps have trained on its group; above 0 only where others may do so again.
      success: of its group, once it is judged; see `Use`.
    """

    lease_id: int
    ordinal: int
    attempt: int
    explorer: int
    version: int
    buffered: bool
    deadline_secs: float
    replacement: int = 0
    failures: int = 0
    trained: int = 0
    choice: ChosenPrompt = ChosenPrompt(0)
    success: float | None = None

    def next_assignment(self, replaced: bool = False, failed: bool = False) -> Assignment:
        """Returns the work to generate for its ordinal if it is dropped.

        Args:
          replaced: whether the prompt is replaced by another.
          failed: whether it is dropped since environments failed.
        """
        return Assignment(
            ordinal=self.ordinal,
            attempt=self.attempt + 1,
            replacement=self.replacement + replaced,
            failures=0 if replaced else self.failures + failed,
            choice=None if replaced else self.choice,
        )


class DueEvaluation(NamedTuple):
    """An evaluation that explorers are to do.

    Attributes:
      version: the oldest version of the weights that it may be of.
      explorer: the explorer that has it; None while nobody does.
    """

    version: int
    explorer: int | None = None


class Position(NamedTuple):
    """Position of a run in the order of prompts, from which it can resume.

    Attributes:
      step: finished trainer steps.
      next_ordinal: the first ordinal that was never leased.
      again: (ordinal, replacement) of earlier ordinals that were not trained, in order.
      next_lease: the next lease id.
      seen: the history of prompts.
      pending: uses by steps up to `step` that the history does not count yet.
      prompts: (ordinal, prompt) of what `again` has, where choices go by the history.
    """

    step: int
    next_ordinal: int
    again: tuple[tuple[int, int], ...]
    next_lease: int
    seen: tuple[Seen, ...] = ()
    pending: tuple[Use, ...] = ()
    prompts: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of_json(cls, fields: Mapping[str, Any]) -> Position:
        """Makes it of what JSON has made of its `_asdict()`; an older one has fewer fields."""
        pairs = {
            name: tuple((a, b) for a, b in fields.get(name, ())) for name in ("again", "prompts")
        }
        seen = tuple(Seen(*one) for one in fields.get("seen", ()))
        pending = tuple(Use(*one) for one in fields.get("pending", ()))
        return cls(**{**fields, **pairs, "seen": seen, "pending": pending})


class Started(NamedTuple):
    """The trainer is ready, and reports the position of the run."""

    position: Position


class LeaseRequested(NamedTuple):
    """An explorer asks for work.

    Attributes:
      unfinished: the number of its groups in flight, including those whose lease is over.
      room: the number of groups that it can begin beside them; None for what they leave of
        `groups_per_lease`.
    """

    explorer: int
    now_secs: float
    unfinished: int = 0
    room: int | None = None


class FailedEpisode(NamedTuple):
    """A beginning of a group's episode whose environment failed.

    Attributes:
      lease_id, prompt_id: those of the group.
      sample: the row of the episode in the group; a greedy one is the last.
      attempt: the number of its earlier beginnings, all of which failed.
      reason: one of `rl_sync.ending.FAILURES`.
      why: one line about it.
      is_lost: whether the episode did not begin again, so that it could not be judged.
    """

    lease_id: int
    prompt_id: int
    sample: int
    attempt: int
    reason: str
    why: str
    is_lost: bool


class GroupsJudged(NamedTuple):
    """An explorer has the rewards of groups, and asks which are worth training on.

    Attributes:
      judged: the lease id of each group, and its rewards.
      failed: what failed in their environments.
    """

    judged: tuple[tuple[int, tuple[float, ...]], ...]
    failed: tuple[FailedEpisode, ...] = ()


class GroupsScored(NamedTuple):
    """The master has judged groups: the success of each, by its lease id."""

    successes: tuple[tuple[int, float], ...]


class GroupsBuffered(NamedTuple):
    """An explorer has written groups to the replay buffer."""

    lease_ids: tuple[int, ...]


class BatchTrained(NamedTuple):
    """The trainer has finished a step.

    Attributes:
      lease_ids: of the groups that it has trained on.
      left_out: of those that were generated for it and that it has no need for.
      kept: of `lease_ids`, those whose groups later steps may train on again.
    """

    step: int
    lease_ids: tuple[int, ...]
    left_out: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()


class GroupsRefused(NamedTuple):
    """The trainer has taken groups from the buffer, but does not train on them."""

    lease_ids: tuple[int, ...]
    reason: str


class VersionPublished(NamedTuple):
    """The trainer has published the weights of a version."""

    version: int


class ExplorerSeen(NamedTuple):
    """A heartbeat of an explorer, which renews its leases."""

    explorer: int
    now_secs: float


class ExplorerDied(NamedTuple):
    """An explorer has died; its groups in flight are lost."""

    explorer: int


class Ticked(NamedTuple):
    """Time passes: leases may have expired."""

    now_secs: float


class StopRequested(NamedTuple):
    """The run shall end early."""

    reason: str


Event = (
    Started
    | LeaseRequested
    | GroupsJudged
    | GroupsScored
    | GroupsBuffered
    | BatchTrained
    | GroupsRefused
    | VersionPublished
    | ExplorerSeen
    | ExplorerDied
    | Ticked
    | StopRequested
)


class GrantLeases(NamedTuple):
    """Answers `LeaseRequested`: generate these leases, and go on with unfinished groups.

    Attributes:
      version: the version of the weights to use.
      exactly: whether only this version may be used; otherwise a newer one is fine.
      leases: the leases; none if there is no room, but the explorer has unfinished groups.
    """

    step: int
    version: int
    exactly: bool
    leases: tuple[LiveLease, ...]


class GrantEvaluation(NamedTuple):
    """Answers `LeaseRequested`: complete the held-out problems, then ask again.

    Attributes:
      step, version: the version of the weights that is due, or any newer one.
      exactly: false; see `GrantLeases`.
    """

    step: int
    version: int
    exactly: bool = False


class HoldBack(NamedTuple):
    """Answers `LeaseRequested`: wait.

    Attributes:
      reason: what is to come first.
      trainer_step: the trainer's last step, of SFT or RL, which says that it goes on.
    """

    reason: str
    trainer_step: int | None = None


class Finish(NamedTuple):
    """Answers `LeaseRequested`: there is no more work."""

    reason: str


class Admit(NamedTuple):
    """Answers `GroupsJudged`: write these groups to the replay buffer; the others are dropped."""

    lease_ids: tuple[int, ...]


class Record(NamedTuple):
    """A line of the ledger: an event, and the leases that it concerns.

    Attributes:
      reason: of the event, if there is one.
      episode: the failed episode that it is about.
    """

    event: str
    leases: tuple[LiveLease, ...]
    reason: str = ""
    episode: FailedEpisode | None = None


Command = GrantLeases | GrantEvaluation | HoldBack | Finish | Admit | Record
