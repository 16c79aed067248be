"""The trainer's processes, as an explorer finds them through the master."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax

from rl_sync.cluster.rpc import RpcClient
from rl_sync.cluster.session import RunStoppedError, Session
from rl_sync.messages.master_calls import AskStatus
from rl_sync.messages.weight_calls import AskHolders

_POLL_SECS = 0.1


class TrainerContact(NamedTuple):
    """The way of an explorer's process to the processes of the trainer.

    Attributes:
      reader: name that no other running puller of the trainer has.
      addresses: finds the trainer's processes: their `host:port`, in order. Called again after a
        failure. If it raises a ConnectionError, the pull fails.
      newest: returns the newest offered version, -1 if there is none. Its arguments are the version
        to wait for, and the maximum wait in seconds.
      secret: the run's secret.
      call_secs: maximum time that a process takes to answer, beyond the wait that it is asked for.
      stall_secs: time after which a transfer without progress is given up.
      on_lost: called when a pull breaks; it may raise the reason, in place of the pull's error.
      client: makes a client from an address, a name and the secret.
    """

    reader: str
    addresses: Callable[[], Sequence[str]]
    newest: Callable[[int, float], int]
    secret: str
    call_secs: float
    stall_secs: float = 60.0
    on_lost: Callable[[], None] = lambda: None
    client: Callable[[str, str, str], RpcClient] = RpcClient


def contact(session: Session, newest: Callable[[int, float], int]) -> TrainerContact:
    """Returns the way of this process to the trainer, through the master.

    A pull raises a `RunStoppedError` if it breaks because the run is being stopped, or because the
    trainer has made its last step.

    Args:
      session: the explorer's session.
      newest: see `TrainerContact`.
    """
    return TrainerContact(
        f"{session.role}.{jax.process_index()}",
        lambda: await_holders(session),
        newest,
        session.secret,
        session.settings.launch.call_secs,
        on_lost=lambda: check_training(session),
    )


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
