"""The trainer's processes, as an explorer finds them through the master."""

from __future__ import annotations

import time

from rl_sync.cluster.session import RunStoppedError, Session
from rl_sync.messages.master_calls import AskStatus
from rl_sync.messages.weight_calls import AskHolders

_POLL_SECS = 0.1


def await_holders(session: Session) -> list[str]:
    """Waits until all processes of the trainer serve weights; returns their `host:port`, in order.

    Raises:
      ConnectionError: not all do so in time.
    """
    launch, processes = session.settings.launch, session.settings.trainer.processes
    deadline = time.monotonic() + launch.call_secs
    while len(addresses := session.call_alone(AskHolders())) < processes:
        if time.monotonic() > deadline:
            raise ConnectionError(
                f"{len(addresses)} of the trainer's {processes} processes serve weights after"
                f" {launch.call_secs:g} s"
            )
        time.sleep(_POLL_SECS)
    return addresses


def check_training(session: Session) -> None:
    """Raises a `RunStoppedError` if the run is being stopped, or the trainer has finished."""
    session.check()
    if session.call_alone(AskStatus()).phase == "end":
        raise RunStoppedError("the trainer has finished")
