"""Confined processes: nothing outlives its sandbox, and every limit is told."""

import os
import time

import pytest

from rl_sync.sandbox import sandbox_choice
from rl_sync.sandbox.layer import SandboxError
from rl_sync.sandbox.program_limits import ProgramLimits
from rl_sync.sandbox.sandbox import Sandbox

LIMITS = ProgramLimits(wall_secs=1.5, output_bytes=10_000, processes=8)
KINDS = ["auto", pytest.param("landlock", marks=pytest.mark.nightly)]
STAYS = {
    "a child": "import os, time\nif os.fork() == 0: time.sleep(60)\ntime.sleep(60)",
    "a daemon": """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0: time.sleep(60)
    os._exit(0)
time.sleep(60)
""",
    "a daemon after its end": "import os, time\nif os.fork() == 0: os.setsid(); time.sleep(60)",
    "a fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
}


@pytest.fixture(scope="module", params=KINDS)
def sandbox(request):
    try:
        return Sandbox(sandbox_choice.choose(request.param), LIMITS)
    except SandboxError as error:
        pytest.skip(str(error))


def run(sandbox, program, stdin=b""):
    with sandbox.folder({"main.py": program.encode()}) as folder:
        return sandbox.run(folder, ("script", "main.py"), stdin)


def commands():
    """Returns the command lines of all processes of this machine."""
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                yield file.read().decode(errors="replace")
        except OSError:
            continue


@pytest.mark.parametrize("name", STAYS)
def test_nothing_outlives_its_sandbox(sandbox, name):
    limits = f",{LIMITS.processes + 1},"  # In the command line of this test's processes only.
    own = sandbox.within(ProgramLimits(wall_secs=1.0, processes=LIMITS.processes + 1))
    run(own, STAYS[name])
    deadline = time.monotonic() + 5
    while any(limits in command and "launch.py" in command for command in commands()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_input_and_output_pass_whole(sandbox):
    data = bytes(range(256)) * 39
    program = "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read()); sys.exit(3)"
    result = run(sandbox, program, data)
    assert (result.stdout, result.returncode, result.stopped) == (data, 3, "")


def test_output_is_cut_at_its_limit(sandbox):
    result = run(sandbox, "while True: print('x' * 999)")
    assert (len(result.stdout), result.stopped) == (LIMITS.output_bytes, "output")


def test_input_that_is_not_read_does_not_block(sandbox):
    assert run(sandbox, "print(1)", b"x" * (1 << 20)).stdout == b"1\n"


def test_the_time_limit_stops_a_program(sandbox):
    started = time.monotonic()
    assert run(sandbox, "import time; time.sleep(60)").stopped == "time"
    assert time.monotonic() - started < 12


def test_errors_arrive_without_the_sandboxs_mark(sandbox):
    result = run(sandbox, "import sys; sys.stderr.write('oh')")
    assert result.stderr == b"oh"


def test_limits_must_be_positive():
    with pytest.raises(ValueError, match="processes"):
        ProgramLimits(processes=0)
