"""The launcher as a child of a Python program: it ends when its standard input closes.

python -m rl_sync.launcher.processes.child --config=…
"""

from __future__ import annotations

import os
import signal
import threading

from rl_sync.launcher.__main__ import run_from_command_line


def _follow_parent() -> None:
    while os.read(0, 1024):  # Not sys.stdin, whose lock would block the interpreter's exit.
        pass
    os.kill(os.getpid(), signal.SIGTERM)  # The run saves, and ends.


if __name__ == "__main__":
    threading.Thread(target=_follow_parent, name="lifeline", daemon=True).start()
    run_from_command_line()
