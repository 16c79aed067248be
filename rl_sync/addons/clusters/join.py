"""`join`: runs processes of a run that was started on another machine."""

from __future__ import annotations

import ipaddress
import os
import signal
import sys
import threading
from types import FrameType

from rl_sync.addons.clusters.hosts.host_site import JoinError
from rl_sync.addons.clusters.hosts.joined_host import JoinedHost
from rl_sync.cluster.host_names import AUTO, look_up, own_address
from rl_sync.cluster.secret import SECRET, given_secret
from rl_sync.launcher.command import Arguments
from rl_sync.settings.records import ConfigError

_WAIT_SECS = 600


def execute(arguments: Arguments) -> int:
    """Takes part in a run until it ends; returns the run's exit status.

    Raises:
      ConfigError: a value is not valid, or the secret is missing.
    """
    flags = arguments.flags
    run = str(flags["run"])
    host, _, port = run.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ConfigError(f"--run={run} must be HOST:PORT, as the launcher prints it.")
    names = [name.strip() for name in str(flags["process"]).split(",") if name.strip()]
    if not names:
        raise ConfigError("--process= names no process: give one, such as explorer1.")
    is_child = bool(flags.get("lifeline"))
    secret = _secret(is_child)
    given = flags.get("host", AUTO)
    address = _address_there(given, host) if is_child else own_address("--host", given, [host])
    joined = JoinedHost(run, secret, names, address, float(flags.get("wait", _WAIT_SECS)))

    def leave(number: int, frame: FrameType | None) -> None:
        del frame
        joined.end(f"it was asked to end ({signal.Signals(number).name})")

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, leave)
    if is_child:
        threading.Thread(target=_follow, args=[joined], name="lifeline", daemon=True).start()
    try:
        return joined.run()
    except JoinError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.status


def _address_there(given: str, launcher: str) -> str:
    """Returns the address that the launcher has for this machine, if others can reach it there.

    A machine's name may mean its loopback interface on the machine itself, and a remote shell may
    have names of its own.
    """
    try:
        address = own_address("--host", given)
        is_loopback = ipaddress.ip_address(look_up("--host", address)).is_loopback
    except ConfigError:
        is_loopback = True
    if is_loopback and not launcher.startswith("127."):
        return own_address("--host", AUTO, [launcher])
    return given


def _secret(is_told: bool) -> str:
    """Returns the secret, from the first line of standard input or from the environment."""
    if is_told:
        told = bytearray()
        while (byte := os.read(0, 1)) not in (b"", b"\n"):
            told += byte
        return told.decode()
    try:
        given = given_secret()
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if given is None:
        raise ConfigError(
            f"join needs the run's secret in the environment variable {SECRET}: give the launcher"
            f" and all machines the same, as by `export {SECRET}=$(openssl rand -hex 32)`."
        )
    return given


def _follow(joined: JoinedHost) -> None:
    while os.read(0, 1024):
        pass
    joined.end("the launcher's shell to it has ended")
