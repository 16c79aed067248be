"""Resolves host names within a deadline, and finds addresses of this machine."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Iterable

import psutil

from rl_sync.addresses import address_of, interface_towards
from rl_sync.settings.records import ConfigError

_LOOK_UP_SECS = 10.0
_ANYWHERE = ("192.0.2.1", "2001:db8::1")
"""Addresses that exist nowhere, by which the default route is found."""

AUTO = "auto"
OWN_ADDRESS = "RL_SYNC_OWN_ADDRESS"
"""Environment variable of processes on machines that have joined: the machine's address."""


def own_address(setting: str, host: str, others: Iterable[str] = ()) -> str:
    """Returns an address of this machine, as other machines reach it.

    Args:
      setting: name of the setting that gave the host, for the message.
      host: an address or a name of this machine, the name of a network interface, or `auto` for the
        interface towards the first of the others that is known, else that of the default route.
      others: addresses or names of other machines.

    Raises:
      ConfigError: the host is not this machine, or no interface leads anywhere.
    """
    if host == AUTO:
        for other in (*others, *_ANYWHERE):
            try:
                return interface_towards(address_of(other, 9))
            except OSError:  # It is unknown, or no route leads there.
                continue
        raise ConfigError(
            f"{setting}=auto finds no address of this machine, as it has no route to other"
            " machines: give an address."
        )
    if (of_interface := psutil.net_if_addrs().get(host)) is not None:
        families = {one.family: one.address for one in reversed(of_interface)}
        for family in (socket.AF_INET, socket.AF_INET6):
            if family in families and not families[family].startswith("fe80:"):
                return families[family]
        raise ConfigError(f"{setting}={host}: this network interface has no address.")
    check_own(setting, host)
    return host


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
