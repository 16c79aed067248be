"""Calls of a joined machine to the launcher: one record for each, with the type of its result.

A machine only calls, and is never called, so it may be behind a firewall, or behind a router that
translates addresses.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from rl_sync.isolation.codec import record
from rl_sync.messages.call import Call


@dataclasses.dataclass(frozen=True)
class AskTime(Call[float]):
    """Asks for the time of the launcher's clock, in Unix seconds."""


@record
class RunFile(NamedTuple):
    """A file that processes of the run read.

    Attributes:
      place: relative path on the machine that gets it.
      size: number of bytes.
      digest: SHA-256 in hexadecimal; empty if the file is too large to be sent.
    """

    place: str
    size: int
    digest: str


@record
class Refused(NamedTuple):
    """The answer to a machine that may not join, or that was given up.

    Attributes:
      why: the reason with the way out.
      is_final: whether it is of no use to join again.
    """

    why: str
    is_final: bool


@record
class Enlisted(NamedTuple):
    """The answer to a machine that may join.

    Attributes:
      machine: random number of the machine, so that no other launcher knows it.
      run: identity of the run, the same once it is resumed.
      workdir: the work directory on the launcher's machine.
      directory: the launcher's current directory.
      config: the resolved config as JSON.
      files: files that the machine needs if it does not reach the work directory.
      rewritten: texts in the config and the relative paths that replace them there.
    """

    machine: int
    run: str
    workdir: str
    directory: str
    config: str
    files: list[RunFile]
    rewritten: list[tuple[str, str]]


@dataclasses.dataclass(frozen=True)
class Enlist(Call[Enlisted | Refused]):
    """Asks to join the run.

    Attributes:
      names: processes that the machine runs, such as `explorer1` and `trainer/1`.
      address: the machine's address, as others reach it.
      release: version of rl_sync, and a digest of its source.
      software: versions of Python, jax and others, for a warning.
      behind_secs, error_secs: how much its clock is behind the launcher's, and how exactly this is
        known.
      host: name of the machine, for messages.
      identity: random text of this process, by which the launcher knows it when it joins again.
    """

    names: tuple[str, ...]
    address: str
    release: tuple[str, str]
    software: tuple[tuple[str, str], ...]
    behind_secs: float
    error_secs: float
    host: str
    identity: str


@dataclasses.dataclass(frozen=True)
class AskPart(Call[bytes]):
    """Asks for a part of one of the `Enlisted.files`.

    Attributes:
      machine: see `Enlisted`; the call is a sign of life.
      place: the file.
      offset, count: in bytes.
    """

    machine: int
    place: str
    offset: int
    count: int


@record
class Order(NamedTuple):
    """An order to a machine; a machine executes its orders one after the other.

    Attributes:
      number: from 1.
      kind: `start`, `dump`, `terminate`, `kill`, or `leave` at the end of the run.
      name: the process; empty for `leave`.
      attempt: number of the process's start, from 1.
      arguments: arguments of `rl_sync.roles.process` without `--workdir`, for `start`.
      environment: additions to the environment, for `start`.
      status: exit status for `leave`.
    """

    number: int
    kind: str
    name: str = ""
    attempt: int = 0
    arguments: list[str] = []  # noqa: RUF012
    environment: dict[str, str] = {}  # noqa: RUF012
    status: int = 0


@record
class ProcessState(NamedTuple):
    """State of a process on a machine.

    Attributes:
      name, attempt: see `Order`.
      status: its exit status, negative for a signal; None while it runs.
    """

    name: str
    attempt: int
    status: int | None


@dataclasses.dataclass(frozen=True)
class AskOrders(Call[list[Order] | Refused]):
    """Reports the state of a machine, and waits for new orders.

    Attributes:
      machine: see `Enlisted`.
      done: number of the last executed order.
      states: the processes, of each the newest attempt.
      ports: ports that are free and held there, for servers of processes that will be started.
      shares: whether the machine reaches the work directory.
      poll_secs: maximum wait.
    """

    machine: int
    done: int
    states: tuple[ProcessState, ...]
    ports: tuple[int, ...]
    shares: bool
    poll_secs: float


@dataclasses.dataclass(frozen=True)
class BeginRecords(Call[int]):
    """Asks for the size of the launcher's copy of a file, to which the machine will add.

    An unfinished line at the end is cut off first.

    Attributes:
      machine, place: see `SendRecords`.
    """

    machine: int
    place: str


@dataclasses.dataclass(frozen=True)
class SendRecords(Call[int]):
    """Sends a part of a file of records; the result is the size of the launcher's copy.

    Only bytes at the end are added: a machine that hears of a smaller copy sends from there.

    Attributes:
      machine: see `Enlisted`.
      place: relative path in the work directory.
      offset: where the part begins.
      content: the bytes.
      is_cut: whether the file was cut at the offset, so that bytes after it are void.
    """

    machine: int
    place: str
    offset: int
    content: bytes
    is_cut: bool


@dataclasses.dataclass(frozen=True)
class LeaveMachine(Call[None]):
    """Reports that a machine leaves: its processes have ended, and its records are sent.

    Attributes:
      machine: see `Enlisted`.
      why: reason if it leaves before the end of the run.
    """

    machine: int
    why: str = ""
