"""How a role's process ends."""

from __future__ import annotations

import subprocess
import sys

ENDING = """
import atexit, os, sys, threading
from rl_sync.runtime import role

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
