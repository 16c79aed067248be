"""Records of processes on other machines, which the launcher gets."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest

from rl_sync.addons.clusters.hosts.host_calls import BeginRecords, SendRecords
from rl_sync.addons.clusters.hosts.received_records import ReceivedRecords, places_of
from rl_sync.addons.clusters.hosts.records_sender import RecordsSender
from rl_sync.cluster.rpc import CallHandlers, RpcClient, RpcServer
from rl_sync.workdir import Workdir

pytestmark = pytest.mark.gate

NAMES = ("explorer1",)


class Desk:
    """The launcher's copies, behind a server that may be away."""

    def __init__(self, there: Path):
        self.records, self.calls = ReceivedRecords(Workdir(there)), 0
        self.is_away = False
        self.server = RpcServer(
            CallHandlers(
                BeginRecords.answered_by(lambda call: self.records.begin(NAMES, call.place)),
                SendRecords.answered_by(self._write),
            ),
            0,
        )

    def _write(self, call):
        self.calls += 1
        if self.is_away:
            raise OSError("no way")
        return self.records.write(NAMES, call.place, call.offset, call.content, call.is_cut)


@pytest.fixture
def there(tmp_path):
    path = tmp_path / "there"
    path.mkdir()
    return path


@pytest.fixture
def here(tmp_path):
    path = tmp_path / "here"
    (path / "logs").mkdir(parents=True)
    (path / "spans").mkdir()
    return path


@contextlib.contextmanager
def sending(desk, here, bits_per_sec=1e9):
    sender = RecordsSender(
        RpcClient(f"127.0.0.1:{desk.server.port}", "launcher"),
        1,
        here,
        places_of(Workdir(here), "explorer1"),
        bits_per_sec,
        here / "memo.json",
    )
    try:
        yield sender
    finally:
        sender.close()


@pytest.fixture
def desk(there):
    made = Desk(there)
    yield made
    made.server.close(0)


def test_what_is_added_is_sent_in_order(desk, here, there):
    log = here / "logs" / "explorer1.log"
    with sending(desk, here) as sender:
        for number in range(200):
            with log.open("a") as file:
                file.write(f"line {number}\n" * 50)
        assert sender.flush(20)
        assert (there / "logs" / "explorer1.log").read_bytes() == log.read_bytes()
        with log.open("ab") as file:
            file.write(b"x" * (1 << 20))  # More than a part.
        assert sender.flush(20)
    assert (there / "logs" / "explorer1.log").read_bytes() == log.read_bytes()


@pytest.mark.parametrize("kept", [0, 5, 11])
def test_a_file_that_is_cut_here_is_cut_there(desk, here, there, kept):
    spans = here / "spans" / "explorer1.jsonl"
    spans.write_bytes(b'{"a": 1}\n{"b":')
    with sending(desk, here) as sender:
        assert sender.flush(20)
        whole = spans.read_bytes()[:kept] + b'{"c": 3}\n' * 4
        spans.write_bytes(whole)
        assert sender.flush(20)
    assert (there / "spans" / "explorer1.jsonl").read_bytes() == whole


def test_records_wait_until_the_launcher_can_be_reached(desk, here, there):
    log = here / "logs" / "explorer1.log"
    log.write_text("early\n")
    desk.is_away = True
    with sending(desk, here) as sender:
        assert not sender.flush(1.5)
        assert desk.calls
        desk.is_away = False
        assert sender.flush(20)
    assert (there / "logs" / "explorer1.log").read_text() == "early\n"


def test_another_machine_adds_to_what_the_first_one_sent(desk, here, there, tmp_path):
    log = here / "logs" / "explorer1.log"
    log.write_text("first machine\n")
    with sending(desk, here) as sender:
        assert sender.flush(20)
    (there / "spans").mkdir(exist_ok=True)
    (there / "spans" / "explorer1.jsonl").write_bytes(b'{"a": 1}\n{"torn')
    second = tmp_path / "second"
    (second / "logs").mkdir(parents=True)
    (second / "spans").mkdir()
    (second / "logs" / "explorer1.log").write_text("second machine\n")
    (second / "spans" / "explorer1.jsonl").write_bytes(b'{"b": 2}\n')
    for _ in range(2):  # The second time it joins again with the files that it has.
        with sending(desk, second) as sender:
            assert sender.flush(20)
    assert (there / "logs" / "explorer1.log").read_text() == "first machine\nsecond machine\n"
    assert (there / "spans" / "explorer1.jsonl").read_bytes() == b'{"a": 1}\n{"b": 2}\n'


def test_the_bandwidth_has_a_limit(desk, here):
    (here / "logs" / "explorer1.log").write_bytes(b"x" * 1_000_000)
    since = time.monotonic()
    with sending(desk, here, bits_per_sec=4e6) as sender:
        assert sender.flush(30)
    assert time.monotonic() - since > 1.5


@pytest.mark.parametrize("place", ["config.json", "../x", "logs/trainer.log", "logs/../.secret"])
def test_a_machine_writes_no_other_files(there, place):
    records = ReceivedRecords(Workdir(there))
    with pytest.raises(ValueError, match="is no record of explorer1"):
        records.write(NAMES, place, 0, b"x", False)
    with pytest.raises(ValueError, match="is no record of explorer1"):
        records.begin(NAMES, place)


def test_a_part_that_comes_twice_or_too_early_changes_nothing(there):
    records = ReceivedRecords(Workdir(there))
    place = "logs/explorer1.log"
    assert records.write(NAMES, place, 0, b"abc", False) == 3
    assert records.write(NAMES, place, 0, b"abc", False) == 3
    assert records.write(NAMES, place, 7, b"later", False) == 3
    assert records.write(NAMES, place, 1, b"bcde", False) == 5
    assert (there / place).read_bytes() == b"abcde"


def test_a_copy_that_was_shortened_gets_the_records_again(desk, here, there):
    log = here / "logs" / "explorer1.log"
    log.write_text("before\n")
    (there / "logs").mkdir(exist_ok=True)
    copy = there / "logs" / "explorer1.log"
    copy.write_text("x" * 5000)
    with sending(desk, here) as sender:
        assert sender.flush(20)
        copy.write_text("")
        with log.open("a") as file:
            file.write("after\n")
        assert sender.flush(20)
    assert copy.read_text() == "before\nafter\n"
