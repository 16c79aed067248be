"""The secret of a run: only processes that know it may call the run's roles.

It is in a file of the work directory that only its owner can read. So it is not in any command
line, nor in an environment that the run's processes inherit. An engine that starts the launcher and
machines that join gives it to them by an environment variable, which they remove.
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

SECRET = "RL_SYNC_SECRET"
"""Environment variable with the secret, for the launcher and for machines that join."""

_BYTES = 32
_WRITTEN_SECS = 10.0
_POLL_SECS = 0.02


def secret_of(workdir: str | os.PathLike[str]) -> str:
    """Reads the secret of the run in a work directory; creates it if there is none.

    Raises:
      OSError: the directory is not writable, or another process started to write a secret and did
        not finish.
    """
    return secret_in(Workdir(workdir).secret)


def secret_in(path: Path) -> str:
    """Reads the secret in a file; creates it if there is none. Raises the errors of `secret_of`."""
    try:
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return read_secret(path)
    made = given_secret() or secrets.token_hex(_BYTES)
    with os.fdopen(opened, "w") as file:
        file.write(made)
    return made


def given_secret() -> str | None:
    """Returns the secret in the environment, if there is one, and removes it there.

    Raises:
      ValueError: it is too short.
    """
    given = os.environ.pop(SECRET, None)
    if given is not None and len(given) < 2 * _BYTES:
        raise ValueError(
            f"{SECRET} must have at least {2 * _BYTES} characters, and has {len(given)}: make one"
            " with `openssl rand -hex 32`."
        )
    return given


def forget(workdir: str | os.PathLike[str]) -> None:
    """Removes the secret; the next run in the directory creates a new one.

    Raises:
      OSError: it cannot be removed, for example from a read-only file system.
    """
    with contextlib.suppress(FileNotFoundError):
        Workdir(workdir).secret.unlink()


def is_open(workdir: str | os.PathLike[str]) -> bool:
    """Says whether others can read the secret, as on a file system without permissions."""
    return bool(Workdir(workdir).secret.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO))


def key_for_agents(secret: str) -> str:
    """Derives the key for agents from a run's secret, which it does not reveal."""
    return hmac.new(secret.encode(), b"agents", "sha256").hexdigest()


def read_secret(path: Path) -> str:
    """Reads a secret that another process may be writing at this moment.

    Raises:
      OSError: the file cannot be read, or does not contain a secret.
    """
    deadline = time.monotonic() + _WRITTEN_SECS
    while len(found := path.read_text()) < 2 * _BYTES:
        if time.monotonic() > deadline:
            raise OSError(
                f"{path} does not contain a secret of {2 * _BYTES} characters: the process that"
                " started to write it has ended. Remove it, and start again."
            )
        time.sleep(_POLL_SECS)
    return found
