"""A source of batches that writes each to the log, and gives logged ones again."""

from __future__ import annotations

import logging
from collections.abc import Callable

from rl_sync.checkpoints.batch_log import BatchLog, LoggedBatch
from rl_sync.cluster.session import Session
from rl_sync.cluster.user_errors import RunEndedError
from rl_sync.ports.clock_port import Future
from rl_sync.roles.trainer.batch_reader import BatchReader
from rl_sync.roles.trainer.commands import StartingPoint
from rl_sync.types import Consumed, Group

MakeReader = Callable[[Callable[[int, list[Group]], None]], BatchReader]
_log = logging.getLogger(__name__)


class LoggedBatches:
    """Batches of a trainer: logged ones of an earlier process first, then those of the reader.

    A batch is written in a thread, while its step is computed. Call `settle` before anything that
    others see depends on the step.

    Args:
      session: the trainer's session.
      log: the log, which only its first process uses; None if there is none.
      reader: makes the reader of further batches; called once all logged ones are taken. Its
        argument is a function to be called with groups that are taken from the buffer.
      point: where the trainer starts.
    """

    def __init__(
        self,
        session: Session,
        log: BatchLog | None,
        reader: MakeReader,
        point: StartingPoint,
    ) -> None:
        self._session, self._make_reader = session, reader
        self._log = log if session.leads else None
        self._point = point
        self._reader: BatchReader | None = None
        # Leases that logged steps have consumed, and that the master may not know yet.
        self._over: set[int] = set()
        self._writer = session.clock.pool(1, "batches")
        self._written: Future[None] | None = None

    def next(self, step: int) -> Consumed:
        """See `GroupSource`."""
        if step <= self._point.logged:
            return self._take_logged(step) if self._session.leads else Consumed([], [])
        if self._reader is None:
            self._reader = self._start_reader(step)
        return self._reader.next(step)

    def log(self, step: int, batch: Consumed) -> None:
        """See `GroupSource`."""
        if self._log is not None and self._reader is not None:
            entry = LoggedBatch(batch, self._reader.aside, self._reader.uses)
            self._written = self._writer.submit(self._log.write, step, entry)

    def settle(self) -> None:
        """Waits until the batches so far are on disk; any thread may call it.

        If the disk is full, or cannot be written, the run goes on without the log.
        """
        if self._written is not None:
            try:
                self._written.result()
            except OSError as error:
                self._give_up(error)

    def close(self, reason: str) -> None:
        """See `GroupSource`."""
        self.settle()
        self._writer.shutdown()
        if self._reader is not None:
            self._reader.close(reason)

    def _start_reader(self, step: int) -> BatchReader:
        reader = self._make_reader(self._keep)
        if self._point.goes_on:
            last = self._log.read(step - 1) if self._log else None
            taken = self._log.read_taken(step) if self._log else []
            aside, uses = (last.aside, last.uses) if last else ([], {})
            reader.go_on(step, [*aside, *taken], uses, self._over)
        return reader

    def _take_logged(self, step: int) -> Consumed:
        entry = self._log.read(step) if self._log else None
        if entry is None:
            raise RunEndedError(
                f"The logged batch of trainer step {step} is gone, or damaged. The same command"
                " goes on from the newest snapshot."
            )
        batch = entry.batch
        # A snapshot of a later logged step deletes this batch, before the reader needs its leases.
        if step > self._point.counted:
            self._over |= {*(group.lease_id for group in batch.groups), *batch.left_out}
            self._over -= {*batch.kept}
        return batch

    def _keep(self, step: int, groups: list[Group]) -> None:
        """Writes groups that are taken from the buffer, which has them no more."""
        if self._log is not None:
            try:
                self._log.write_taken(step, groups)
            except OSError as error:
                self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        if self._log is None:
            return
        self._log = None
        _log.warning(
            "Batches cannot be logged any more, so a trainer that dies will lose its steps since"
            " the last snapshot: %s",
            error,
        )
