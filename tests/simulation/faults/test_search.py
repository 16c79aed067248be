"""The search over seeds: the rules hold, runs can be repeated, and failing ones get small."""

import collections
import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rl_sync.simulation.faults import __main__ as command
from rl_sync.simulation.faults.drawn_run import KINDS, draw
from rl_sync.simulation.faults.invariants import expected_weights
from rl_sync.simulation.faults.search import Alteration, examine, search, shrink
from rl_sync.simulation.faults.world import World, simulate
from tests.simulation.faults.mutants import MUTANTS

ROOT = Path(__file__).resolve().parents[3]
CALM = Alteration(kinds=(), faults=())


def first_of_commit():
    """Returns a seed that follows from the newest commit's hash; 0 outside of a repository."""
    command = ["git", "rev-parse", "HEAD"]
    try:
        commit = subprocess.check_output(command, cwd=ROOT, text=True, stderr=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError):
        return 0
    return int(commit[:8], 16)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "count",
    [
        60,
        pytest.param(600, marks=pytest.mark.gate),
        pytest.param(1_500, marks=pytest.mark.nightly),
    ],
)
def test_no_rule_is_broken_whatever_fails(count):
    """Each commit tries other seeds, except for README's few."""
    first = 0 if count == 60 else first_of_commit()
    seeds = range(first, first + count)
    failed = [found for found in search(seeds) if found.failed]
    assert failed == [], f"python -m rl_sync.simulation.faults --seeds={seeds.start}:{seeds.stop}"


@pytest.mark.parametrize("seed", [333, 389, 749])
def test_seeds_that_once_failed(seed):
    """A copy of a group that was just trained on, and a batch that lost a group."""
    assert examine(seed).failed is None


@pytest.mark.gate
@pytest.mark.parametrize("steps", [1, 40])
def test_runs_of_one_step_and_of_many_end_whatever_fails(steps):
    """The search draws runs of three to six steps."""
    found = [
        examine(seed, alteration=Alteration(steps=steps)) for seed in range(31_000_000, 31_000_004)
    ]
    assert [one for one in found if one.failed] == []


@pytest.mark.gate
def test_without_faults_an_exact_run_gives_the_digest_of_its_schedule():
    runs = [CALM.applied(draw(seed)) for seed in range(40)]
    exact = [run for run in runs if run.is_exact]
    assert len(exact) > 10
    for run in exact:
        outcome = simulate(run)
        assert (outcome.failed, outcome.crashes) == (None, 0)
        assert outcome.weights == expected_weights(run)


def test_deaths_before_the_master_has_answered_are_decided_without_a_phase():
    world = World(CALM.applied(draw(0)))
    assert world.phase is None
    world.simulate()
    assert world.phase == "end"


def test_seeds_draw_all_schedules_styles_and_faults():
    runs = [draw(seed) for seed in range(300)]
    drawn = collections.Counter(kind for run in runs for kind in run.kinds)
    assert {*drawn} == {*KINDS}
    assert all(0.4 < count / len(runs) < 0.6 for count in drawn.values())
    struck = {(fault.kind, fault.process) for run in runs for fault in run.faults}
    roles = {"master", "replay", "trainer", "explorer1", "explorer2", "explorer3"}
    assert {(kind, role) for kind in ("crash", "stall", "partition") for role in roles} < struck
    assert {process for kind, process in struck if kind == "outage"} == {"all"}
    assert {run.style for run in runs} == {"whole", "carry", "stream"}
    assert {run.transfer for run in runs} == {"server", "checkpoint", "collective"}
    assert {run.times_sampled for run in runs} == {1, 2}
    assert {run.schedule.offset for run in runs} == {0, 1, 2}


@pytest.mark.nightly
def test_processes_die_at_commands_of_all_kinds():
    died = collections.Counter()
    for seed in (seed for seed in range(600) if "crash" in draw(seed).kinds):
        before = {}
        for noted in simulate(draw(seed), notes=True).noted:
            if noted.what == "DIES: crashes":
                command = before[noted.process].partition("(")[0].rstrip("0123456789 ")
                died[noted.process.rstrip("123"), command] += 1
            before[noted.process] = noted.what
    commands = {what for process, what in died if process == "trainer"}
    assert {"LogBatch", "flush the log", "TrainStep", "Trained", "PublishVersion"} <= commands
    assert {"write snapshot-", "rename snapshot-"} <= commands
    assert {process for process, _ in died} == {"master", "replay", "trainer", "explorer"}


def test_a_seed_gives_the_same_run_again():
    assert simulate(draw(11), notes=True) == simulate(draw(11), notes=True)


@pytest.mark.nightly
def test_a_run_does_not_depend_on_the_order_of_sets():
    script = (
        "from rl_sync.simulation.faults.drawn_run import draw\n"
        "from rl_sync.simulation.faults.world import simulate\n"
        "print([(s, simulate(draw(s)).handled, simulate(draw(s)).weights) for s in range(20)])"
    )
    told = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert told[0] == told[1]


def test_a_failing_run_is_made_small_and_fails_again():
    parts = MUTANTS["an update counted that failed"].parts
    seed = next(found.seed for found in search(range(100), parts=parts) if found.failed)
    smallest = shrink(seed, parts)
    assert "damage" in smallest.kinds
    assert len(smallest.kinds) < len(draw(seed).kinds)
    assert len(smallest.faults) <= 1
    assert smallest.steps <= draw(seed).steps
    assert "decodes with" in examine(seed, parts, smallest).failed
    assert examine(seed, alteration=smallest).failed is None


def test_an_alteration_is_written_as_options_of_the_command():
    assert str(Alteration()) == ""
    assert str(Alteration((), (), 3)) == " '--kinds=' '--faults=' '--steps=3'"
    text = str(Alteration(("crash", "full disk"), (0, 4), 3))
    assert text == " '--kinds=crash,full disk' '--faults=0,4' '--steps=3'"


@pytest.mark.gate
def test_the_command_says_how_far_it_is_and_that_no_rule_was_broken(capsys):
    assert command.main(["--seeds=0:20", "--processes=1"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"20 of 20 seeds, \d+ seeds/s, \d+ events, \d+ deaths of processes", out)
    assert out.endswith("No rule was broken.\n")


def test_the_command_shows_the_run_of_one_seed_and_draws_it(capsys, tmp_path):
    picture = tmp_path / "run.png"
    arguments = ["--seeds=7", "--kinds=crash,delay", "--steps=2", f"--timeline={picture}"]
    assert command.main(arguments) == 0
    out = capsys.readouterr().out
    assert out.startswith("seed 7: ")
    assert "kinds of faults: crash, delay" in out
    assert "2 steps of" in out
    assert "EndTraining(step=2)" in out
    assert picture.read_bytes()[1:4] == b"PNG"


@pytest.mark.gate
def test_the_command_explains_a_failing_seed_and_how_to_see_it_again(capsys, monkeypatch):
    """The bound of the trainer is broken."""
    from rl_sync.simulation.faults import world
    from tests.simulation.faults.mutants import AcceptsTooStale, LeasesTooFarAhead

    class Broken(world.World):
        def __init__(self, run, parts, notes=False):
            broken = dataclasses.replace(parts, master=LeasesTooFarAhead, trainer=AcceptsTooStale)
            super().__init__(run, broken, notes)

    monkeypatch.setattr(world, "World", Broken)
    assert command.main(["--seeds=0:50", "--processes=1"]) == 1
    out = capsys.readouterr().out
    assert "breaks a rule: BrokenRuleError: step" in out
    again = re.search(r"python -m rl_sync.simulation.faults --seeds=(\d+)(.*)", out)
    assert again
    options = re.findall(r"'(--[^']*)'", again[2])
    assert any(one.startswith("--kinds=") for one in options)
    assert command.main([f"--seeds={again[1]}", *options]) == 1


def test_the_command_refuses_seeds_that_are_none(capsys):
    with pytest.raises(SystemExit):
        command.main(["--seeds=all"])
    assert '--seeds=all is not a seed such as "7", or "0:10000".' in capsys.readouterr().err
