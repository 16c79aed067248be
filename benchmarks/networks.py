"""Networks of this machine's processes: plain loopback, or links shaped to a rate.

Each host of a shaped network is a network namespace, and what it sends is held to the rate by a
token bucket. Two hosts are joined by one cable, more of them by a bridge. This takes root, and `ip`
and `tc` of iproute2. `with network(...)` deletes the namespaces, whatever happens in it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import subprocess
from collections.abc import Iterator
from typing import NamedTuple

PLAIN = "plain"
_INTERFACE = "eth0"
_UNITS = {"mbit": 10**6, "gbit": 10**9}
_BURST_SECS = 0.002
_LEAST_BURST = 128 << 10  # Twice the largest packet that Linux hands to an interface.
_QUEUE_SECS = 0.05
_numbers = itertools.count()


class NetworkError(RuntimeError):
    """This machine cannot make the network; the message says why."""


class Host(NamedTuple):
    """A place for processes.

    Attributes:
      address: its address in the network.
      namespace: its network namespace; empty for the machine's own.
    """

    address: str
    namespace: str = ""

    def command(self, *argv: str) -> list[str]:
        """Returns a command that runs here."""
        return ["ip", "netns", "exec", self.namespace, *argv] if self.namespace else [*argv]

    def sent_bytes(self) -> int:
        """Returns the bytes that this host of a shaped network has sent, with all headers."""
        shown = _run("ip", "-n", self.namespace, "-s", "-j", "link", "show", "dev", _INTERFACE)
        return json.loads(shown)[0]["stats64"]["tx"]["bytes"]


@contextlib.contextmanager
def network(rate: str, hosts: int) -> Iterator[list[Host]]:
    """Makes a network of some hosts.

    Args:
      rate: `plain`, or what each host can send, such as `10gbit` or `100mbit`.
      hosts: number of hosts.

    Raises:
      NetworkError: this machine cannot make it.
    """
    if rate == PLAIN:
        yield [Host("127.0.0.1")] * hosts
        return
    if os.geteuid():
        raise NetworkError("network namespaces take root")
    with contextlib.ExitStack() as stack:

        def namespace() -> str:
            name = f"bench{os.getpid()}-{next(_numbers)}"
            _run("ip", "netns", "add", name)
            stack.callback(_run, "ip", "netns", "delete", name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
            return name

        made = [Host(f"10.77.{n // 250}.{1 + n % 250}", namespace()) for n in range(hosts)]
        if hosts == 2:
            _join(made[0].namespace, _INTERFACE, made[1].namespace, _INTERFACE)
        else:
            switch = namespace()
            _run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
            _run("ip", "-n", switch, "link", "set", "bridge", "up")
            for number, host in enumerate(made):
                _join(host.namespace, _INTERFACE, switch, f"port{number}")
                port = ("ip", "-n", switch, "link", "set", f"port{number}")
                _run(*port, "master", "bridge")
                _run(*port, "up")
        for host in made:
            _run("ip", "-n", host.namespace, "addr", "add", f"{host.address}/16", "dev", _INTERFACE)
            _run("ip", "-n", host.namespace, "link", "set", _INTERFACE, "up")
            _shape(host.namespace, rate)
        yield made


def _join(namespace: str, name: str, other: str, other_name: str) -> None:
    ends = ("type", "veth", "peer", "name", other_name, "netns", other)
    _run("ip", "-n", namespace, "link", "add", name, *ends)


def _shape(namespace: str, rate: str) -> None:
    if (parsed := re.fullmatch(r"(\d+)(mbit|gbit)", rate)) is None:
        raise NetworkError(f"{rate} is no rate: write it like 10gbit or 100mbit")
    burst = max(_LEAST_BURST, int(int(parsed[1]) * _UNITS[parsed[2]] / 8 * _BURST_SECS))
    bucket = ("rate", rate, "burst", str(burst), "latency", f"{_QUEUE_SECS}s")
    _run("tc", "-n", namespace, "qdisc", "add", "dev", _INTERFACE, "root", "tbf", *bucket)


def _run(*argv: str) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
    except OSError as error:
        raise NetworkError(f"{argv[0]} cannot be run: {error}") from error
    except subprocess.CalledProcessError as error:
        raise NetworkError(f"{' '.join(argv)}: {error.stderr.strip()}") from error
    return done.stdout
