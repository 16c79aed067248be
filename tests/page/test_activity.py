import time

import pytest

from rl_sync.page.activity import open_spans, roles_now, roles_of
from rl_sync.page.timeline_view import picture
from rl_sync.records.run_records import open_runs
from rl_sync.workdir import Workdir
from tests.page.small_run import append


def test_a_role_tells_whom_it_waits_for(tmp_path):
    span = {"role": "explorer1", "start": 100.0, "end": 106.0, "kind": "rollout"}
    wait = {"reason": "synchronization", "for_whom": "the trainer"}
    append(
        Workdir(tmp_path).spans_of("explorer1"),
        span | {"attributes": {"version": 3}},
        span | {"start": 105.0, "end": 110.0, "kind": "wait", "attributes": wait},
        {"resumed_at": 1, "began": 5.0},
        {"kind": "no such kind", "start": 1, "end": 2},
    )
    (run,) = open_runs([tmp_path])
    run.refresh()
    (role,) = roles_now(run)
    assert role.busy == pytest.approx(0.6)
    assert role.waits == (("synchronization", "the trainer", pytest.approx(0.4)),)


def _doing(kind, since, at, says="evaluation 64/500", **attributes):
    said = {"kind": kind, "says": says, "since_secs": since, "attributes": attributes}
    return {"time": at, "cpu_secs": 1.0, "memory_bytes": 1, "doing": said}


def test_before_the_first_span_a_role_says_what_it_does(tmp_path):
    now, at = time.time(), Workdir(tmp_path)
    append(at.usage / "trainer.jsonl", _doing("compile", now - 9, now, "compiles"))
    append(at.usage / "trainer" / "1.jsonl", _doing("compile", now - 8, now))
    append(at.usage / "explorer1.jsonl", {"time": now, "cpu_secs": 0.1, "memory_bytes": 1})
    (run,) = open_runs([tmp_path])
    run.refresh()
    (role,) = roles_now(run)
    assert (role.name, role.now.says, role.last, role.busy) == ("trainer", "compiles", "", 0)
    assert picture(run)["duration"] == pytest.approx(9, abs=0.1)


def test_an_open_activity_is_shown_until_its_span_is_there(tmp_path):
    now, at = time.time(), Workdir(tmp_path)
    spans = at.spans_of("trainer")
    append(spans, {"role": "trainer", "kind": "train", "start": now - 60, "end": now - 40})
    append(at.usage / "trainer.jsonl", _doing("evaluation", now - 30, now - 20, step=3))
    (run,) = open_runs([tmp_path])
    run.refresh()
    (span,) = open_spans(run)
    assert (span.kind, span.step, span.duration_secs) == ("evaluation", 3, pytest.approx(10))
    assert picture(run)["duration"] == pytest.approx(40)
    of_thread = {"role": "trainer", "kind": "wait", "start": now - 25, "end": now - 15}
    append(spans, of_thread)
    run.refresh()
    assert len(open_spans(run)) == 1
    append(spans, {"role": "trainer", "kind": "evaluation", "start": now - 30, "end": now - 10})
    run.refresh()
    assert not open_spans(run)
    assert roles_of(run) == ["trainer"]


def test_what_a_killed_role_was_doing_is_not_shown_for_ever(tmp_path):
    past = time.time() - 1000
    append(Workdir(tmp_path).usage / "trainer.jsonl", _doing("compile", past - 9, past))
    (run,) = open_runs([tmp_path])
    run.refresh()
    assert not open_spans(run)
    assert not roles_now(run)


@pytest.mark.parametrize("doing", [None, 3, {"kind": "compile"}, {"kind": "x", "says": 1}])
def test_activities_that_are_none_are_ignored(tmp_path, doing):
    line = {"time": time.time(), "cpu_secs": 1.0, "memory_bytes": 1, "doing": doing}
    append(Workdir(tmp_path).usage / "trainer.jsonl", line)
    (run,) = open_runs([tmp_path])
    run.refresh()
    assert run.usage.now
    assert not roles_now(run)
