"""The secret of a run: only processes that know it may call the run's roles.

It is in a file of the work directory that only its owner can read. So it is in no command line, and
in no environment that child processes inherit.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import stat
import time
from pathlib import Path

from rl_sync.workdir import Workdir

_BYTES = 32
_WRITTEN_SECS = 10.0
_POLL_SECS = 0.02


def secret_of(workdir: str | os.PathLike[str]) -> str:
    """Reads the secret of the run in a work directory; makes one if there is none.

    Raises:
      OSError: the directory cannot be written, or another process began to make a secret and did
        not finish.
    """
    return secret_in(Workdir(workdir).secret)


def secret_in(path: Path) -> str:
    """Reads the secret in a file; makes one if there is no file. Raises what `secret_of` does."""
    try:
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return read_secret(path)
    made = secrets.token_hex(_BYTES)
    with os.fdopen(opened, "w") as file:
        file.write(made)
    return made


def forget(workdir: str | os.PathLike[str]) -> None:
    """Removes the secret; the next run in the directory makes another one."""
    with contextlib.suppress(FileNotFoundError):
        Workdir(workdir).secret.unlink()


def is_open(workdir: str | os.PathLike[str]) -> bool:
    """Says whether others can read the secret, as on a file system without modes."""
    return bool(Workdir(workdir).secret.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO))


def key_for_agents(secret: str) -> str:
    """Returns the key of a run for its agents, which opens none of the run's other doors."""
    return hmac.new(secret.encode(), b"agents", "sha256").hexdigest()


def read_secret(path: Path) -> str:
    """Reads a secret that another process may be writing at this moment.

    Raises:
      OSError: it cannot be read, or holds no secret.
    """
    deadline = time.monotonic() + _WRITTEN_SECS
    while len(found := path.read_text()) < 2 * _BYTES:
        if time.monotonic() > deadline:
            raise OSError(
                f"{path} holds no secret of {2 * _BYTES} characters: whoever began to write it has"
                " ended. Remove it, and start again."
            )
        time.sleep(_POLL_SECS)
    return found
