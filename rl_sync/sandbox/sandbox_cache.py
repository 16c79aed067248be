"""The folder for cached facts about this machine that are slow to find."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path


def cache_folder() -> Path:
    """Returns a folder that only this user can write into, if possible the same one each time.

    A user who could write there would decide how programs are confined. Others can guess and take
    the folder's usual name; then it gets a random name, and later processes find it.

    Raises:
      OSError: no folder can be made.
    """
    place, name = Path(tempfile.gettempdir()), f"rl_sync-sandbox-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        os.mkdir(place / name, 0o700)
    for folder in sorted(place.glob(f"{name}*")):
        if _is_ours_alone(folder):
            return folder
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=place))


def _is_ours_alone(folder: Path) -> bool:
    """Says whether a path is a folder (not a link) that only this user can write into."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    is_ours = status.st_uid == os.getuid() and not status.st_mode & 0o022
    return is_ours and stat.S_ISDIR(status.st_mode)
