"""`sweep`: which runs it makes, in what order, what it skips, and how it ends."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from rl_sync.api.started_run import RunError
from rl_sync.launcher import command_line
from rl_sync.launcher.commands import sweep
from rl_sync.launcher.processes import run_directory as work
from rl_sync.launcher.processes import sweep_grid
from rl_sync.records.run_outcome import RunOutcome, record_end
from rl_sync.settings.records import ConfigError
from rl_sync.workdir import Workdir
from tests.launcher.command import said_here
from tests.page.small_run import append, metrics

CONFIG = "--config=tests/runs/tiny.py"


class Launched:
    """Stands for the runs: each is over at the third look, as its fate says.

    Attributes:
      begun: the values of each run, when it is started.
      most: how many have gone on at the same time.
    """

    def __init__(self, monkeypatch):
        self.begun, self.fates, self.going, self.most = [], {}, set(), 0
        self.stopped, self.variables, self.interrupt_at = [], [], None
        monkeypatch.setattr(sweep, "start_on", self.start)
        monkeypatch.setattr(sweep, "_LOOK_SECS", 0.0)

    def start(self, screen, config, *, workdir, variables):
        name = Path(workdir).name
        if self.fates.get(name) == "mistake":
            raise ConfigError("The data are not there.")
        self.begun.append(name)
        self.variables.append(variables)
        self.going.add(name)
        self.most = max(self.most, len(self.going))
        at = Workdir(workdir)
        Path(workdir).mkdir(parents=True, exist_ok=True)
        resolved = work.settings_of(config.to_dict()).resolved()
        at.config.write_text(json.dumps(resolved))
        screen.show(f"The run of {name}.")
        return _Run(self, name, at, config)


class _Run:
    def __init__(self, launched, name, at, config):
        self._all, self._name, self._at, self._config, self._looks = launched, name, at, config, 0

    @property
    def is_running(self):
        self._looks += 1
        if self._all.interrupt_at == len(self._all.begun):
            self._all.interrupt_at = None
            os.kill(os.getpid(), self._all.signal)
        return self._looks < 3 and self._name in self._all.going

    def stop(self):
        self._all.stopped.append(self._name)

    def wait(self):
        self._all.going.discard(self._name)
        if self._name in self._all.stopped:
            return record_end(self._at, RunOutcome(1.0, stopped="interrupted by the user"))
        if self._all.fates.get(self._name) == "fails":
            record_end(self._at, RunOutcome(1.0, failed="explorer 1 died"))
            raise RunError("explorer 1 died")
        reward = self._config.seed / 10
        append(self._at.metrics, *(metrics(step, reward_mean=reward) for step in (1, 2)))
        return record_end(self._at, RunOutcome(1.0, digest=self._name))


@pytest.fixture
def launched(monkeypatch):
    return Launched(monkeypatch)


def combined(*flags: str) -> list[sweep_grid.Combination]:
    arguments = command_line.parse(["sweep", CONFIG, *flags])
    return sweep_grid.combinations(arguments.config, arguments.flags)


def test_all_combinations_are_made_and_named(tmp_path):
    found = combined(
        "--set=optimizer.learning_rate=1e-3,2e-3", "--set=sync.mode=synchronous,asynchronous",
        "--seeds=3:6", "--config.trainer.steps=7", f"--into={tmp_path}",
    )  # fmt: skip
    assert len(found) == 12
    assert [one.config.seed for one in found[:4]] == [3, 4, 5, 3]
    assert found[0].name == "optimizer.learning_rate=1e-3 sync.mode=synchronous seed=3"
    last = found[-1].config
    assert (last.optimizer.learning_rate, last.sync.mode, last.seed) == (2e-3, "asynchronous", 5)
    assert {one.config.trainer.steps for one in found} == {7}
    assert len({one.workdir for one in found}) == 12
    assert {one.workdir.parent for one in found} == {tmp_path}


@pytest.mark.parametrize(
    ("given", "seeds"), [("0:3", [0, 1, 2]), (":2", [0, 1]), ("5", [5]), ("4, 0,9", [4, 0, 9])]
)
def test_seeds_are_a_span_or_a_list(given, seeds):
    assert [one.config.seed for one in combined(f"--seeds={given}")] == seeds


def test_a_value_may_have_commas_and_slashes():
    one_of = "exact + 0.2 * format(pattern='a/b, c')"
    rewards = f'"{one_of}",math'
    one, other = combined(f"--set=--config.task.reward={rewards}")
    assert (one.config.task.reward, other.config.task.reward) == (one_of, "math")
    assert one.workdir.parent == other.workdir.parent
    assert "/" not in one.workdir.name


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "needs something to vary"),
        (["--seeds=4:4"], "--seeds=4:4 must be"),
        (["--seeds=1,1"], "or different seeds"),
        (["--seeds=-1"], "--seeds=-1 must be"),
        (["--set=trainer.steps"], "must be written as --set=SETTING=VALUE,VALUE"),
        (["--set=trainer.steps=1,,2"], "must be written as"),
        (["--set=trainer.steps=1,1"], "has a value twice"),
        (["--set=trainer.stepps=1,2"], "did you mean --config.trainer.steps"),
        (["--set=trainer.steps=1,many"], "must be a whole number"),
        (["--set=trainer.steps=1,-2"], "With trainer.steps=-2: "),
        (["--set=seed=1,2", "--seeds=0:2"], "seed is given twice"),
        (["--seeds=0:2", "--config.workdir=here"], "give the directory of all runs as --into"),
        (["--seeds=0:2", "--index=2"], "--index=2 must be at most 1"),
        (["--seeds=0:2", "--index=-1"], "--index=-1 must be a whole number"),
        (["--seeds=0:2", "--parallel=0"], "--parallel=0 must be a whole number of at least 1"),
    ],
)
def test_a_mistake_in_a_sweep_is_told_before_anything_starts(flags, said, launched, capsys):
    done = said_here(capsys, "sweep", CONFIG, *flags)
    assert done.status == 2
    assert said in done.err
    assert done.err.count("\n") == 1
    assert launched.begun == []


def test_a_sweep_makes_its_runs_and_compares_them(launched, tmp_path, capsys):
    flags = ["sweep", CONFIG, "--seeds=1:4", f"--into={tmp_path}", f"--out={tmp_path}/c.html"]
    done = said_here(capsys, *flags)
    assert (done.status, done.err) == (0, "")
    assert launched.begun == ["seed=1", "seed=2", "seed=3"]
    assert launched.most == 1
    assert "[2/3] seed=2 starts" in done.out
    table = " ".join(done.out.split())
    assert "runs 3 (seeds 1, 2, 3)" in table
    assert "reward 0.1 / 0.2 / 0.3" in table
    assert (tmp_path / "c.html").is_file()
    assert (tmp_path / "seed=2.log").read_text() == "The run of seed=2.\n"
    again = said_here(capsys, *flags)
    assert again.status == 0
    assert len(launched.begun) == 3
    assert "[1/3] seed=1 is finished" in again.out
    assert "reward 0.1 / 0.2 / 0.3" in " ".join(again.out.split())


def test_more_steps_go_on_with_runs_that_had_finished(launched, tmp_path, capsys):
    said_here(capsys, "sweep", CONFIG, "--seeds=0:2", f"--into={tmp_path}")
    more = ["sweep", CONFIG, "--seeds=0:2", f"--into={tmp_path}", "--config.trainer.steps=99"]
    assert said_here(capsys, *more, "--list").out.count("  begun  ") == 2
    said_here(capsys, *more)
    assert launched.begun == ["seed=0", "seed=1"] * 2


def test_runs_go_on_side_by_side_with_devices_of_their_own(launched, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6")
    done = said_here(capsys, "sweep", CONFIG, "--seeds=0:4", "--parallel=3", f"--into={tmp_path}")
    assert done.status == 0
    assert launched.most == 3
    assert [one["CUDA_VISIBLE_DEVICES"] for one in launched.variables[:3]] == ["0,1", "2,3", "4,5"]


def test_a_run_that_fails_does_not_end_the_others(launched, tmp_path, capsys):
    launched.fates = {"seed=0": "fails", "seed=1": "mistake"}
    flags = ["sweep", CONFIG, "--seeds=0:4", f"--into={tmp_path}"]
    done = said_here(capsys, *flags)
    assert done.status == 1
    assert launched.begun == ["seed=0", "seed=2", "seed=3"]
    assert "[1/4] seed=0 FAILED: explorer 1 died" in done.out
    assert "[2/4] seed=1 FAILED: The data are not there." in done.out
    launched.fates = {}
    assert said_here(capsys, *flags).status == 0
    assert launched.begun[3:] == ["seed=0", "seed=1"]


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_sweep_stops_its_runs_and_goes_on_later(
    sent, status, launched, tmp_path, capsys
):
    # A shell that starts this in the background has it ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    launched.interrupt_at, launched.signal = 2, sent
    flags = ["sweep", CONFIG, "--seeds=0:3", f"--into={tmp_path}"]
    done = said_here(capsys, *flags)
    assert done.status == status
    assert launched.stopped == ["seed=1"]
    assert "The same command goes on: 2 runs are left" in done.out
    launched.stopped = []
    assert said_here(capsys, *flags).status == 0
    assert sorted(launched.begun[2:]) == ["seed=1", "seed=2"]


def test_one_of_an_array_job_makes_its_run_alone(launched, tmp_path, capsys):
    flags = ["sweep", CONFIG, "--seeds=0:3", f"--into={tmp_path}"]
    done = said_here(capsys, *flags, "--index=1")
    assert (done.status, launched.begun) == (0, ["seed=1"])
    assert "The run of seed=1." in done.out
    listed = said_here(capsys, *flags, "--list").out.splitlines()
    assert [line.split()[:3] for line in listed] == [
        ["0", "seed=0", "new"], ["1", "seed=1", "finished"], ["2", "seed=2", "new"],
    ]  # fmt: skip
