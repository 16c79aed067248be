"""Parts of the commands that serve: the address, the secret, and the wait for the end."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import NamedTuple

from rl_sync.cluster.host_names import check_own
from rl_sync.cluster.secret import secret_in
from rl_sync.settings.records import ConfigError

_LOOPBACK = "127.0.0.1"
_EVERYWHERE = ("0.0.0.0", "::")


class ServingPlace(NamedTuple):
    """The place of a server.

    Attributes:
      host, port: address to listen on; port 0 for any free one.
      path, secret: file of the secret that its runs share, and the secret.
    """

    host: str
    port: int
    path: Path
    secret: str


def serving_place(
    host: str | None, port: int, secret_path: str | None, *, kind: str
) -> ServingPlace:
    """Returns the place of a server, and makes its secret if the file is missing.

    Args:
      host: address on the command line; None for this machine alone.
      secret_path: file of the secret; None if neither the command line nor the config names one.
      kind: `reward` or `teacher`.

    Raises:
      ConfigError: there is no secret, or the address is not this machine's.
    """
    if secret_path is None:
        raise ConfigError(
            f"A {kind} server needs a secret that its runs share: give --secret-path=FILE, which is"
            f" created if it is missing, or --config.{kind}.secret_path=FILE."
        )
    path = Path(secret_path).absolute()
    try:
        secret = secret_in(path)
    except OSError as error:
        raise ConfigError(
            f"The secret {path} cannot be read or made: {error.strerror or error}."
        ) from error
    host = host or _LOOPBACK
    if host not in (_LOOPBACK, *_EVERYWHERE):
        check_own("--host", host)
    return ServingPlace(host, port, path, secret)


def end_asked() -> threading.Event:
    """Returns an event that SIGTERM or Ctrl-C sets."""
    asked = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: asked.set())
    return asked
