"""The choice of the transfer, which all roles of a run share.

The trainer chooses, since it is the first to know whether its backend supports a transfer. It tells
the master, and the explorers ask the master, so that all use the same one.
"""

from __future__ import annotations

import logging
import time

from rl_sync.cluster.session import Session
from rl_sync.messages.master_calls import Report
from rl_sync.messages.run_result import RunResult
from rl_sync.messages.weight_calls import AskTransfer, DecideTransfer
from rl_sync.transfer import TRANSFERS
from rl_sync.transfers.ends import ends_of
from rl_sync.weights.ends_interface import TransferUnavailableError

_POLL_SECS = 0.1
_log = logging.getLogger(__name__)


def decide_transfer(session: Session, master_address: str) -> str:
    """Chooses the run's transfer, on the trainer's side, and tells the master.

    It is the transfer that the settings ask for, or its fallback where that is unavailable.
    """
    transfer = session.agree("transfer", lambda: _possible(session, master_address))
    session.call(DecideTransfer(transfer))
    return transfer


def _possible(session: Session, master_address: str) -> str:
    transfer = session.settings.transfer
    fallback = TRANSFERS[transfer].fallback
    if not fallback or session.settings.deltas:
        return transfer
    try:
        ends_of(transfer).try_out(master_address)
    except TransferUnavailableError as error:
        reason = f"Weights are sent by {fallback} instead of sync.transfer={transfer}: {error}"
        _log.warning("%s", reason)
        session.tell(Report(RunResult(transfer=reason)))
        return fallback
    return transfer


def decided_transfer(session: Session) -> str:
    """Returns the run's transfer, on an explorer's side; waits until the trainer has chosen.

    Raises:
      RunStoppedError: the run is being stopped.
      TimeoutError: the trainer takes too long.
    """
    deadline = session.deadline("the decision how weights travel", "the trainer")
    while (transfer := session.call(AskTransfer())) is None:
        deadline()
        time.sleep(_POLL_SECS)
    return transfer
