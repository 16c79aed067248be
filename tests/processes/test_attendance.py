"""Silence: processes that sent heartbeats, and send no more while others are heard."""

from __future__ import annotations

from rl_sync.processes.attendance import Attendance


def test_who_gives_no_sign_for_so_long_is_named_with_what_it_was_doing():
    attendance = Attendance(0.0)
    for now in range(31):
        attendance.heard("explorer1", 7, "at rollout (step 3)", float(now))
        if now <= 10:
            attendance.heard("trainer", 8, "at train (step 2)", float(now))
        attendance.ticked(float(now), 1.0)
    assert attendance.silences(21.0) == []
    (silence,) = attendance.silences(20.0)
    assert (silence.name, silence.process, silence.secs) == ("trainer", 8, 20.0)
    assert "trainer (process 8) hangs, or was stopped" in str(silence)
    assert "no sign of life for 20 s" in str(silence)
    assert str(silence).endswith("when it was at train (step 2)")


def test_who_has_left_or_was_lost_is_not_missed():
    attendance = Attendance(0.0)
    for name in ("trainer", "explorer1", "explorer1/1", "explorer10"):
        attendance.heard(name, 1, "", 0.0)
    attendance.ticked(5.0, 5.0)
    attendance.left("trainer")
    attendance.lost("explorer1")
    assert [silence.name for silence in attendance.silences(1.0)] == ["explorer10"]


def test_time_in_which_the_listener_itself_stood_still_is_nobodys_silence():
    attendance = Attendance(0.0)
    attendance.heard("trainer", 1, "", 0.0)
    attendance.ticked(0.5, 0.5)
    attendance.ticked(900.5, 0.5)  # The machine was paused.
    assert attendance.silences(2.0) == []
    for now in range(901, 907):
        attendance.ticked(float(now), 1.0)
    (silence,) = attendance.silences(2.0)
    assert 6.0 <= silence.secs <= 8.0
