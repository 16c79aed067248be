"""Broken processes, each with one mistake that real systems have made."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple
from unittest import mock

from rl_sync.messages.events import GroupsRefused
from rl_sync.roles.explorer.commands import Ask
from rl_sync.roles.master import group_deadlines
from rl_sync.roles.master.kept_progress import KeptProgress
from rl_sync.roles.trainer.batch_reader import BatchReader
from rl_sync.roles.trainer.logged_batches import LoggedBatches
from rl_sync.simulation.faults.explorer_process import NotedExplorerLoop, SimulatedExplorer
from rl_sync.simulation.faults.master_process import SimulatedMaster
from rl_sync.simulation.faults.relays import BlockReader
from rl_sync.simulation.faults.trainer_disk import SimulatedFolder
from rl_sync.simulation.faults.trainer_process import SimulatedTrainer
from rl_sync.simulation.faults.weights_store import WeightsStore
from rl_sync.simulation.faults.world import Parts
from rl_sync.simulation.master_answers import MeetingLeft, MeetingReset


class AnswersBeforeFlush(SimulatedMaster):
    """A grant leaves before it is durable, so that a restarted master grants the lease again."""

    def send_after_flush(self):
        return False


class ForgetsCalls(SimulatedMaster):
    """A request that comes again is a new one: its explorer gets other leases."""

    def answered_before(self, thread, request, answer):
        return False


class AnswersTheDead(SimulatedMaster):
    """A request that waits is granted what the death of its own explorer made free."""

    def forget(self, process, life):
        self._lives[process] = life + 1


class StaleJournal(SimulatedMaster):
    """A restarted master reads the journal before the newest one."""

    def chosen_journal(self):
        return min(self.journals(), default=None)


class RenamesJournalUnflushed(SimulatedMaster):
    """The journal gets its name before its content is durable."""

    def flush(self, name):
        pass


class PinnedCursor(SimulatedMaster):
    """A dropped group keeps its place, for which no other group is generated."""

    def _apply(self, event, *arguments, **named):
        if isinstance(event, GroupsRefused):
            return None
        return super()._apply(event, *arguments, **named)


def one_more(schedule):
    """A schedule with a bound that is off by one."""
    return dataclasses.replace(schedule, max_staleness=schedule.max_staleness + 1)


class LeasesTooFarAhead(SimulatedMaster):
    """Leases one step further ahead than the bound allows."""

    def __init__(self, world, name):
        super().__init__(world, name)
        schedule = one_more(self._settings.schedule)
        self._settings = dataclasses.replace(self._settings, schedule=schedule)


class TakesAnyBatch(SimulatedMaster):
    """Takes a batch though some of the groups that are left will be too late."""

    def _folded(self, known, entry):
        with mock.patch.object(group_deadlines, "_leaves_enough_places", return_value=True):
            return super()._folded(known, entry)


class AcceptsTooStale(SimulatedTrainer):
    """Trains on groups that are one step older than the bound allows."""

    def schedule(self, schedule):
        return one_more(schedule)


class SnapshotWithoutBuffer(SimulatedTrainer):
    """The buffer is not a part of the snapshot."""

    def save_buffer(self):
        self.clock.sleep(0.01)


class RenamesSnapshotUnflushed(SimulatedTrainer):
    """The snapshot gets its name before its content is durable."""

    def flush(self, name):
        pass


class LostWakeUp(SimulatedTrainer):
    """Waits for groups that are gone, and never looks whether they are."""

    audit_secs = math.inf


class AsksForEver(NotedExplorerLoop):
    """Asks for work without a limit."""

    def _execute(self, command):
        if type(command) is Ask:
            command = dataclasses.replace(command, poll_secs=math.inf)
        return super()._execute(command)


class WaitsForEver(SimulatedExplorer):
    """A request waits until it is answered, however long that takes."""

    loop = AsksForEver


class CountsFailedUpdate(SimulatedExplorer):
    """Weights that did not arrive whole count as received."""

    def accept(self, offer, weights):
        return super().accept(offer, self.weights if weights is None else weights)


class IgnoresBases(WeightsStore):
    """Sends all differences after a version, whatever they are taken to."""

    def route(self, held, target):
        if held is None or held.version > target.version:
            return None
        return [
            self.deltas[at] for at in sorted(self.deltas) if held.version < at <= target.version
        ]


class SendsDeltasOnPrunedBase(SimulatedTrainer):
    """Offers differences although the version that they begin with is gone."""

    def store(self, chain, keep):
        return IgnoresBases(chain, keep)


class DoesNotVerify(SimulatedExplorer):
    """Applies differences, and does not compare the digest of the result."""

    def receive_offer(self, offer):
        weights = self.weights if offer.full is None else offer.full
        for payload in offer.deltas:
            weights ^= payload
        return self.accept(offer, weights)


class KeepsRequestsOfTheDead(SimulatedMaster):
    """When a cluster is formed anew, its trainer is told of explorers that waited before."""

    def _apply(self, event, *arguments, **named):
        if isinstance(event, MeetingReset | MeetingLeft):
            return None
        return super()._apply(event, *arguments, **named)


class Elastic(NotedExplorerLoop):
    """Takes the processes of a cluster for those that come and go."""

    def _plan(self):
        return dataclasses.replace(super()._plan(), is_elastic=True)


class WaitsForGoneWeights(SimulatedExplorer):
    """Waits for a version that no process of its cluster has any more."""

    loop = Elastic


class TrustsRelays(BlockReader):
    """Hands on the payload of any publisher's version, and takes it without a check."""

    def hand_on(self, request, answer):
        wanted = request.message.key
        found = [payload for key, payload in self._held.items() if key.version == wanted.version]
        answer(found[0] if found else None)

    def accepts(self, payload, check):
        return True


class ReadsFromRelaysUnchecked(DoesNotVerify):
    """Neither checks payloads nor what they lead to."""

    def begin(self):
        super().begin()
        self.blocks = TrustsRelays(self)


class RefusesCopies(BatchReader):
    """A second copy of a group that was just trained on is refused, and the group with it."""

    def _unconsumed(self, groups):
        return [*groups]


class ReadsCopies(SimulatedTrainer):
    """Reads batches so."""

    reader = RefusesCopies


class TakesNoStock(BatchReader):
    """A trainer that is started again does not look which groups were lost with the one before."""

    def _go_on(self, step, aside, uses):
        del step
        self._keep(aside)
        self._trained.update(uses)


class GoesOnWithoutStock(SimulatedTrainer):
    """Reads batches so, and looks for none that are lost later."""

    reader, audit_secs = TakesNoStock, math.inf


class LogsLate(LoggedBatches):
    """A batch is written to the log with the next one, when its step was reported long ago."""

    _late = None

    def log(self, step, batch):
        if self._late is not None:
            super().log(*self._late)
        self._late = step, batch


class ReportsUnlogged(SimulatedTrainer):
    """Logs batches so."""

    log = LogsLate


class KeepsTheNewest(SimulatedFolder):
    """Older snapshots are deleted, even where explorers still need the versions after them."""

    def save(self, step, state, metadata, retention):
        super().save(step, state, metadata, dataclasses.replace(retention, steps=()))


class DeletesNeededSnapshots(SimulatedTrainer):
    """Keeps snapshots so."""

    folder = KeepsTheNewest


class KeepsBrokenBatches(SimulatedMaster):
    """A batch that lost a group counts as taken, so that nobody generates another."""

    def _folded(self, known, entry):
        before = known.state.live
        known, answer, commands = super()._folded(known, entry)
        if isinstance(entry.event, GroupsRefused):
            live = known.state.live
            live = {i: one._replace(taken=before[i].taken) for i, one in live.items()}
            known = known._replace(state=dataclasses.replace(known.state, live=live))
        return known, answer, commands


class GoesOnWithOtherDraws(SimulatedMaster):
    """A group goes on with the tokens of one attempt and the draws of the next."""

    def _with_begun(self, lease):
        given = super()._with_begun(lease)
        return given._replace(attempt=given.attempt + 1) if given.begun else given


class JoiningProgress(KeptProgress):
    """Keeps the old replies of an episode that is told from its first token."""

    def add(self, ordinal, told):
        return (told.start == 0 and told.row in dict(self.of(ordinal))) or super().add(
            ordinal, told
        )


class JoinsAttempts(SimulatedMaster):
    """The next attempt at an episode goes on behind the replies of the last."""

    def begin(self):
        super().begin()
        self._kept = JoiningProgress(self._kept.most_bytes)


class Mutant(NamedTuple):
    """A mistake.

    Attributes:
      parts: classes of the processes, some of them broken.
      rule: words of the rule that it breaks.
      needs: kinds of faults without which it does no harm.
    """

    parts: Parts
    rule: str
    needs: frozenset[str] = frozenset()


STANDSTILL = "nothing goes on"
MUTANTS = {
    "replies of several attempts": Mutant(
        Parts(master=JoinsAttempts), "but the turns were", frozenset({"crash"})
    ),
    "tokens with other draws": Mutant(Parts(master=GoesOnWithOtherDraws), "was begun with"),
    "a batch that leaves others late": Mutant(Parts(master=TakesAnyBatch), "have to be trained on"),
    "a lease granted twice": Mutant(
        Parts(master=AnswersBeforeFlush), "granted twice", frozenset({"power"})
    ),
    "a request answered twice": Mutant(Parts(master=ForgetsCalls), STANDSTILL),
    "a lease granted to the dead": Mutant(
        Parts(master=AnswersTheDead), STANDSTILL, frozenset({"crash"})
    ),
    "a snapshot without the buffer": Mutant(
        Parts(trainer=SnapshotWithoutBuffer), "of the newest snapshot are lost"
    ),
    "the bound off by one": Mutant(
        Parts(master=LeasesTooFarAhead, trainer=AcceptsTooStale), "over the bound"
    ),
    "a lost wake-up": Mutant(Parts(trainer=LostWakeUp), STANDSTILL),
    "a wait without a limit": Mutant(Parts(explorer=WaitsForEver), "without a deadline"),
    "a snapshot renamed before a flush": Mutant(
        Parts(trainer=RenamesSnapshotUnflushed), "lead to step", frozenset({"power"})
    ),
    "a journal renamed before a flush": Mutant(Parts(master=RenamesJournalUnflushed), "after step"),
    "an update counted that failed": Mutant(
        Parts(explorer=CountsFailedUpdate), "decodes with", frozenset({"damage"})
    ),
    "a delta on a pruned base": Mutant(
        Parts(trainer=SendsDeltasOnPrunedBase, explorer=DoesNotVerify), "decodes with"
    ),
    "a dropped id that pins the cursor": Mutant(Parts(master=PinnedCursor), STANDSTILL),
    "a stale journal replayed": Mutant(Parts(master=StaleJournal), "after step"),
    "a transfer with the dead": Mutant(Parts(master=KeepsRequestsOfTheDead), STANDSTILL),
    "a payload of another publisher": Mutant(
        Parts(explorer=ReadsFromRelaysUnchecked), "decodes with"
    ),
    "a copy of a trained group refused": Mutant(Parts(trainer=ReadsCopies), "leases are over"),
    "a trainer that takes no stock": Mutant(Parts(trainer=GoesOnWithoutStock), STANDSTILL),
    "a step reported before it is logged": Mutant(
        Parts(trainer=ReportsUnlogged), "lead to step", frozenset({"crash"})
    ),
    "a snapshot deleted that is needed": Mutant(
        Parts(trainer=DeletesNeededSnapshots), "lead to step"
    ),
    "a batch taken that lost a group": Mutant(Parts(master=KeepsBrokenBatches), STANDSTILL),
    "a wait for weights that are gone": Mutant(Parts(explorer=WaitsForGoneWeights), STANDSTILL),
}
