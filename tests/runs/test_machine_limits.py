"""Runs that meet a limit of the machine: a clear line, nothing torn, and a way to go on.

Some need to mount file systems, and are skipped where that is not allowed.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rl_sync.records.metrics import read_metrics
from rl_sync.workdir import Workdir
from tests.runs.conftest import (
    EMBEDDED,
    ROOT,
    RunRecord,
    launch,
    quickly,
    session_directory,
)
from tests.runs.living import TIMEOUT_SECS, ended, processes_of, wait_for

STEPS = 60
EXACT = (EMBEDDED, "--config.sync.mode=synchronous", f"--config.trainer.steps={STEPS}")
_LOOP_BYTES = 64 << 20


def mounted(*options: str, at: Path) -> contextlib.AbstractContextManager[None]:
    """Mounts a file system while the context is entered; skips the test if that is impossible."""

    @contextlib.contextmanager
    def mount() -> Iterator[None]:
        at.mkdir(exist_ok=True)
        command = ["mount", *options, str(at)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"{command} does not work here: {error}")
        try:
            yield
        finally:
            subprocess.run(["umount", "--lazy", str(at)], check=False)

    return mount()


def tmpfs(at: Path, size: str = "8m") -> contextlib.AbstractContextManager[None]:
    return mounted("-t", "tmpfs", "-o", f"size={size}", "tmpfs", at=at)


def remount(at: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(at)], check=True)


def fill(path: Path) -> None:
    """Writes a file that leaves no room."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    assert shutil.disk_usage(path).free == 0


def begun(workdir: Path, *flags: str, steps: int = 12) -> subprocess.Popen[str]:
    """Starts a run, and waits until it has made some trainer steps."""
    process = launch(*EXACT, *flags, workdir=workdir)
    wait_for(lambda: reached(workdir, steps), process)
    return process


def reached(workdir: Path, steps: int) -> bool:
    return Workdir(workdir).metrics.exists() and len(read_metrics(workdir, "rl")) >= steps


def resumed(workdir: Path, tmp_path: Path) -> RunRecord:
    """Goes on with a run, which must end well."""
    command = [sys.executable, "-m", "launcher", "resume", f"--workdir={workdir}"]
    environment = {**os.environ, **quickly(session_directory(tmp_path))}
    result = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_SECS,
        check=False,
    )
    assert result.returncode == 0, result.stdout
    assert "Goes on from trainer step" in result.stdout
    return RunRecord(Workdir(workdir), result.stdout)


def assert_it_ended_with_one_line(
    process: subprocess.Popen[str], workdir: Path, *said: str
) -> None:
    """The reason comes first, no stack is shown, and no process is left."""
    output = ended(process)
    assert process.returncode == 1, output
    failure = output[output.index("The run failed: ") :]
    first = failure.splitlines()[0]
    assert all(one in first for one in said), first
    assert f"workdir={workdir}" in failure
    assert "Traceback" not in output
    assert "  | " not in failure, "the log is quoted"
    assert processes_of(workdir) == {}


def assert_as_undisturbed(run: RunRecord, runs) -> None:
    assert run.digest == runs.get(*EXACT).digest
    assert [line["step"] for line in run.consumed] == [*range(1, STEPS + 1)]
    steps = [line["step"] for line in read_metrics(run.workdir, "rl")]
    assert steps == sorted({*steps})
    assert steps[-1] == STEPS


def in_shared_memory() -> set[str]:
    """Lists shared memory, without the runs of other tests; see `memory_runs`."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("tests-")}


@pytest.mark.nightly
def test_a_disk_that_fills_up_ends_the_run_which_goes_on_once_there_is_room(runs, tmp_path):
    shared = in_shared_memory()
    with tmpfs(disk := tmp_path / "disk"):
        workdir = disk / "run"
        process = begun(workdir)
        fill(disk / "filler")
        said = ("cannot be written: No space left on device", "make room, and run it again")
        assert_it_ended_with_one_line(process, workdir, *said)
        assert not list(workdir.glob("*.tmp"))
        (disk / "filler").unlink()
        assert_as_undisturbed(resumed(workdir, tmp_path), runs)
    assert in_shared_memory() <= shared


@pytest.mark.nightly
def test_a_disk_that_is_too_small_is_told_and_a_larger_one_is_enough(runs, tmp_path):
    """The first snapshot does not fit, and the log of batches leads from the start."""
    with tmpfs(disk := tmp_path / "disk", size="600k"):
        workdir = disk / "run"
        process = launch(*EXACT, workdir=workdir)
        output = ended(process)
        assert process.returncode == 1
        assert "No space left on device" in output
        assert "Traceback" not in output
        assert processes_of(workdir) == {}
        remount(disk, "size=16m")
        assert resumed(workdir, tmp_path).digest == runs.get(*EXACT).digest


@pytest.mark.nightly
def test_a_disk_that_turns_read_only_ends_the_run_which_goes_on_later(runs, tmp_path):
    """As ext4 does after an error of the device, while files are open."""
    image, disk = tmp_path / "image", tmp_path / "disk"
    image.write_bytes(b"")
    os.truncate(image, _LOOP_BYTES)
    if shutil.which("mkfs.ext4") is None or shutil.which("e2fsck") is None:
        pytest.skip("there is no ext4 here")
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    workdir = disk / "run"
    with mounted("-o", "loop", str(image), at=disk):
        process = begun(workdir)
        remount(disk, "abort")
        # It depends on the moment whether writing is an "Input/output error" or refused.
        said = ("cannot be written: ", "make the file")
        assert_it_ended_with_one_line(process, workdir, *said)
        subprocess.run(["umount", str(disk)], check=True)
        subprocess.run(["e2fsck", "-fy", str(image)], check=False, capture_output=True)
        with mounted("-o", "loop", str(image), at=disk):
            run = resumed(workdir, tmp_path)
            assert run.digest == runs.get(*EXACT).digest
            # Records on which nothing depends have lost what the disk had not taken yet.
            steps = [line["step"] for line in read_metrics(workdir, "rl")]
            assert steps == sorted({*steps})
            assert steps[-1] == STEPS


@pytest.mark.nightly
def test_a_directory_that_is_read_only_is_refused(tmp_path):
    with tmpfs(disk := tmp_path / "disk"):
        workdir = disk / "run"
        workdir.mkdir()
        remount(disk, "ro")
        process = launch(*EXACT, workdir=workdir)
        output = ended(process)
        assert process.returncode == 2
        assert output == (
            f"error: The work directory {workdir} cannot be written: Read-only file system. Give"
            " another --config.workdir, where you may write.\n"
        )
        assert list(workdir.iterdir()) == []


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("limit", "value", "said"),
    [
        (resource.RLIMIT_NOFILE, 64, "256 files, and the limit here is 64: raise it"),
        (resource.RLIMIT_AS, 3 << 29, "2,048 MiB of address space, and the limit here is 1,536"),
    ],
)
def test_a_launcher_with_too_low_a_limit_refuses_the_run(tmp_path, limit, value, said):
    workdir = tmp_path / "run"
    process = launch(
        *EXACT,
        workdir=workdir,
        forks=False,
        preexec_fn=lambda: resource.setrlimit(limit, (value, value)),
    )
    output = ended(process)
    assert process.returncode == 2, output
    assert output.startswith("error: Each process of a run ")
    assert said in output
    assert len(output.splitlines()) == 1
    assert not workdir.exists()


@pytest.mark.nightly
@pytest.mark.parametrize("role", ["trainer", "master"])
def test_a_role_that_gets_no_more_memory_is_started_again(runs, tmp_path, role):
    """The new process has the launcher's limits.

    One whose threads die before they are known to run hangs, and is killed for its silence.
    """
    workdir = tmp_path / "run"
    process = begun(workdir, "--config.launch.wait_secs=45")
    resource.prlimit(processes_of(workdir)[role], resource.RLIMIT_AS, (1 << 28, 1 << 28))
    output = ended(process)
    assert process.returncode == 0, output
    assert "Traceback" not in output
    assert f"{role} " in output[: output.index("It is started again (1 of 3 times an hour)")]
    assert read_metrics(workdir, "rl")[-1]["run/failures"] >= 1
    assert_as_undisturbed(RunRecord(Workdir(workdir), output), runs)
