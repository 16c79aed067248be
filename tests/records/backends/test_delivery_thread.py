"""Backends that fail, hang or are slow, and a run that notices none of it."""

import time

import pytest

from rl_sync.records.backends.backend import Backend, MetricPoint
from rl_sync.records.backends.delivery_thread import BackendThread
from tests.records.backends.fakes import Recorder


def _point(step):
    return MetricPoint("rl", step, 1.7e9 + step, {"rl/reward": step / 10})


def _soon():
    return time.monotonic() + 10


def _said(caplog):
    return [record.getMessage() for record in caplog.records]


def test_points_arrive_in_their_order_between_the_start_and_the_end():
    recorder = Recorder()
    courier = BackendThread("fake", recorder.start)
    courier.resume(2, [_point(1), _point(2)])
    courier.log(_point(3))
    courier.log(_point(4))
    courier.close(is_well=False)
    courier.close(is_well=True)  # The first time counts.
    courier.log(_point(5))  # Too late.
    assert courier.wait(_soon())
    steps = [("rl", step, {"rl/reward": step / 10}) for step in (3, 4)]
    assert recorder.got == [("resume", 2, [1, 2]), *steps, ("finish", False)]


@pytest.mark.parametrize("fails_at", ["start", "log", "finish"])
def test_a_backend_that_raises_is_dropped_and_told_of_once(fails_at, caplog):
    calls = []

    def call(name):
        calls.append(name)
        if name == fails_at:
            raise ValueError("the server said\n  no.")

    def start():
        call("start")
        return Backend(lambda p: call("log"), lambda *_: call("resume"), lambda _: call("finish"))

    courier = BackendThread("fake", start)
    for step in range(50):
        courier.log(_point(step))
    courier.close(is_well=True)
    assert courier.wait(_soon())
    assert _said(caplog) == [
        "fake gets no more metrics: ValueError: the server said no. The run goes on; metrics.jsonl"
        " has them all."
    ]
    assert calls.count(fails_at) == 1
    assert calls[-1] == fails_at


def test_a_library_that_exits_does_not_end_the_run(caplog):
    def start():
        raise SystemExit("not logged in")

    courier = BackendThread("fake", start)
    courier.close(is_well=True)
    assert courier.wait(_soon())
    assert _said(caplog)[0].startswith("fake gets no more metrics: SystemExit: not logged in.")


def test_a_backend_that_hangs_holds_up_neither_records_nor_the_end(caplog):
    recorder = Recorder(is_open=False)
    courier = BackendThread("fake", recorder.start, most_points=10)
    began = time.monotonic()
    courier.log(_point(0))
    while courier._orders:  # Until the backend has it, and hangs.
        time.sleep(0.001)
    for step in range(1, 101):
        courier.log(_point(step))
    courier.close(is_well=True)
    assert not courier.wait(time.monotonic() + 0.1)
    assert time.monotonic() - began < 5
    slow, hung = _said(caplog)
    assert slow.startswith("fake does not keep up: 10 records wait for it, and newer ones are left")
    assert "left alone: it lacks its end and 100 records or more" in hung
    assert recorder.got == []
    recorder.open.set()


def test_a_slow_backend_gets_what_has_room_and_the_end(caplog):
    recorder = Recorder(is_open=False)
    courier = BackendThread("fake", recorder.start, most_points=4)
    courier.log(_point(0))
    while courier._orders:
        time.sleep(0.001)
    for step in range(1, 8):
        courier.log(_point(step))
    recorder.open.set()
    while courier._orders:
        time.sleep(0.001)
    courier.log(_point(8))
    courier.close(is_well=True)
    assert courier.wait(_soon())
    assert [what[1] for what in recorder.got] == [0, 1, 2, 3, 4, 8, True]
    assert _said(caplog)[-1] == "fake was too slow: it lacks 3 records."
    assert len(_said(caplog)) == 2
