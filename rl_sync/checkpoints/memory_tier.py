"""The folder of a run's snapshots in memory, which outlive the trainer's process.

Its name is drawn, and a file in the work directory has it. So the snapshots of another run, or of
an earlier attempt at this one, are never taken for those of this run.
"""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

from rl_sync.cluster.user_errors import RunEndedError
from rl_sync.workdir import Workdir


def memory_folder(workdir: Workdir, root: str | os.PathLike[str]) -> Path:
    """Returns the folder, which may not exist yet; draws its name if the run has none.

    Args:
      root: folder in memory that has it.

    Raises:
      RunEndedError: this machine has no such folder. A typing error would fill the disk.
      OSError: the work directory cannot be written.
    """
    if not Path(root).is_dir():
        raise RunEndedError(
            f"checkpoint.memory_directory={root} is no folder of the trainer's machine: make it, or"
            " name one that is there, such as /dev/shm."
        )
    known = _known(workdir)
    if known is not None and known.parent == Path(root):
        return known
    remove_memory_folder(workdir)
    drawn = Path(root) / f"rl_sync-{secrets.token_hex(8)}"
    workdir.memory.write_text(f"{drawn}\n")
    return drawn


def remove_memory_folder(workdir: Workdir) -> None:
    """Removes the folder, if this machine has it."""
    known = _known(workdir)
    if known is not None:
        shutil.rmtree(known, ignore_errors=True)
        workdir.memory.unlink(missing_ok=True)


def _known(workdir: Workdir) -> Path | None:
    try:
        path = Path(workdir.memory.read_text().strip())
    except OSError:
        return None
    return path if path.name.startswith("rl_sync-") and path.is_absolute() else None
