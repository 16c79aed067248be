"""Silence: processes that sent heartbeats, and send no more while others are heard."""

from __future__ import annotations

from rl_sync.cluster.heartbeats import Heartbeats


def test_who_gives_no_sign_for_so_long_is_named_with_what_it_was_doing():
    heartbeats = Heartbeats(0.0)
    for now in range(31):
        heartbeats.heard("explorer1", 7, "at rollout (step 3)", float(now))
        if now <= 10:
            heartbeats.heard("trainer", 8, "at train (step 2)", float(now))
        heartbeats.ticked(float(now), 1.0)
    assert heartbeats.silences(21.0) == []
    (silence,) = heartbeats.silences(20.0)
    assert (silence.name, silence.process, silence.secs) == ("trainer", 8, 20.0)
    assert "trainer (process 8) hangs, or was stopped" in str(silence)
    assert "no heartbeat for 20 s" in str(silence)
    assert str(silence).endswith("when it was at train (step 2)")


def test_who_has_left_or_was_lost_is_not_missed():
    heartbeats = Heartbeats(0.0)
    for name in ("trainer", "explorer1", "explorer1/1", "explorer10"):
        heartbeats.heard(name, 1, "", 0.0)
    heartbeats.ticked(5.0, 5.0)
    heartbeats.left("trainer")
    heartbeats.lost("explorer1")
    assert [silence.name for silence in heartbeats.silences(1.0)] == ["explorer10"]


def test_time_in_which_the_listener_itself_stood_still_is_nobodys_silence():
    heartbeats = Heartbeats(0.0)
    heartbeats.heard("trainer", 1, "", 0.0)
    heartbeats.ticked(0.5, 0.5)
    heartbeats.ticked(900.5, 0.5)  # The machine was paused.
    assert heartbeats.silences(2.0) == []
    for now in range(901, 907):
        heartbeats.ticked(float(now), 1.0)
    (silence,) = heartbeats.silences(2.0)
    assert 6.0 <= silence.secs <= 8.0
