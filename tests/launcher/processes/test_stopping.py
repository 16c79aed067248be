"""The wait for a run that is stopped, and the report of lost steps."""

from __future__ import annotations

import math
import re

import pytest

from rl_sync.cluster.stop_progress import StopProgress
from rl_sync.launcher.processes import stopping
from rl_sync.messages.run_status import RoleStatus, RunStatus
from rl_sync.settings.config_reading import read_settings
from rl_sync.workdir import Workdir
from tests.runs import tiny
from tests.settings.changed import settings_with


def status_of(activity="train", since_secs=0.0, step=5, phase="rl", done=4, waits_for=None):
    trainer = RoleStatus("trainer", activity, since_secs, waits_for=waits_for, step=step)
    return RunStatus(phase, done, 12, (RoleStatus("explorer1", "rollout", 99.0), trainer))


class Supervised:
    """A supervisor of a master that ends after some looks."""

    def __init__(self, looks, then=lambda: None):
        self.looks, self._then = looks, then

    def wait(self, names, timeout_secs):
        assert names == ["master"]
        self.looks -= 1
        self._then()
        return [] if self.looks < 0 else names


def test_the_end_waits_for_backends_until_the_master_ends_or_the_user_has_enough(
    capsys, monkeypatch
):
    monkeypatch.setattr(stopping, "_QUIET_SECS", -1.0)
    settings = settings_with(observe__backends="wandb,mlflow")
    supervised = Supervised(3)
    stopping.await_backends(settings, supervised, [])
    assert supervised.looks == -1
    said = capsys.readouterr().out
    assert said.count("Waiting for wandb and mlflow to take the last metrics, at most 30 s.") == 1
    signals = [2]  # The one that stopped the run.
    supervised = Supervised(math.inf, lambda: signals.append(2))
    stopping.await_backends(settings, supervised, signals)
    assert len(signals) == 2


def test_the_end_does_not_wait_for_backends_for_ever(monkeypatch):
    monkeypatch.setattr(stopping, "_END_SECS", 0.05)
    settings = settings_with(observe__finish_secs=0.05)
    stopping.await_backends(settings, Supervised(math.inf), [])
    none = settings_with(observe__backends="")
    stopping.await_backends(none, None, [])


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def still_after(looks, most_secs=math.inf):
    """Returns how long a trainer counts as still after these statuses, one every ten seconds."""
    clock = Clock()
    movement = StopProgress(most_secs, clock)
    for look in looks:
        movement.see(look)
        clock.now += 10.0
    return movement.still_secs


@pytest.mark.parametrize(
    ("looks", "still_secs"),
    [
        pytest.param([status_of("train", 10.0 * i) for i in range(20)], 10.0, id="long step"),
        pytest.param([status_of("snapshot", 10.0 * i) for i in range(20)], 10.0, id="long save"),
        pytest.param([status_of("train", 30.0)] * 20, 200.0, id="no sign of life"),
        pytest.param([status_of("idle", 10.0 * i) for i in range(20)], 200.0, id="idle"),
        pytest.param(
            [status_of("wait", 10.0 * i, waits_for="experiences") for i in range(20)],
            200.0,
            id="waits",
        ),
        pytest.param([status_of("idle", 0.0, step=i) for i in range(20)], 10.0, id="new steps"),
        pytest.param([None] * 20, 200.0, id="no answer"),
        pytest.param([status_of(), None, None], 30.0, id="no answer any more"),
    ],
)
def test_a_trainer_moves_while_it_lives_and_works_or_turns_to_something_else(looks, still_secs):
    assert still_after(looks) == still_secs


def test_work_that_lasts_longer_than_it_may_is_no_movement():
    looks = [status_of("train", 10.0 * i) for i in range(20)]
    assert still_after(looks, most_secs=100.0) == 100.0


class Living:
    """A supervisor whose processes live for a given number of looks."""

    def __init__(self, looks):
        self.looks = looks

    def wait(self, roles, timeout_secs):
        self.looks -= 1
        return ["trainer"] if self.looks > 0 else []

    def living(self, names):
        return ["trainer"]


def waited(looks, statuses, interrupted=lambda: False, stop_secs=1e-9):
    seen = iter(statuses)
    return stopping.await_end(
        settings_with(launch__stop_secs=stop_secs),
        Living(looks),
        lambda: next(seen),
        is_interrupted=interrupted,
        most_secs=math.inf,
    )


def test_a_step_that_outlasts_the_patience_is_waited_for():
    longer = [status_of("train", float(i)) for i in range(50)]
    assert waited(50, longer, stop_secs=5.0) == ""


def test_what_does_not_move_is_named_and_not_waited_for():
    why = waited(50, [status_of("idle")] * 50)
    assert re.search(r"trainer cannot be stopped cleanly: .*launch.stop_secs=1e-09", why)


def test_a_second_interrupt_ends_the_wait():
    assert waited(50, [status_of()] * 50, lambda: True, 60.0) == "interrupted again"


def test_what_the_trainer_is_at_is_said():
    assert stopping.under_way(status_of("train", 130.2)) == (
        "trainer: train t5, 130 s; then it saves a snapshot"
    )
    assert stopping.under_way(status_of("snapshot", 3.0)) == "trainer: saves a snapshot, 3 s"
    assert stopping.under_way(status_of("wait", 2.0, waits_for="experiences")) == (
        "trainer: waits for experiences 2.0 s; then it saves a snapshot"
    )
    assert stopping.under_way(None) == "trainer: no status"


@pytest.fixture
def settings(tmp_path):
    return read_settings({**tiny.get_config().to_dict(), "workdir": str(tmp_path)})


def snapshot(settings, name):
    (Workdir(settings.workdir).snapshots / name).mkdir(parents=True)


@pytest.mark.parametrize(
    ("snapshots", "status", "lost", "goes_on"),
    [
        ([], None, "", "Nothing was trained yet, so there is nothing to go on from"),
        ([], status_of(phase="start", done=0), "", "Nothing was trained yet"),
        ([], status_of("sft", phase="sft", done=0), "", "Nothing was trained yet"),
        (
            [],
            status_of("sft", phase="sft", done=7),
            "SFT steps 1 to 7",
            "Nothing was saved yet",
        ),
        (
            ["sft/snapshot_00000005"],
            status_of("sft", phase="sft", done=7),
            "SFT steps 6 to 7",
            "To go on from SFT step 5,",
        ),
        ([], status_of("idle", done=1), "SFT and trainer step 1", "Nothing was saved yet"),
        (
            ["snapshot_00000003", "snapshot_00000002"],
            status_of("idle", done=4),
            "trainer step 4",
            "To go on from trainer step 3,",
        ),
        (["snapshot_00000004"], status_of("idle", done=4), "", "To go on from trainer step 4,"),
        (
            ["snapshot_00000003"],
            status_of("train", step=5, done=4),
            "trainer steps 4 to 5",
            "To go on from trainer step 3,",
        ),
    ],
)
def test_what_is_lost_is_said_and_how_to_go_on(settings, snapshots, status, lost, goes_on):
    for name in snapshots:
        snapshot(settings, name)
    assert stopping.lost(settings, status) == lost
    said = stopping.how_to_go_on(settings, status)
    assert goes_on in said
    goes_on = goes_on.startswith("To go on")
    named = (
        f"resume --workdir={settings.workdir}" if goes_on else f"config.workdir={settings.workdir}"
    )
    assert named in said
    assert (f"Lost, since no snapshot holds it: {lost}." in said) == bool(lost)
