"""Runs a command under Landlock. It is started as a script, by `landlock.py`, for each program."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys

_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_CHILD_SUBREAPER = 1, 24, 36
_CAPABILITIES = 41
_VERSION_3 = 0x20080522


def main() -> None:
    """Runs the command that the first argument describes, and exits as it does."""
    order = json.loads(sys.argv[1])
    parent = os.getppid()
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The program's processes, daemons too, stay descendants of this process, so they can be killed.
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    if os.getppid() != parent:
        sys.exit("the process that asked for the program has ended")
    import sandlock

    drop_capabilities(libc)
    # Each program gets a copy of this folder, which is as small as `disk` and discarded at its end.
    folder = order["scratch"]
    sandbox = sandlock.Sandbox(
        fs_readable=[path for path in order["readable"] if os.path.exists(path)],
        fs_writable=[folder, "/dev/null"],
        max_memory=order["memory"],
        max_processes=order["processes"],
        max_disk=order["disk"],
        workdir=folder,
        cwd=folder,
        on_exit=sandlock.BranchAction.ABORT,
        clean_env=True,
        env={**order["environment"], "HOME": folder, "TMPDIR": folder},
    )
    code = sandbox.run_interactive(order["command"])
    os._exit(code if code >= 0 else 128 - code)


def drop_capabilities(libc: ctypes.CDLL) -> None:
    """Drops the rights of root for good: Landlock alone leaves some of them."""
    for capability in range(_CAPABILITIES):
        libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    libc.capset(header, (ctypes.c_uint32 * 6)())


if __name__ == "__main__":
    main()
