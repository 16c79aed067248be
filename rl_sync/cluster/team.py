"""Team: the processes of one program. The first talks to other programs, and informs the others.

All run the same program, so that all dispatch the same computations in the same order. Some values
could make them differ, such as a reply, a batch or the time. Only the first process, the *leader*,
obtains them. It sends them to the *followers*, which wait for them at the same point of the
program.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from rl_sync.addresses import parts_of
from rl_sync.cluster.rpc import CallHandlers, PeerLostError, RpcClient, RpcServer
from rl_sync.isolation.codec import decode, encode
from rl_sync.messages.call import Call
from rl_sync.weights.agreement import Agree, alone

_POLL_SECS = 5.0
_RETRY_SECS = 0.1
_CLOSE_SECS = 10.0
_log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Hear(Call[bytes | None]):
    """A follower's request for the outcome of a thread's turn; gets None if there is none yet.

    Attributes:
      follower: index of the follower, from 1.
      what: point of the program that the follower's own thread has reached.
      poll_secs: maximum wait.
    """

    follower: int
    thread: str
    turn: int
    what: str
    poll_secs: float


class Team:
    """A program of one process, which agrees with itself.

    Attributes:
      leads: whether this process talks to other programs.
      process: index of this process in the program.
      agree: the `Agree` of the thread that runs the program.
    """

    leads: bool = True
    process: int = 0
    agree: Agree = staticmethod(alone)

    def thread(self, name: str) -> Agree:
        """Returns an `Agree` for another thread, which agrees with threads of the same name."""
        del name
        return alone

    def hand_out(self, what: str, thunk: Callable[[], T], share: Callable[[T, int], T]) -> T:
        """Runs a function in the first process, and sends the others their shares of its result.

        Like `agree`, it is for the thread that runs the program.

        Args:
          share: returns the share of a process in the result; called in the first process.

        Returns:
          The result in the first process, its share in any other.
        """
        del what, share
        return thunk()

    def close(self) -> None:
        """Ends the agreement with the other processes."""


class Leader(Team):
    """The first process of several.

    Args:
      program: name of the program.
      followers: number of other processes.
      address: `host:port` to listen on.
      secret: secret of the run.

    Raises:
      ValueError: the port is taken.
    """

    def __init__(self, program: str, followers: int, address: str, secret: str):
        self._program, self._followers = program, followers
        self._changed = threading.Condition()
        self._said: dict[tuple[str, int], tuple[str, Sequence[bytes]]] = {}
        self._heard: dict[tuple[str, int], set[int]] = {}
        host, port = parts_of(address)
        self._server = RpcServer(
            CallHandlers(Hear.answered_by(self._hear)),
            port,
            host,
            threads=4 * followers + 4,
            secret=secret,
        )
        self.agree = self._program_thread = _Speaker(self, "program")

    def thread(self, name: str) -> Agree:
        """See `Team`."""
        return _Speaker(self, name)

    def hand_out(self, what: str, thunk: Callable[[], T], share: Callable[[T, int], T]) -> T:
        """See `Team`."""
        return self._program_thread.hand_out(what, thunk, share)

    def close(self) -> None:
        """Waits until the followers have fetched all outcomes, for a limited time."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self._said, _CLOSE_SECS):
                _log.warning("%s ends although some of its processes do not listen.", self._program)
        self._server.close()

    def say(self, thread: str, turn: int, what: str, outcomes: Sequence[bytes]) -> None:
        """Sends the followers the outcome of a turn of one of the threads.

        Args:
          outcomes: outcome for each of the followers.
        """
        with self._changed:
            self._said[thread, turn] = what, outcomes
            self._heard[thread, turn] = set()
            self._changed.notify_all()

    @property
    def followers(self) -> int:
        """Number of followers."""
        return self._followers

    def _hear(self, call: Hear) -> bytes | None:
        key = call.thread, call.turn
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._said, call.poll_secs):
                return None
            point, outcomes = self._said[key]
            if point != call.what:
                raise RuntimeError(
                    f"The processes of {self._program} have diverged: in turn {call.turn} of"
                    f" thread {call.thread} the first is at {point!r}, process {call.follower} at"
                    f" {call.what!r}."
                )
            self._heard[key].add(call.follower)
            if len(self._heard[key]) == self._followers:
                del self._said[key], self._heard[key]
                self._changed.notify_all()
            return outcomes[call.follower - 1]


class _Speaker:
    """The `Agree` of one of the leader's threads: sends its outcomes to the followers.

    Args:
      leader: the leader.
      name: name of the thread, in all processes.
    """

    def __init__(self, leader: Leader, name: str):
        self._leader, self._name = leader, name
        self._turn, self._inside = 0, False

    def __call__(self, what: str, thunk: Callable[[], T]) -> T:
        if self._inside:  # This call is part of a larger agreement.
            return thunk()

        def told(result: T) -> list[bytes]:
            return [encode((True, result))] * self._leader.followers

        return self._do(what, thunk, told)

    def hand_out(self, what: str, thunk: Callable[[], T], share: Callable[[T, int], T]) -> T:
        """See `Team`."""
        assert not self._inside, f"{what!r} is handed out where something else is agreed on"

        def told(result: T) -> list[bytes]:
            indices = range(1, 1 + self._leader.followers)
            return [encode((True, share(result, index))) for index in indices]

        return self._do(what, thunk, told)

    def _do(self, what: str, thunk: Callable[[], T], told: Callable[[T], list[bytes]]) -> T:
        self._turn, self._inside = self._turn + 1, True
        try:
            result = thunk()
            outcomes = told(result)
        except BaseException as error:
            failed = encode((False, error))
            self._leader.say(self._name, self._turn, what, [failed] * self._leader.followers)
            raise
        finally:
            self._inside = False
        self._leader.say(self._name, self._turn, what, outcomes)
        return result


class Follower(Team):
    """Any process of a program except the first.

    Args:
      program: name of the program.
      index: index of the process, from 1.
      address: `host:port` that the leader listens on.
      start_secs: maximum time until the leader is up.
      wait_secs: maximum time of the leader between two agreements.
      secret: secret of the run.
    """

    leads = False

    def __init__(
        self,
        program: str,
        index: int,
        address: str,
        start_secs: float,
        wait_secs: float,
        secret: str,
    ):
        self._program, self.process, self._wait_secs = program, index, wait_secs
        self._client = RpcClient(address, f"first process of {program}", secret)
        self._started = time.monotonic()
        self._start_secs = start_secs
        self._has_heard = False
        self.agree = self.thread("program")

    def thread(self, name: str) -> Agree:
        """See `Team`."""
        turn = 0

        def agree(what: str, thunk: Callable[[], T]) -> T:
            nonlocal turn
            turn += 1
            succeeded, result = decode(self._hear(name, turn, what))
            if not succeeded:
                raise result
            return result

        return agree

    def hand_out(self, what: str, thunk: Callable[[], T], share: Callable[[T, int], T]) -> T:
        """See `Team`."""
        del share
        return self.agree(what, thunk)

    def close(self) -> None:
        """See `Team`."""
        self._client.close()

    def _hear(self, thread: str, turn: int, what: str) -> bytes:
        since = time.monotonic()
        while time.monotonic() - since < self._wait_secs:
            outcome = self._ask(thread, turn, what)
            if outcome is not None:
                return outcome
        # Not a TimeoutError: the leader raises those, and then all processes get them. This error
        # is only in this process.
        raise PeerLostError(
            f"Process {self.process} of {self._program} has waited {self._wait_secs:.0f} s for"
            f" the first process to reach {what!r}."
        )

    def _ask(self, thread: str, turn: int, what: str) -> bytes | None:
        call = Hear(self.process, thread, turn, what, _POLL_SECS)
        try:
            heard = self._client.call(call, 4 * _POLL_SECS)
        except PeerLostError:
            if self._has_heard or time.monotonic() - self._started > self._start_secs:
                raise
            time.sleep(_RETRY_SECS)
            return None
        self._has_heard = True
        return heard
