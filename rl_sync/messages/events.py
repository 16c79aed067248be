"""Messages to and from the master: its events and commands, as plain records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from rl_sync.types import ChosenPrompt, Lease, PromptPast, Use

TOO_STALE = "too stale"
LEASE_EXPIRED = "lease expired"
EXPLORER_DIED = "its explorer died"
LOST_IN_BUFFER = "lost with the replay server"
LEFT_OUT = "left out of the batch"
FORMED_ANEW = "the cluster was formed anew"
RUN_ENDED = "the run ended"


class Assignment(NamedTuple):
    """Work to generate for an ordinal.

    Attributes:
      attempt: 0 for the ordinal's first lease, 1 for the second, and so on. A lease whose
        completions go on has the attempt of the lease before.
      replacement: number of prompts that were already tried for this ordinal and gave no gradient.
        Together with the ordinal it determines the prompt.
      failures: number of leases of the prompt that were dropped because environments failed.
      choice: the prompt; None until it is chosen.
      begun: version of the lease whose completions go on; None if they begin anew.
    """

    ordinal: int
    attempt: int = 0
    replacement: int = 0
    failures: int = 0
    choice: ChosenPrompt | None = None
    begun: int | None = None

    def anew(self) -> Assignment:
        """Returns the work without completions that go on."""
        if self.begun is None:
            return self
        return self._replace(attempt=self.attempt + 1, begun=None)


class LiveLease(NamedTuple):
    """A lease that has not ended.

    Attributes:
      version: minimum version of the tokens of its group.
      replacement, failures, choice: see `Assignment`.
      trained: number of steps that have trained on its group; above 0 only if more may follow.
      taken: step whose batch has its group, where groups have deadlines; 0 for none.
      success: success of its group, once it is scored; see `Use`.
      is_admitted: whether its group was admitted to the buffer, or was waiting for that.
      is_kept: whether the master keeps tokens of its unfinished group.
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
    taken: int = 0
    choice: ChosenPrompt = ChosenPrompt(0)
    success: float | None = None
    is_admitted: bool = False
    is_kept: bool = False

    def next_assignment(
        self, replaced: bool = False, failed: bool = False, goes_on: bool = False
    ) -> Assignment:
        """Returns the work to generate for its ordinal if the lease is dropped.

        Args:
          replaced: whether the prompt is replaced by another.
          failed: whether it is dropped because environments failed.
          goes_on: whether its completions go on, as far as the master keeps them.
        """
        work = Assignment(
            ordinal=self.ordinal,
            attempt=self.attempt,
            replacement=self.replacement + replaced,
            failures=0 if replaced else self.failures + failed,
            choice=None if replaced else self.choice,
            begun=self.version,
        )
        return work if goes_on and self.is_kept else work.anew()


class Position(NamedTuple):
    """Position of a run in the order of prompts, from which it can resume.

    Attributes:
      step: number of finished trainer steps.
      next_ordinal: first ordinal that was never leased.
      again: (ordinal, replacement) of earlier ordinals that were not trained, in order.
      next_lease: next lease id.
      seen: history of prompts.
      pending: uses in steps up to `step` that the history does not include yet.
      prompts: (ordinal, prompt) of the work in `again`, where choices depend on the history.
    """

    step: int
    next_ordinal: int
    again: tuple[tuple[int, int], ...]
    next_lease: int
    seen: tuple[PromptPast, ...] = ()
    pending: tuple[Use, ...] = ()
    prompts: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of_json(cls, fields: Mapping[str, Any]) -> Position:
        """Makes a position from the JSON form of its `_asdict()`; an older one has fewer fields."""
        pairs = {
            name: tuple((a, b) for a, b in fields.get(name, ())) for name in ("again", "prompts")
        }
        seen = tuple(PromptPast(*one) for one in fields.get("seen", ()))
        pending = tuple(Use(*one) for one in fields.get("pending", ()))
        return cls(**{**fields, **pairs, "seen": seen, "pending": pending})


class Started(NamedTuple):
    """The trainer is ready, and reports the position of the run."""

    position: Position


class LeaseRequested(NamedTuple):
    """An explorer asks for work.

    Attributes:
      unfinished: number of its groups in flight, including those whose leases have ended.
      room: number of groups that it can begin in addition; None for `groups_per_lease` minus
        `unfinished`.
      version: newest version that it can begin with at once; None if weights come on demand.
      request: number that distinguishes this request from all others of the explorer. A request
        that comes again gets the same grant, since the first answer was lost. None for a request
        that never comes again.
      evaluating: number of its evaluations that are not handed in yet.
    """

    explorer: int
    now_secs: float
    unfinished: int = 0
    room: int | None = None
    version: int | None = None
    request: int | None = None
    evaluating: int = 0


class FailedEpisode(NamedTuple):
    """A failed attempt at an episode of a group.

    Attributes:
      lease_id, prompt_id: lease and prompt of the group.
      sample: row of the episode in the group; a greedy one is the last.
      attempt: number of earlier attempts, all of which failed.
      reason: one of `rl_sync.ending.FAILURES`.
      why: one line about it.
      is_lost: whether no further attempt was made, so that the episode could not be scored.
    """

    lease_id: int
    prompt_id: int
    sample: int
    attempt: int
    reason: str
    why: str
    is_lost: bool


class GroupsJudged(NamedTuple):
    """An explorer has the rewards of groups, and asks which groups are worth training on.

    Attributes:
      judged: lease id of each group, and its rewards.
      failed: failed attempts at their episodes.
    """

    judged: tuple[tuple[int, tuple[float, ...]], ...]
    failed: tuple[FailedEpisode, ...] = ()


class GroupsScored(NamedTuple):
    """The master has scored groups: success of each group, by its lease id."""

    successes: tuple[tuple[int, float], ...]


class GroupsKept(NamedTuple):
    """The master keeps tokens of unfinished groups, in case their explorer dies."""

    lease_ids: tuple[int, ...]


class GroupsBuffered(NamedTuple):
    """An explorer has written groups to the replay buffer."""

    lease_ids: tuple[int, ...]


class BatchRequested(NamedTuple):
    """The trainer asks for the batch of a step, where groups have deadlines.

    Attributes:
      at_hand: lease ids of the groups that it took from the buffer and did not use, in the order in
        which it took them.
    """

    step: int
    at_hand: tuple[int, ...]


class BatchTrained(NamedTuple):
    """The trainer has finished a step.

    Attributes:
      lease_ids: lease ids of the groups that the step trained on.
      left_out: lease ids of groups that were generated for the step but not selected.
      kept: the part of `lease_ids` whose groups later steps may train on again.
    """

    step: int
    lease_ids: tuple[int, ...]
    left_out: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()


class GroupsRefused(NamedTuple):
    """The trainer has taken groups from the buffer, but will not train on them."""

    lease_ids: tuple[int, ...]
    reason: str


class VersionPublished(NamedTuple):
    """The trainer has published the weights of a version."""

    version: int


class ExplorersSeen(NamedTuple):
    """Heartbeats of explorers, which renew their leases.

    Attributes:
      seen_secs: time of the last heartbeat of each explorer, by its number.
    """

    seen_secs: Mapping[int, float]


class ExplorerDied(NamedTuple):
    """An explorer has died; its groups in flight are lost."""

    explorer: int


class Ticked(NamedTuple):
    """Time has passed: leases may have expired."""

    now_secs: float


class LeasesExpired(NamedTuple):
    """Leases have expired: the lasting effect of `Ticked`, which depends on heartbeats."""

    lease_ids: tuple[int, ...]


class SnapshotSaved(NamedTuple):
    """The trainer has saved a snapshot after a step; earlier steps are never reported again."""

    step: int


class RunContinued(NamedTuple):
    """The run goes on, after all of its processes had ended; explorers have lost their groups.

    Attributes:
      drops_buffered: whether groups in the buffer are generated again, too.
    """

    drops_buffered: bool = False


class StopRequested(NamedTuple):
    """The run must end early."""

    reason: str


Event = (
    Started
    | LeaseRequested
    | GroupsJudged
    | GroupsScored
    | GroupsKept
    | GroupsBuffered
    | BatchRequested
    | BatchTrained
    | GroupsRefused
    | VersionPublished
    | ExplorersSeen
    | ExplorerDied
    | Ticked
    | LeasesExpired
    | SnapshotSaved
    | StopRequested
    | RunContinued
)


class GrantLeases(NamedTuple):
    """Answers `LeaseRequested`: generate these leases, and continue unfinished groups.

    Attributes:
      version: version of the weights to use.
      exactly: whether only this version may be used; otherwise a newer one may be used too.
      leases: the leases; none if there is no room, but the explorer has unfinished groups.
    """

    step: int
    version: int
    exactly: bool
    leases: tuple[LiveLease, ...]


class LeaseGrant(NamedTuple):
    """Grant of leases with their prompts, as the explorer gets it; see `GrantLeases`."""

    step: int
    version: int
    exactly: bool
    leases: list[Lease]


class GrantEvaluation(NamedTuple):
    """Answers `LeaseRequested`: begin to evaluate a version beside the rollouts, and ask again.

    Attributes:
      version: the only version of the weights that will do.
    """

    version: int


class LeaveOutEvaluation(NamedTuple):
    """An evaluation is not made.

    Attributes:
      version: version of the weights that was to be evaluated.
      why: the reason, as a part of a sentence.
    """

    version: int
    why: str


class HoldBack(NamedTuple):
    """Answers `LeaseRequested`: wait.

    Attributes:
      reason: event that must come first.
      trainer_step: the trainer's last step, of SFT or RL, which shows that it makes progress.
    """

    reason: str
    trainer_step: int | None = None


class Finish(NamedTuple):
    """Answers `LeaseRequested`: there is no more work."""

    reason: str


class Admit(NamedTuple):
    """Answers `GroupsJudged`: insert these groups into the buffer; the others are dropped."""

    lease_ids: tuple[int, ...]


class GrantBatch(NamedTuple):
    """Answers `BatchRequested`: train on these groups.

    Attributes:
      lease_ids: lease ids of the batch, the oldest versions first; none if the trainer has to wait
        for further groups.
      over: lease ids of groups at hand whose leases have ended, or that an earlier step took.
    """

    lease_ids: tuple[int, ...]
    over: tuple[int, ...] = ()


class Record(NamedTuple):
    """A line of the ledger: an event, and the leases that it affects.

    Attributes:
      reason: reason of the event, if there is one.
      episode: failed episode that the event is about.
    """

    event: str
    leases: tuple[LiveLease, ...]
    reason: str = ""
    episode: FailedEpisode | None = None


Command = (
    GrantLeases
    | GrantEvaluation
    | LeaveOutEvaluation
    | HoldBack
    | Finish
    | Admit
    | GrantBatch
    | Record
)
