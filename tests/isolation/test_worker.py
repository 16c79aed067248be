"""A worker as its host sees it, with a test at the other end of the sockets."""

from __future__ import annotations

import pickle
import socket
import time

import msgpack
import pytest

from rl_sync.isolation import codec, fork_server
from rl_sync.isolation.frames import MOST_BYTES, framed
from rl_sync.isolation.worker import Worker, WorkerLostError, WorkerSockets

LATEST = 30.0


class Peer:
    """The other end: the process, and its parent."""

    def __init__(self):
        ours, self.channel = socket.socketpair()
        lifeline, self.lifeline = socket.socketpair()
        self.servers_lost = 0
        self.worker = Worker(
            fork=lambda: WorkerSockets(ours, lifeline),
            start_secs=5.0,
            on_start=lambda: None,
            on_lost_server=self.lose_server,
        )

    def lose_server(self):
        self.servers_lost += 1

    def send(self, value):
        self.channel.sendall(framed(codec.encode(value)))

    def end(self, code):
        self.lifeline.sendall(fork_server.END.pack(fork_server.ENDED, code))
        self.lifeline.close()

    def ask(self, limit_secs=LATEST):
        answer = self.worker.ask(codec.encode("a question"), limit_secs)
        self.channel.settimeout(LATEST)
        assert self.channel.recv(1 << 10) == framed(codec.encode("a question"))
        return answer


@pytest.fixture
def peer():
    made = Peer()
    made.send("")
    assert made.worker.started.result(LATEST) == ""
    yield made
    made.worker.kill()
    made.worker.join()


def loss(answer):
    with pytest.raises(WorkerLostError) as lost:
        answer.result(LATEST)
    return lost.value.kind, str(lost.value)


def test_an_answer_that_has_begun_in_time_has_time_to_arrive(peer):
    answer, data = peer.ask(limit_secs=1.0), framed(codec.encode("x" * 100))
    time.sleep(0.7)
    peer.channel.sendall(data[:50])
    time.sleep(0.7)
    peer.channel.sendall(data[50:])
    assert answer.result(LATEST) == "x" * 100


def test_an_answer_that_never_ends_is_late(peer):
    answer = peer.ask(limit_secs=0.5)
    peer.channel.sendall(framed(codec.encode("x" * 100))[:50])
    assert loss(answer) == ("slow answer", "took longer than 0.5 s to send its answer")
    assert peer.worker.is_lost


def test_an_answer_is_read_although_the_process_ended_after_it(peer):
    answer = peer.ask()
    peer.send("the last")
    peer.end(0)
    peer.channel.close()
    assert answer.result(LATEST) == "the last"
    assert peer.worker.is_lost


def test_the_end_of_a_process_is_noticed_although_another_holds_its_channel(peer):
    answer = peer.ask()
    peer.end(-9)
    assert loss(answer)[1].startswith("was killed by SIGKILL")


def test_a_closed_channel_and_a_lost_parent_are_told(peer):
    answer = peer.ask()
    peer.channel.close()
    assert loss(answer) == ("died", "closed the channel to the host")
    other = Peer()
    other.send("")
    answer = other.ask()
    other.lifeline.close()
    assert loss(answer) == ("died", "ended with the process that had started it")
    assert other.servers_lost == 1


def test_a_worker_that_does_not_start_is_given_up():
    ours, theirs = socket.socketpair()
    lifeline, servers_end = socket.socketpair()
    late = Worker(lambda: WorkerSockets(ours, lifeline), 0.2, lambda: None, lambda: None)
    with theirs, servers_end:
        answer = late.ask(b"", LATEST)
        assert loss(answer) == ("start", "took longer than start_secs=0.2 to start")


class Harmful:
    def __reduce__(self):
        return (exec, ("raise SystemExit('ran')",))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x03\x00\x00\x00abc", "sent bytes that are no record"),
        ((MOST_BYTES + 1).to_bytes(4, "little"), "which is no answer"),
        (framed(pickle.dumps(Harmful())), "sent bytes that are no record"),
        (framed(codec.encode_for_worker(Harmful())), "no record: A pickled object arrived"),
        (framed(codec.encode_for_worker([{"a": (Harmful(),)}])), "A pickled object arrived"),
        (framed(msgpack.packb(msgpack.ExtType(7, b"."))), "A pickled object arrived"),
        (framed(msgpack.packb(msgpack.ExtType(99, b"."))), "sent bytes that are no record"),
        (framed(b"\x91" * 100_000), "sent bytes that are no record"),
    ],
)
def test_nonsense_ends_the_worker_and_runs_no_code_of_it(peer, data, why):
    answer = peer.ask()
    peer.channel.sendall(data)
    kind, said = loss(answer)
    assert (kind, why in said) == ("nonsense", True), said


def test_what_nobody_asked_for_is_nonsense(peer):
    peer.send("unasked")
    time.sleep(0.1)
    answer = peer.worker.ask(codec.encode("a question"), LATEST)
    assert loss(answer) == ("nonsense", "answered what nobody had asked")
