"""The mark of a fault's function: which tests reach it.

`planted_faults.py` copies this module into a copy of the package, where roles import it, too. So it
imports nothing but `os`, and never raises: code may run in a sandbox, or be traced by JAX.
"""

from __future__ import annotations

import os

FOLDER = "PLANTED_FAULTS_REACH"
"""The environment variable that names the folder of what was reached, a file for each fault."""
TEST = "PYTEST_CURRENT_TEST"

# Tests replace some of these, for example to simulate a full disk.
_open, _write, _close = os.open, os.write, os.close
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT
_noted: set[tuple[str, str]] = set()


def note(fault: str) -> None:
    """Adds the current test to the file of a fault, once in each process."""
    try:
        folder, test = os.environ.get(FOLDER), os.environ.get(TEST, "")
        if not folder or (fault, test) in _noted:
            return
        _noted.add((fault, test))
        descriptor = _open(f"{folder}/{fault}", _FLAGS, 0o666)
        try:
            _write(descriptor, f"{test}\n".encode())
        finally:
            _close(descriptor)
    except Exception:  # A process that may not write, or has no such folder, is left out.
        return
