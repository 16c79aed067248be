"""Calls whose answers may take long: asked for until they are there, and given once."""

from __future__ import annotations

import contextlib
import dataclasses
import threading

import pytest

from rl_sync.cluster.pending import Await, Pending, PendingCalls, await_answer
from rl_sync.cluster.rpc import CallHandlers, RemoteError, RpcClient, RpcServer
from rl_sync.messages.call import Call


@dataclasses.dataclass(frozen=True)
class Double(Call[int]):
    number: int


class Slow:
    """Doubles numbers when it may, and counts what it was given."""

    def __init__(self):
        self.may, self.given = threading.Event(), []

    def __call__(self, call):
        self.given.append(call.number)
        assert self.may.wait(10)
        if call.number < 0:
            raise ValueError("too small")
        return 2 * call.number


@contextlib.contextmanager
def pending_calls(slow, **options):
    calls = PendingCalls(
        Double.answered_by(slow), threads=4, progress=lambda: len(slow.given), **options
    )
    with contextlib.closing(calls):
        yield calls


def test_an_answer_that_is_ready_soon_comes_with_the_first_reply():
    slow = Slow()
    slow.may.set()
    sent = []
    with pending_calls(slow) as calls:
        send = lambda call: sent.append(call) or calls.answer(call)  # noqa: E731
        assert await_answer(send, Double(3), between=sent.append) == 6
    assert [one.call for one in sent] == [Double(3)]


def test_who_waits_hears_of_progress_and_sends_the_call_once():
    slow, sent, heard = Slow(), [], []

    def between(progress):
        heard.append(progress)
        slow.may.set()

    with pending_calls(slow) as calls:

        def send(call):
            sent.append(call)
            return calls.answer(dataclasses.replace(call, poll_secs=0.05 if call.call else 5.0))

        assert await_answer(send, Double(3), between) == 6
    assert heard == [1]
    assert [one.call for one in sent] == [Double(3), None]
    assert slow.given == [3]
    assert len({one.key for one in sent}) == 1


def test_a_wait_ends_by_an_error_of_the_one_who_waits():
    def stop(progress):
        raise TimeoutError(f"nothing after {progress}")

    slow = Slow()
    with pending_calls(slow) as calls, pytest.raises(TimeoutError, match="nothing after 1"):
        await_answer(
            lambda call: calls.answer(dataclasses.replace(call, poll_secs=0.0)), Double(3), stop
        )
    slow.may.set()


def test_a_call_that_a_new_server_does_not_know_is_sent_again():
    first, second = Slow(), Slow()
    second.may.set()
    with pending_calls(first) as lost, pending_calls(second) as calls:
        answers = iter([lost, calls, calls])

        def send(call):
            return next(answers).answer(dataclasses.replace(call, poll_secs=0.05))

        assert await_answer(send, Double(4), lambda progress: None) == 8
    first.may.set()
    assert (first.given, second.given) == ([4], [4])


def test_an_answer_is_given_once_or_kept_for_those_who_lost_it():
    slow = Slow()
    slow.may.set()
    with pending_calls(slow) as calls:
        assert calls.answer(Await("a", Double(1), 5.0)) == 2
        assert calls.answer(Await("a", None, 5.0)) == Pending(1, is_known=False)
    with pending_calls(slow, kept=1) as calls:
        for call in (Double(1), None, Double(1)):
            assert calls.answer(Await("a", call, 5.0)) == 2
        assert slow.given == [1, 1], "it was answered once"
        assert calls.answer(Await("b", Double(2), 5.0)) == 4
        assert calls.answer(Await("c", Double(3), 5.0)) == 6
        assert calls.answer(Await("a", None, 5.0)).is_known is False
        assert calls.answer(Await("b", None, 5.0)) == 4


def test_failures_are_told_and_the_call_may_be_sent_again_or_it_stays_pending():
    slow = Slow()
    slow.may.set()
    with pending_calls(slow, kept=5) as calls:
        for _ in range(2):
            with pytest.raises(ValueError, match="too small"):
                calls.answer(Await("a", Double(-1), 5.0))
        assert slow.given == [-1, -1]
    with pending_calls(slow, tells_failures=False) as calls:
        for call in (Double(-1), None):
            assert calls.answer(Await("a", call, 0.1)) == Pending(3)


def test_pending_calls_work_between_processes():
    slow = Slow()
    slow.may.set()
    with pending_calls(slow) as calls:
        server = RpcServer(CallHandlers(calls.handler()), 0)
        client = RpcClient(f"127.0.0.1:{server.port}", "server")
        send = lambda call: client.call(call, 10.0)  # noqa: E731
        assert await_answer(send, Double(21), between=print) == 42
        with pytest.raises(RemoteError, match="too small"):
            await_answer(send, Double(-1), between=print)
        client.close()
        server.close()
