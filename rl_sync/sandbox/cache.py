"""The folder of facts on this machine that take time to find."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path


def cache_folder() -> Path:
    """Returns a folder that only this user can write into, the same one in each process.

    Another user who could write there would decide how programs are confined.

    Raises:
      PermissionError: somebody else made the folder first.
    """
    folder = Path(tempfile.gettempdir(), f"rl_sync-sandbox-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022 or not stat.S_ISDIR(status.st_mode):
        raise PermissionError(
            f"{folder} must be a folder that only this user can write into. Remove it, or set "
            "TMPDIR to another place."
        )
    return folder
