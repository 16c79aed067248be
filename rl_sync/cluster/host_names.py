"""Resolves host names within a deadline."""

from __future__ import annotations

import queue
import socket
import threading

from rl_sync.settings.records import ConfigError

_LOOK_UP_SECS = 10.0


def check_own(setting: str, host: str, timeout_secs: float = _LOOK_UP_SECS) -> None:
    """Checks that a name or an address belongs to this machine.

    Args:
      setting: name of the setting that gave the host, for the message.

    Raises:
      ConfigError: the host is another machine, or was not resolved within the deadline.
    """
    address = look_up(setting, host, timeout_secs)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as probe:
        try:
            probe.bind((address, 0))
        except OSError as error:
            raise ConfigError(
                f"{setting}={host} must be an address of this machine, as others reach it: {error}."
            ) from error


def look_up(setting: str, host: str, timeout_secs: float = _LOOK_UP_SECS) -> str:
    """Resolves a host to its address.

    Args:
      setting: name of the setting that gave the host, for the message.

    Raises:
      ConfigError: the host has no address, or was not resolved within the deadline.
    """
    answers: queue.Queue[str | OSError] = queue.Queue()

    def ask() -> None:
        try:
            answers.put(str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0]))
        except (OSError, UnicodeError) as error:  # UnicodeError: a label has over 63 letters.
            answers.put(OSError(str(error)))

    # A look-up cannot be interrupted, so it runs in a thread, which may be left behind.
    threading.Thread(target=ask, name="look-up", daemon=True).start()
    try:
        answer = answers.get(timeout=timeout_secs)
    except queue.Empty:
        answer = TimeoutError(f"no name server answered within {timeout_secs:g} s")
    if isinstance(answer, OSError):
        raise ConfigError(
            f"{setting}={host} cannot be looked up: {answer}. Give an address, such as 10.0.0.1, or"
            " a name that this machine knows."
        )
    return answer
