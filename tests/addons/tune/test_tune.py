"""`tune` on the records of a simulated run."""

import json

import pytest

from rl_sync.launcher import config_file
from rl_sync.settings.config_reading import read_settings
from rl_sync.workdir import Workdir
from tests.launcher.command import said_here
from tests.simulation.speed.test_measured_work import record, run_settings, true_work


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """Returns the work directory of an asynchronous run."""
    path = tmp_path_factory.mktemp("run")
    settings = run_settings()
    record(path, settings, true_work())
    Workdir(path).config.write_text(json.dumps(settings.resolved()))
    return path


@pytest.mark.gate
def test_it_prints_the_best_and_writes_what_it_chose(workdir, capsys, tmp_path):
    out = tmp_path / "tuned"
    said = said_here(
        capsys, "tune", f"--workdir={workdir}", f"--out={out}", "--seeds=1", "--devices=apart",
        "--intervals=1,2", "--offsets=2", "--bounds=2",
    )  # fmt: skip
    assert said.status == 0, said.err
    assert "The best of 7 schedules" in said.out
    starred = next(line for line in said.out.splitlines() if line.startswith("*"))
    for name in ("frontier.png", "frontier.svg", "timeline.png", "timeline.svg"):
        assert (out / name).stat().st_size > 1000
    found = json.loads((out / "schedules.json").read_text())
    assert len(found) == 7
    settings = read_settings({**config_file.load(str(out / "tuned.py")).to_dict(), "workdir": ""})
    assert starred.split()[1] == settings.sync.mode
    assert settings.schedule.staleness_bound <= 2
    changes = {f"--config.{n}={v}" for n, v in found[0]["settings"].items() if v is not None}
    assert changes
    allowed = [one for one in found if one["max_staleness"] <= 2]
    fastest = max(one["steps_an_hour"] for one in allowed)
    chosen = next(
        one for one in found
        if one["settings"]["sync.mode"] == settings.sync.mode
        and one["settings"]["sync.interval"] in (None, settings.schedule.interval)
        and one["settings"]["sync.offset"] in (None, settings.schedule.offset)
    )  # fmt: skip
    assert chosen["steps_an_hour"] >= 0.98 * fastest


@pytest.mark.nightly
def test_edited_work_networks_and_devices_change_the_answer(workdir, capsys, tmp_path):
    common = ["tune", f"--workdir={workdir}", "--modes=synchronous", "--seeds=1", "--intervals=1"]

    def speed(*flags):
        out = tmp_path / str(len([*tmp_path.iterdir()]))
        said = said_here(capsys, *common, "--devices=apart", *flags, f"--out={out}")
        assert said.status == 0, said.err
        return json.loads((out / "schedules.json").read_text())[0]["steps_an_hour"]

    own = speed()
    work = json.loads((tmp_path / "0" / "work.json").read_text())
    work["work"]["train"] = 60.0
    (tmp_path / "0" / "slow.json").write_text(json.dumps(work))
    assert speed(f"--work={tmp_path / '0' / 'slow.json'}") < 60
    assert speed("--network=100kbit/s,1s") < own / 2
    assert speed("--devices=trainer:4,explorer:4,apart") > 1.5 * own


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--explorers=none"], "--explorers=none must be whole numbers"),
        (["--network=fast"], "--network=fast must be a bandwidth"),
        (["--modes=asynchronous", "--within=0"], "--within=0: none of the"),
        (["--work=missing.json"], "--work=missing.json cannot be read"),
        (["--transfers=nccl"], "'nccl' is not one of"),
    ],
)
def test_a_mistake_is_one_line(workdir, capsys, flags, said):
    found = said_here(capsys, "tune", f"--workdir={workdir}", *flags)
    assert found.status == 2
    assert said in found.err
    assert len(found.err.strip().splitlines()) == 1
    assert not found.out


def test_a_directory_without_a_run_is_refused(tmp_path, capsys):
    found = said_here(capsys, "tune", f"--workdir={tmp_path}")
    assert found.status == 2
    assert str(tmp_path) in found.err


def test_a_run_without_explorers_is_refused(workdir, tmp_path, capsys):
    config = json.loads(Workdir(workdir).config.read_text())
    config["explorer"]["count"] = 0
    Workdir(tmp_path).config.write_text(json.dumps(config))
    found = said_here(capsys, "tune", f"--workdir={tmp_path}")
    assert found.status == 2
    assert "has no explorers" in found.err
