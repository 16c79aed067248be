"""A run whose roles have several processes each, of several devices each."""

from __future__ import annotations

from rl_sync.observe.spans import SpanKind
from tests.runs.conftest import MESHES, TEAMS
from tests.runs.test_conformance import assert_same_bits

FLAGS = (
    "--config.sync.mode=one_step_off_policy",
    "--config.replay.backend=embedded",
    "--config.trainer.steps=4",
)


def test_programs_of_several_processes_give_the_bits_of_single_ones(runs):
    """Parameters are cut over the trainer's processes, and otherwise over the explorer's."""
    teams, alone = runs.get(*FLAGS, *TEAMS), runs.get(*FLAGS, *MESHES)
    logs = {path.name for path in (teams.workdir / "logs").iterdir()}
    assert {"trainer.log", "trainer.1.log", "explorer1.log", "explorer1.1.log"} <= logs
    assert_same_bits(teams, alone)
    assert {span.role for span in teams.spans()} == {span.role for span in alone.spans()}
    steps = [step["step"] for step in teams.consumed]
    assert steps == [1, 2, 3, 4], "a step is recorded once, by the first process"


def test_each_process_fetches_its_weights_from_the_process_that_has_them(runs):
    teams = runs.get(*FLAGS, *TEAMS, "--config.sync.transfer=server")
    assert_same_bits(teams, runs.get(*FLAGS, *MESHES))
    assert teams.spans(SpanKind.SYNC_SERVER, role="explorer1")
