"""Machines that join a run and share no directory with it, and some that may not.

Another machine is a sandbox of this one, in which the launcher's directories are empty.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rl_sync.checkpoints.audit import audit
from rl_sync.cluster.ports import free_ports
from rl_sync.records.json_lines import read_json_lines
from rl_sync.records.span_reader import read_spans
from rl_sync.settings.config_reading import read_settings
from rl_sync.workdir import Workdir
from tests.runs.conftest import EMBEDDED, ROOT, quickly, session_directory
from tests.runs.living import reached, wait_for

HOST, SECRET = "127.0.0.1", "0123456789abcdef" * 4
PLAY = """
from pathlib import Path

import beside
from rl_sync.environments.interface import Message, Outcome, Turn

WORDS = Path("words/greeting.txt").read_text()


class Adding:
    def reset(self, task, seed):
        self.answer = task["answer"]
        assert task["place"] == "far away"
        return Turn((Message("user", task["prompt"]),))

    def step(self, reply):
        return Outcome({"right": beside.right(reply.text, self.answer)})

    def close(self):
        pass
"""


def has_bwrap() -> bool:
    if shutil.which("bwrap") is None:
        return False
    tried = subprocess.run(["bwrap", "--dev-bind", "/", "/", "true"], check=False)
    return tried.returncode == 0


pytestmark = pytest.mark.skipif(
    not has_bwrap(), reason="bubblewrap, which makes another machine here, does not run"
)


class Place:
    """A user's directory with a config's code and data, a run, and machines that join it."""

    def __init__(self, path: Path):
        self.path, self.workdir = path, Workdir(path / "runs" / "run")
        self.port = free_ports(HOST, 1)[0]
        self.variables = {
            **os.environ,
            **quickly(session_directory(path)),
            "RL_SYNC_SECRET": SECRET,
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(path.parent / f"{path.name}-tmp"),
        }
        Path(self.variables["TMPDIR"]).mkdir()
        self.code = path / "code"
        (self.code / "words").mkdir(parents=True)
        (self.code / "play.py").write_text(PLAY)
        (self.code / "beside.py").write_text(
            "def right(text, answer):\n    return float(text.strip() == answer)\n"
        )
        (self.code / "words" / "greeting.txt").write_text("hello")
        rows = [
            {"prompt": f"{a}+{b}=", "answer": str(a + b), "place": "far away"}
            for a in range(10, 20)
            for b in range(10, 20)
        ]
        (path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def launch(self, *flags: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "rl_sync.launcher", f"--config={ROOT}/tests/runs/quick.py"]
        command += [
            "--config.task.name=jsonl",
            "--config.task.jsonl.path=../rows.jsonl",
            "--config.task.max_completion_tokens=4",
            "--config.environment.name=play.py:Adding",
            "--config.launch.files=words",
            f"--config.workdir={self.workdir}",
            f"--config.launch.host={HOST}",
            f"--config.launch.port={self.port}",
            EMBEDDED,
        ]
        return self.started([*command, *flags], self.code)

    def join(
        self, *names: str, is_other: bool = True, wait_secs: int = 60, **variables: str
    ) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "rl_sync.launcher", "join"]
        command += [
            f"--run={HOST}:{self.port}",
            f"--process={','.join(names)}",
            f"--wait={wait_secs}",
        ]
        if is_other:
            hidden = ["--tmpfs", str(self.path)]
            command = ["bwrap", "--dev-bind", "/", "/", *hidden, "--die-with-parent", *command]
        return self.started(command, ROOT, **variables)

    def started(self, command, cwd, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**self.variables, **variables},
            start_new_session=True,
        )

    @property
    def kept(self) -> list[Path]:
        """Files of runs that machines have kept."""
        folder = Path(self.variables["TMPDIR"], f"rl_sync-{os.getuid()}")
        return [path for path in folder.rglob("*") if path.is_file()]


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(tmp_path / "here")


@contextlib.contextmanager
def ended(*processes: subprocess.Popen[str]) -> Iterator[None]:
    try:
        yield
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.gate
def test_a_machine_that_shares_nothing_plays_and_may_die(place):
    run = place.launch(
        "--config.sync.mode=asynchronous",
        "--config.sync.transfer=server",
        "--config.trainer.steps=12",
        "--config.launch.hosts=explorer1=join",
        "--config.launch.master_lost_secs=4",
    )
    first = place.join("explorer1")
    with ended(run, first):
        wait_for(lambda: reached(place.workdir, "rl"), run)
        os.killpg(first.pid, signal.SIGKILL)
        second = place.join("explorer1")
        with ended(second):
            output, _ = run.communicate(timeout=240)
            assert run.returncode == 0, output
            told, _ = second.communicate(timeout=60)
            assert second.returncode == 0, told
    assert "explorer1 is lost: " in output
    assert "It is started again (1 of 3 times an hour)" in output
    settings = read_settings(json.loads(place.workdir.config.read_text()))
    assert audit(settings, place.workdir) == []
    joined = read_json_lines(place.workdir.hosts)
    assert [line["processes"] for line in joined] == [["explorer1"]] * 2
    spans = [span for span in read_spans(place.workdir) if span.role == "explorer1"]
    assert len({span.step for span in spans if span.kind == "rollout"}) >= 4
    assert len({(span.kind, span.start_secs) for span in spans}) == len(spans), "none came twice"
    assert place.workdir.log("explorer1").exists()
    # The first kept what it had not sent, and the second, in the same directory, has sent it.
    assert place.kept == []


@pytest.mark.nightly
def test_a_program_of_two_machines_gives_the_bits_of_one(place):
    """The explorer's two processes are on two machines, which form a cluster of their own."""
    flags = (
        "--config.sync.mode=one_step_off_policy",
        "--config.sync.transfer=server",
        "--config.trainer.steps=4",
        "--config.explorer.mesh.data=2",
        "--config.explorer.processes=2",
    )
    digests = []
    for hosts in ("", "explorer1=join,explorer1/1=join"):
        run = place.launch(*flags, f"--config.launch.hosts={hosts}")
        machines = [place.join(name) for name in ("explorer1", "explorer1/1") if hosts]
        with ended(run, *machines):
            output, _ = run.communicate(timeout=240)
            assert run.returncode == 0, output
        digests += [line for line in output.splitlines() if line.startswith("digest:")]
        shutil.rmtree(place.workdir)
    assert len(digests) == 2
    assert digests[0] == digests[1]


@pytest.mark.gate
def test_a_machine_with_another_secret_is_refused(place):
    run = place.launch("--config.sync.mode=asynchronous", "--config.launch.hosts=explorer1=join")
    other = place.join("explorer1", RL_SYNC_SECRET="f" * 64)
    with ended(run, other):
        told, _ = other.communicate(timeout=60)
        assert other.returncode == 1
        assert "belongs to another run: its secret is another than this process has" in told
        assert "Traceback" not in told


def test_a_machine_says_for_whom_it_waits_and_gives_up(place):
    since = time.monotonic()
    alone = place.join("explorer1", is_other=False, wait_secs=3)
    told, _ = alone.communicate(timeout=60)
    assert alone.returncode == 1
    assert f"No launcher has answered at {HOST}:{place.port} for 3 s" in told
    assert time.monotonic() - since < 30


def test_a_machine_without_the_secret_is_told_how_to_give_it(place):
    alone = place.join("explorer1", is_other=False, RL_SYNC_SECRET="")
    told, _ = alone.communicate(timeout=60)
    assert alone.returncode == 2
    assert "RL_SYNC_SECRET must have at least 64 characters, and has 0" in told


@pytest.mark.gate
def test_a_run_without_a_machine_that_it_awaits_ends_with_the_reason(place):
    run = place.launch(
        "--config.sync.mode=asynchronous",
        "--config.sync.transfer=server",
        "--config.launch.hosts=explorer1=join",
        "--config.launch.start_secs=15",
    )
    with ended(run):
        output, _ = run.communicate(timeout=120)
    assert run.returncode == 1, output
    assert "explorer1 was not started: no machine has joined as explorer1 after 15 s" in output


@pytest.mark.gate
def test_a_run_that_awaits_machines_needs_their_secret(place):
    place.variables.pop("RL_SYNC_SECRET")
    run = place.launch("--config.sync.mode=asynchronous", "--config.launch.hosts=explorer1=join")
    with ended(run):
        output, _ = run.communicate(timeout=60)
    assert run.returncode == 2, output
    assert "machines that join need the run's secret" in output
    assert "openssl rand -hex 32" in output


@pytest.mark.nightly
def test_a_machine_joins_again_when_the_launcher_was_killed_and_the_run_is_resumed(place):
    flags = ("--config.sync.mode=asynchronous", "--config.sync.transfer=server")
    more = ("--config.trainer.steps=30", "--config.launch.hosts=explorer1=join")
    run, machine = place.launch(*flags, *more), place.join("explorer1")
    with ended(run, machine):
        wait_for(lambda: reached(place.workdir, "rl"), run)
        run.kill()
        resume = [sys.executable, "-m", "rl_sync.launcher", "resume", f"--workdir={place.workdir}"]
        resumed = place.started(resume, place.code)
        with ended(resumed):
            output, _ = resumed.communicate(timeout=240)
            assert resumed.returncode == 0, output
            told, _ = machine.communicate(timeout=60)
    assert machine.returncode == 0, told
    assert "The launcher was started again, and does not know it." in told
    settings = read_settings(json.loads(place.workdir.config.read_text()))
    assert audit(settings, place.workdir) == []
    joined = read_json_lines(place.workdir.hosts)
    assert len(joined) == 2
    assert len({line["run"] for line in joined}) == 1
    assert place.kept == []
