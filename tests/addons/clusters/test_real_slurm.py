"""Rendered jobs on a real Slurm: they train, are told to end, lose nodes, and go on.

One machine stands for all nodes, each with an address, a name and processes of its own. See
`slurm_site`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rl_sync.checkpoints.audit import audit
from rl_sync.checkpoints.ledger import read_consumed
from rl_sync.records.json_lines import read_json_lines
from rl_sync.records.metrics import read_metrics
from rl_sync.settings.config_reading import read_settings
from rl_sync.workdir import Workdir
from tests.addons.clusters.slurm_site import SlurmSite, why_not
from tests.runs.conftest import ROOT, quickly, session_directory

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "Slurm runs here"),
    pytest.mark.timeout(600),
]
TEAM = ("--config.trainer.processes=2", "--config.trainer.mesh.fsdp=2")
MODES = {
    "synchronous": ("synchronous", "collective"),
    "one step off-policy": ("one_step_off_policy", "server"),
    "asynchronous": ("asynchronous", "checkpoint"),
    "several explorers": ("multi_explorer", "server"),
}
OVER = ("COMPLETED", "FAILED", "TIMEOUT", "NODE_FAIL", "CANCELLED")
LONG = "--config.trainer.steps=100000"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with SlurmSite(tmp_path_factory.mktemp("slurm") / "site").running() as made:
        yield made


class Job:
    """A rendered job.

    Args:
      site: the cluster.
      folder: directory of the job.
      flags: settings, and flags of `render`.
      limit: SBATCH lines in place of the rendered ones, by option.
    """

    def __init__(self, site: SlurmSite, folder: Path, *flags: str, **limit: str):
        self.site, self.folder = site, folder
        self.workdir = Workdir(folder / "run")
        self.variables = {
            **quickly(session_directory(folder)),
            "PYTHONPATH": str(ROOT),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        command = [sys.executable, "-m", "rl_sync.launcher", "render", "--to=slurm"]
        command += [f"--config={ROOT}/tests/runs/quick.py", f"--config.workdir={self.workdir}"]
        command += ["--config.replay.backend=embedded", f"--out={folder}", "--overwrite", *flags]
        self.rendered = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **self.variables},
            capture_output=True,
            text=True,
            check=False,
        )
        self.file = folder / "tiny.sbatch"
        if self.file.exists():
            text = self.file.read_text()
            for option, value in limit.items():
                text = re.sub(rf"(?m)^#SBATCH --{option}=.*", f"#SBATCH --{option}={value}", text)
            self.file.write_text(text)

    def submit(self, *options: str) -> None:
        assert self.rendered.returncode == 0, self.rendered.stderr
        self.number = self.site.run(
            *("sbatch", "--parsable", *options, str(self.file)),
            variables=self.variables,
            cwd=self.folder,
        ).strip()

    def ended(self, timeout_secs: float = 300.0) -> str:
        state = self.site.wait(self.number, *OVER, timeout_secs=timeout_secs)
        return f"{state}\n{self.log}"

    @property
    def log(self) -> str:
        file = self.folder / f"tiny-{self.number}.log"
        return file.read_text() if file.exists() else ""

    @property
    def digest(self) -> str:
        found = re.findall(r"digest: +(\w+)", self.log)
        return found[-1] if found else ""

    def reaches(self, step: int, timeout_secs: float = 200.0) -> None:
        deadline = time.monotonic() + timeout_secs
        while not (
            self.workdir.metrics.exists()
            and any(one["step"] >= step for one in read_metrics(self.workdir, "rl"))
        ):
            assert time.monotonic() < deadline, f"{self.site.state(self.number)}: {self.log}"
            time.sleep(0.3)

    def says(self, pattern: str, timeout_secs: float = 240.0) -> None:
        deadline = time.monotonic() + timeout_secs
        while not re.search(pattern, self.log):
            assert time.monotonic() < deadline, f"{self.site.state(self.number)}: {self.log}"
            time.sleep(0.5)

    def has_each_step_once(self) -> bool:
        """Says so of a run that has not ended."""
        steps = [line["step"] for line in read_consumed(self.workdir)]
        return steps == list(range(1, len(steps) + 1))

    def audited(self) -> list[str]:
        settings = read_settings(json.loads(self.workdir.config.read_text()))
        return audit(settings, self.workdir)


@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize("team", [False, True], ids=["alone", "team"])
def test_a_job_trains_in_each_mode(site, tmp_path, name, team):
    mode, transfer = MODES[name]
    flags = [f"--config.sync.mode={mode}", f"--config.sync.transfer={transfer}"]
    flags += ["--config.trainer.steps=4"]
    if mode == "multi_explorer":
        flags += ["--config.explorer.count=2"]
    job = Job(site, tmp_path, *flags, *(TEAM if team else ()))
    job.submit()
    assert job.ended().startswith("COMPLETED"), job.log
    assert "RL: 4 steps" in job.log
    assert job.audited() == []
    joined = read_json_lines(job.workdir.hosts)
    assert len({line["host"] for line in joined}) == len(joined), "each has its own node"
    site.wait_idle(4)


def test_a_job_that_is_told_to_end_saves_and_goes_on_when_it_is_submitted_again(site, tmp_path):
    job = Job(site, tmp_path, "--config.sync.mode=one_step_off_policy", LONG)
    job.submit()
    job.reaches(3)
    site.run("scancel", "--batch", "--signal=TERM", job.number)
    assert job.ended().startswith("FAILED"), "with the status of a run that was stopped"
    assert "To go on from trainer step" in job.log
    step = max(one["step"] for one in read_metrics(job.workdir, "rl"))
    again = Job(site, tmp_path, "--config.sync.mode=one_step_off_policy", LONG)
    again.submit()
    again.reaches(step + 2)
    assert f"Goes on from trainer step {step}" in again.log
    site.run("scancel", again.number)
    assert again.ended().startswith("CANCELLED")
    assert "To go on from trainer step" in again.log, "scancel alone gives it time, too"
    assert again.has_each_step_once()
    site.wait_idle(4)


def test_near_its_time_limit_a_job_goes_on_to_the_digest_of_one_that_had_time(site, tmp_path):
    flags = ("--config.sync.mode=one_step_off_policy", "--config.trainer.steps=60")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder in (whole, parts):
        folder.mkdir()
    steady = Job(site, whole, *flags)
    steady.submit()
    assert steady.ended().startswith("COMPLETED"), steady.log
    site.wait_idle(4)
    job = Job(site, parts, *flags)
    job.submit()
    job.reaches(2)
    site.run("scancel", "--batch", "--signal=USR1", job.number)  # As the limit does.
    assert job.ended(timeout_secs=500).startswith("COMPLETED"), job.log
    assert "goes on in the next part of this job" in job.log
    assert re.search(r"Goes on from trainer step \d", job.log)
    assert job.digest == steady.digest
    assert job.audited() == []
    site.wait_idle(4)


def test_slurm_itself_tells_a_job_that_its_time_is_near(site, tmp_path):
    job = Job(site, tmp_path, "--config.sync.mode=one_step_off_policy", LONG, time="3")
    job.submit()
    job.reaches(1)
    job.says("goes on in the next part of this job")
    site.wait(job.number, "PENDING")
    site.run("scontrol", "update", f"jobid={job.number}", "starttime=now")
    job.says(r"Goes on from trainer step \d")
    site.run("scancel", "--batch", "--signal=TERM", job.number)
    job.ended()
    assert job.has_each_step_once()
    site.wait_idle(4)


def test_a_job_has_nodes_of_two_partitions(site, tmp_path):
    flags = ("--trainer-partition=first", "--partition=others")
    mode = ("--config.sync.mode=multi_explorer", "--config.explorer.count=2")
    job = Job(site, tmp_path, *flags, *mode, "--config.trainer.steps=4")
    job.submit()
    assert job.ended().startswith("COMPLETED"), job.log
    assert job.audited() == []
    nodes = {
        name: line["host"]
        for line in read_json_lines(job.workdir.hosts)
        for name in line["processes"]
    }
    assert nodes["trainer"] == "n1"
    assert {nodes["explorer1"], nodes["explorer2"]} <= {"n2", "n3", "n4"}
    site.wait_idle(4)


def test_a_run_goes_on_without_the_node_of_one_of_its_explorers(site, tmp_path):
    flags = ("--config.sync.mode=multi_explorer", "--config.explorer.count=2", LONG)
    quick = ("--config.launch.master_lost_secs=10", "--config.sync.transfer=server")
    job = Job(site, tmp_path, *flags, *quick)
    job.submit()
    job.reaches(3)
    (node,) = [
        line["host"]
        for line in read_json_lines(job.workdir.hosts)
        if "explorer2" in line["processes"]
    ]
    site.lose(node)
    at = max(one["step"] for one in read_metrics(job.workdir, "rl"))
    job.says("explorer2 is lost: ", timeout_secs=60)
    job.reaches(at + 20)
    assert site.state(job.number) == "RUNNING"
    site.start_node(node)
    site.run("scancel", "--batch", "--signal=TERM", job.number)
    job.ended()
    assert job.has_each_step_once()
    site.wait_idle(4)


def test_a_job_that_loses_the_trainers_node_is_requeued_and_goes_on(site, tmp_path):
    """Slurm keeps such a job, without the node and its script, so the other node sends it back."""
    flags = ("--config.sync.mode=one_step_off_policy", "--config.trainer.steps=400")
    flags += ("--config.launch.master_lost_secs=15",)
    job = Job(site, tmp_path, *flags, "--config.checkpoint.every_steps=5")
    quick = job.file.read_text().replace(" join --run", " join --wait=20 --run")
    job.file.write_text(quick)
    job.submit()
    job.reaches(6)
    site.lose("n1")
    deadline = time.monotonic() + 240
    while site.state(job.number) not in ("PENDING", "REQUEUED"):
        assert time.monotonic() < deadline, site.state(job.number)
        time.sleep(0.5)
    site.start_node("n1")
    site.run("scontrol", "update", f"jobid={job.number}", "starttime=now")
    job.says(r"Goes on from trainer step \d")
    job.reaches(12)
    site.run("scancel", "--batch", "--signal=TERM", job.number)
    job.ended()
    assert job.has_each_step_once()
    site.wait_idle(4)


def test_a_job_waits_for_nodes_that_are_taken_or_missing(site, tmp_path):
    site.run("sbatch", "--nodes=4", "--exclusive", "--wrap=sleep 100", "--job-name=other")
    job = Job(site, tmp_path, "--config.sync.mode=asynchronous", "--config.trainer.steps=2")
    job.submit()
    time.sleep(3)
    assert site.state(job.number) == "PENDING"
    site.run("scancel", "--name=other")
    assert job.ended().startswith("COMPLETED"), job.log
    site.wait_idle(4)


def test_slurm_says_what_a_job_lacks(site, tmp_path):
    flags = (
        "--config.sync.mode=multi_explorer",
        "--config.explorer.count=8",
        "--config.trainer.groups_per_step=8",
    )
    job = Job(site, tmp_path, *flags)
    assert job.rendered.returncode == 0
    checked = site.run(
        "sh",
        "-c",
        f"{sys.executable} -m rl_sync.launcher render --to=slurm --check --overwrite"
        f" --config={ROOT}/tests/runs/quick.py --out={tmp_path} {' '.join(flags)} 2>&1; echo $?",
        variables=job.variables,
        cwd=tmp_path,
    )
    assert "Requested node configuration is not available" in checked
    assert checked.strip().endswith("1")
