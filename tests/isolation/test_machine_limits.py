"""Limits of the machine: which are too low for a run, and the way out of those that it meets."""

import errno
import os
import resource
import subprocess
import sys

import pytest

from rl_sync.isolation import machine_limits
from rl_sync.isolation.machine_limits import (
    LEAST_ADDRESS_BYTES,
    LEAST_OPEN_FILES,
    address_hint,
    allow_open_files,
    check_limits,
    limit_met,
    way_out,
)

NONE = resource.RLIM_INFINITY


@pytest.fixture
def limits(monkeypatch):
    """Limits of this process, as far as the module sees and changes them."""
    found = {resource.RLIMIT_NOFILE: (4096, 4096), resource.RLIMIT_AS: (NONE, NONE)}
    monkeypatch.setattr(machine_limits.resource, "getrlimit", found.__getitem__)
    monkeypatch.setattr(machine_limits.resource, "setrlimit", found.__setitem__)
    return found


@pytest.mark.parametrize(
    ("soft", "hard", "raised"),
    [
        (64, 64, 64),
        (64, 1000, 1000),
        (1024, 1 << 20, 1 << 16),
        (1024, NONE, 1 << 16),
        (NONE, NONE, NONE),
        (1 << 17, 1 << 20, 1 << 17),
    ],
)
def test_the_limit_of_open_files_is_raised_as_far_as_it_may(limits, soft, hard, raised):
    limits[resource.RLIMIT_NOFILE] = soft, hard
    allow_open_files()
    assert limits[resource.RLIMIT_NOFILE] == (raised, hard)


def test_limits_that_leave_room_are_accepted(limits):
    check_limits()
    limits[resource.RLIMIT_NOFILE] = LEAST_OPEN_FILES, LEAST_OPEN_FILES
    limits[resource.RLIMIT_AS] = LEAST_ADDRESS_BYTES, NONE
    check_limits()


@pytest.mark.parametrize(
    ("of", "value", "said"),
    [
        (resource.RLIMIT_NOFILE, 64, "256 files, and the limit here is 64: raise it, as with ulim"),
        (
            resource.RLIMIT_AS,
            1 << 30,
            "2,048 MiB of address space, and the limit here is 1,024",
        ),
    ],
)
def test_limits_that_are_too_low_are_refused_with_the_way_out(limits, of, value, said):
    limits[of] = value, value
    with pytest.raises(ValueError, match=said):
        check_limits()


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSPC, "a/file: No space left on device. Make room, and run it again."),
        (errno.EROFS, "a/file: Read-only file system. Make the file system writable, and run it"),
        (errno.EMFILE, "files, which is 4096, as with ulimit -n 4096, and run it again."),
    ],
)
def test_an_error_is_told_with_the_limit_and_the_way_out(limits, number, said):
    error = OSError(number, os.strerror(number), "a/file")
    assert said in limit_met(error)


def test_a_lack_of_memory_is_told_with_the_limit_if_there_is_one(limits):
    assert limit_met(MemoryError()) == "There is no more memory for this process. Free some."
    assert address_hint() == ""
    limits[resource.RLIMIT_AS] = 3 << 30, NONE
    assert "limited to 3,072 MiB here: raise it" in limit_met(OSError(errno.ENOMEM, "no memory"))


def test_other_errors_are_no_limits():
    assert limit_met(ValueError("no")) is None
    assert limit_met(FileNotFoundError(errno.ENOENT, "missing", "a")) is None
    assert way_out(PermissionError(errno.EACCES, "denied")) is None


NOT_RAISED = """
import logging
from rl_sync.isolation.machine_limits import end_when_exhausted
logging.basicConfig()
end_when_exhausted()
class Fails:
    def __del__(self):
        raise MemoryError
Fails()
print("goes on")
"""


def test_a_lack_of_memory_that_nobody_can_catch_ends_the_process():
    command = [sys.executable, "-c", NOT_RAISED]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "There is no more memory." in done.stderr


EXHAUSTED = """
import logging, threading, time
from rl_sync.isolation.machine_limits import end_when_exhausted
logging.basicConfig()
end_when_exhausted()
def work():
    raise {error}
thread = threading.Thread(target=work)
thread.start()
thread.join()
print("goes on")
"""


@pytest.mark.parametrize(
    ("error", "status"),
    [("MemoryError", 1), ('RuntimeError("can\'t start new thread")', 1), ("KeyError", 0)],
)
def test_a_process_whose_threads_get_nothing_more_ends_itself(error, status):
    code = EXHAUSTED.format(error=error)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert ("This process ends." in done.stderr) == bool(status)
    assert ("goes on" in done.stdout) != bool(status)
