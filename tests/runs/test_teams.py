"""A run whose roles have several processes each, of several devices each."""

from __future__ import annotations

import pytest

from rl_sync.runtime.programs import SYNC_SPANS
from tests.runs.conftest import MESHES, TEAMS, assert_same_bits

SHORT = ("--config.replay.backend=embedded", "--config.trainer.steps=4")
MODES = {
    "synchronous": ("--config.sync.mode=synchronous",),
    "one step off-policy": ("--config.sync.mode=one_step_off_policy",),
    "custom (2, 1)": (
        "--config.sync.mode=custom",
        "--config.sync.interval=2",
        "--config.sync.offset=1",
    ),
}


@pytest.mark.parametrize(
    ("mode", "transfer"),
    [
        ("synchronous", "collective"),
        ("one step off-policy", "collective"),
        ("one step off-policy", "server"),
        ("custom (2, 1)", "checkpoint"),
    ],
)
def test_programs_of_several_processes_give_the_bits_of_single_ones(runs, mode, transfer):
    """Parameters are cut over the trainer's processes, and otherwise over the explorer's.

    The single ones are of a cluster too: outside one XLA adds up over a process's devices in
    another order.
    """
    teams = runs.get(*MODES[mode], f"--config.sync.transfer={transfer}", *SHORT, *TEAMS)
    alone = runs.get(*MODES[mode], "--config.sync.transfer=collective", *SHORT, *MESHES)
    logs = {path.name for path in (teams.workdir / "logs").iterdir()}
    assert {"trainer.log", "trainer.1.log", "explorer1.log", "explorer1.1.log"} <= logs
    assert_same_bits(teams, alone)
    steps = [step["step"] for step in teams.consumed]
    assert steps == [1, 2, 3, 4], "a step is recorded once, by the first process"
    assert {span.role for span in teams.spans()} == {span.role for span in alone.spans()}
    assert teams.spans(SYNC_SPANS[transfer], role="explorer1")
