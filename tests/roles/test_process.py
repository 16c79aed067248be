"""The end of a role's process."""

from __future__ import annotations

import subprocess
import sys

ENDING = """
import atexit, os, sys, threading
from rl_sync.roles import process as role

atexit.register(os.abort)
threading.Thread(target=threading.Event().wait).start()
print("saved")
role.leave(int(sys.argv[1]))
"""


def test_a_role_that_is_done_takes_down_no_interpreter_and_waits_for_no_thread():
    for status in (0, 1):
        command = [sys.executable, "-c", ENDING, str(status)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert ended.returncode == status, ended.stderr
        assert ended.stdout == "saved\n"


LOGGING = """
import logging
from absl import logging as absl_logging
from rl_sync.roles import process as role

role.log_to_stderr()
logging.getLogger("rl_sync").info("ours")
absl_logging.info("of a file that was written")
absl_logging.warning("of a file that is lost")
"""


def test_a_roles_log_has_what_libraries_warn_of_and_not_all_that_they_do():
    command = [sys.executable, "-c", LOGGING]
    logged = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stderr
    assert [line.rpartition(" ")[2] for line in logged.splitlines()] == ["ours", "lost"]
    assert "WARNING" in logged
