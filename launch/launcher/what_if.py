"""Reads the flags of `tune` that ask what if: ranges of numbers, the network, other devices."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from rl_sync.settings.records import ConfigError
from rl_sync.simulation.speed.network_link import NetworkLink
from rl_sync.spelling import hint

_BITS = {"kbit/s": 1e3, "Mbit/s": 1e6, "Gbit/s": 1e9, "MB/s": 8e6, "GB/s": 8e9}
_SECS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
APART = "apart"


class OtherDevices(NamedTuple):
    """Devices in place of those of the measured run.

    Attributes:
      trainer, explorer: their speeds, as multiples of the measured ones.
      apart: whether each role has devices of its own, where the measured roles shared cores.
    """

    trainer: float = 1.0
    explorer: float = 1.0
    apart: bool = False


def numbers(flag: str, text: str, least: int) -> list[int]:
    """Reads numbers: `1,2,6`, or `1:64` for 1, 2, 4, …, 64.

    Raises:
      ConfigError: the text has neither form, or a number is too small.
    """
    if match := re.fullmatch(r"(\d+):(\d+)", text):
        first, last = int(match[1]), int(match[2])
        found = [first]
        while found[-1] < last:
            found.append(min(last, max(1, 2 * found[-1])))
        found = found if first <= last else []
    elif re.fullmatch(r"\d+(,\d+)*", text):
        found = sorted({*map(int, text.split(","))})
    else:
        found = []
    if not found or found[0] < least:
        raise ConfigError(
            f"--{flag}={text} must be whole numbers of at least {least}, such as 1,2,6, or a range"
            " such as 1:8 for 1, 2, 4 and 8."
        )
    return found


def names(flag: str, text: str, known: Iterable[str]) -> list[str]:
    """Reads names separated by commas.

    Raises:
      ConfigError: a name is unknown.
    """
    known = [*known]
    found = [name.strip() for name in text.split(",")]
    for name in found:
        if name not in known:
            raise ConfigError(
                f"--{flag}={text}: {name!r} is not one of {', '.join(known)}{hint(name, known)}"
            )
    return found


def network(text: str) -> NetworkLink:
    """Reads a bandwidth and a latency, such as `10Gbit/s,2ms`.

    Raises:
      ConfigError: the text has another form.
    """
    match = re.fullmatch(r"([\d.]+)\s*([kMG]bit/s|[MG]B/s)(?:,\s*([\d.]+)\s*(us|ms|s))?", text)
    try:
        assert match is not None
        bandwidth = float(match[1]) * _BITS[match[2]] / 8
        latency = float(match[3]) * _SECS[match[4]] if match[3] else 0.0
        assert bandwidth > 0
    except (AssertionError, ValueError):
        raise ConfigError(
            f"--network={text} must be a bandwidth above 0, and a latency if it matters: such as"
            f" 10Gbit/s,2ms. Units are {', '.join(_BITS)}, and {', '.join(_SECS)}."
        ) from None
    return NetworkLink(bandwidth, latency)


def devices(text: str) -> OtherDevices:
    """Reads factors of speed, such as `trainer:2,explorer:4,apart`.

    Raises:
      ConfigError: the text has another form.
    """
    found: dict[str, float] = {}
    apart = False
    for part in map(str.strip, text.split(",")):
        match = re.fullmatch(r"(trainer|explorer):(\d+(?:\.\d+)?)", part)
        if part == APART:
            apart = True
        elif match is not None and float(match[2]) > 0:
            found[match[1]] = float(match[2])
        else:
            raise ConfigError(
                f"--devices={text}: {part!r} must be trainer:FACTOR or explorer:FACTOR, with their"
                " speed as a multiple of the measured one, or apart, if each role has devices of"
                " its own."
            )
    return OtherDevices(**found, apart=apart)
