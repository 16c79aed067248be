"""The decision how weights travel, which all roles of a run hear of.

The trainer decides, since it knows first whether its backend has what a transfer needs, and tells
the master, whom the explorers ask; so all decide alike.
"""

from __future__ import annotations

import logging
import time

from rl_sync.cluster.master_calls import Report, RunResult
from rl_sync.cluster.session import Session
from rl_sync.cluster.weight_calls import AskTransfer, DecideTransfer
from rl_sync.transfer import TRANSFERS
from rl_sync.transfers.ends import ends_of
from rl_sync.weights.ends_interface import TransferUnavailableError

_POLL_SECS = 0.1
_log = logging.getLogger(__name__)


def decide_transfer(session: Session, master_address: str) -> str:
    """The trainer's side: how weights travel in this run, told to everybody.

    That is what the settings ask for, or its fallback where that cannot be had.
    """
    transfer = session.agree("transfer", lambda: _possible(session, master_address))
    session.call(DecideTransfer(transfer))
    return transfer


def _possible(session: Session, master_address: str) -> str:
    transfer = session.settings.transfer
    fallback = TRANSFERS[transfer].fallback
    if not fallback:
        return transfer
    try:
        ends_of(transfer).try_out(master_address)
    except TransferUnavailableError as error:
        reason = f"Weights travel by {fallback} instead of sync.transfer={transfer}: {error}"
        _log.warning("%s", reason)
        session.tell(Report(RunResult(transfer=reason)))
        return fallback
    return transfer


def decided_transfer(session: Session) -> str:
    """An explorer's side of `decide_transfer`; waits until the trainer has decided.

    Raises:
      RunStoppedError: the run is being stopped.
      TimeoutError: the trainer takes too long.
    """
    deadline = session.deadline("the decision how weights travel", "the trainer")
    while (transfer := session.call(AskTransfer())) is None:
        deadline()
        time.sleep(_POLL_SECS)
    return transfer
