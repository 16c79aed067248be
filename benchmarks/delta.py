"""Transfers of what changed beside transfers of whole versions, on slow and fast networks.

    python benchmarks/delta.py [--megabytes=500] [--shares=0.1,1,3,10,30,100]
                               [--patterns=clustered,scattered] [--leaves=25] [--rounds=3]
                               [--networks=plain,10gbit,1gbit,100mbit]
    python benchmarks/delta.py --relays=1,4,16 --megabytes=16 --networks=1gbit,100mbit

Trainer and explorer are processes on this machine's CPU, with random weights in bfloat16. `plain`
is loopback. The other networks are rates of what each process sends: their processes are in network
namespaces of their own (`benchmarks/networks.py`), which takes root and iproute2. A network that
cannot be made is left out, with a line that says why.

The first form measures server transfers with differences (`delta`) and without them (`dense`), in
turns. In each round, a share of the values, in per cent, moves by one unit in the last place: each
by itself (`scattered`), or in runs of 1024 (`clustered`). Seconds count from the call of `publish`
until `pull` has returned in the explorer, with the digest checked. *ratio* is dense / delta of the
same round. *bytes* is what travels, in % of the weights' size. *cut* is the time until the trainer
has the digest and a copy of the weights, and *encode* that of its encoding after that. *fetch* and
*apply* are the explorer's transfer and what follows it. *blocks* is the time of `publish`. *memory*
is the largest growth of a process in a round, its first weights included, in multiples of the
weights' size.

With `--relays`, receivers fetch a full copy at once, with 1 or 2 receivers that each process
serves (`fanout`), and without relays: all from the trainer. A receiver checks the check sum of each
block, but builds no parameters. Seconds count until the last one has all blocks. *to one* divides
them by the median of one receiver. *sent* is what the trainer's interface has sent, in multiples of
the weights' size.

Figures are least / median / greatest of the rounds; the first round of each row does not count.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from delta_role import RUN_BITS, Place
from networks import PLAIN, Host, NetworkError, network
from weights import Process

from rl_sync.weights.deltas.relay_tree import RelayTree

ROLE = Path(__file__).with_name("delta_role.py")
DELTA, DENSE = "delta", "dense"
FANOUTS = (1, 2, 0)
RELAYED_SHARE = 0.02

Rows = list[dict[str, float]]


class Size(NamedTuple):
    """Size of the weights, and number of arrays."""

    megabytes: int
    leaves: int


class Started(NamedTuple):
    """A process, and the address at which others reach it."""

    process: Process
    address: str

    def ask(self, *request: Any) -> None:
        self.process.ask(request)

    def answer(self) -> dict[str, Any]:
        return self.process.answer()


@contextlib.contextmanager
def started(places: Sequence[tuple[Place, Host]], directory: Path) -> Iterator[list[Started]]:
    """Starts processes at once, waits until they are ready, and ends them afterwards."""
    with contextlib.ExitStack() as stack:
        processes = []
        for place, host in places:
            command = host.command(sys.executable, str(ROLE), json.dumps(place))
            processes.append(Process(command, directory / f"{place.transfer}-{place.name}"))
            stack.callback(processes[-1].end)
        yield [Started(process, str(process.answer())) for process in processes]


class Pair:
    """A trainer and an explorer, which transfer one version after the other."""

    def __init__(self, trainer: Started, explorer: Started):
        self._trainer, self._explorer = trainer, explorer
        self._version = 0

    def transfer(self, share: float, pattern: str) -> dict[str, float]:
        """Changes the weights, transfers them, and returns what that took."""
        self._explorer.ask("pull", self._version)
        self._trainer.ask("publish", self._version, share, pattern)
        published, pulled = self._trainer.answer(), self._explorer.answer()
        self._trainer.ask("peak")
        self._version += 1
        stats = pulled["stats"]
        return {
            "secs": pulled["end"] - published["start"],
            "blocked": published["blocked"],
            "cut": published["cut"],
            "encode": published["encode"],
            "fetch": stats.get("receive_secs", 0.0),
            "apply": stats.get("apply_secs", 0.0),
            "bytes": stats.get("received_bytes", 1.0) / stats.get("dense_bytes", 1.0),
            "trainer": self._trainer.answer()["peak"],
            "explorer": pulled["peak"],
        }


@contextlib.contextmanager
def pair(transfer: str, size: Size, hosts: Sequence[Host], directory: Path) -> Iterator[Pair]:
    place = Place("trainer", "trainer", transfer, *size, hosts[0].address)
    with started([(place, hosts[0])], directory) as (trainer,):
        there = Place("explorer", "explorer", transfer, *size, hosts[1].address, trainer.address)
        with started([(there, hosts[1])], directory) as (explorer,):
            yield Pair(trainer, explorer)


def compare(
    size: Size, rate: str, cases: Sequence[tuple[float, str]], rounds: int, directory: Path
) -> None:
    """Measures all cases on one network, and prints their table."""
    with (
        network(rate, 2) as hosts,
        pair(DELTA, size, hosts, directory) as delta,
        pair(DENSE, size, hosts, directory) as dense,
    ):
        for of in (delta, dense):  # A full copy, and a version after it.
            of.transfer(1.0, "scattered")
            of.transfer(cases[0][0] / 100, cases[0][1])
        print(f"\n{size.megabytes} MB in {size.leaves} arrays, {rate}\n")
        print_row(
            *("% changed", "pattern", "delta s", "dense s", "ratio", "bytes %", "cut s"),
            *("encode s", "fetch s", "apply s", "blocks ms, delta", "blocks ms, dense"),
            *("memory: delta trainer", "delta explorer", "dense trainer", "dense explorer"),
        )
        print_row(*["---"] * 16)
        for percent, pattern in cases:
            rows: dict[str, Rows] = {DELTA: [], DENSE: []}
            for number in range(rounds + 1):
                turns = [(DELTA, delta), (DENSE, dense)]
                for name, of in turns if number % 2 else reversed(turns):
                    rows[name].append(of.transfer(percent / 100, pattern))
            ours, whole = rows[DELTA][1:], rows[DENSE][1:]
            ratios = [b["secs"] / a["secs"] for a, b in zip(ours, whole, strict=True)]
            print_row(
                *(f"{percent:g}", pattern, spread(ours, "secs", 3), spread(whole, "secs", 3)),
                *(spread_of(ratios, 2), spread(ours, "bytes", 3, 100), spread(ours, "cut", 3)),
                *(spread(ours, "encode", 3), spread(ours, "fetch", 3), spread(ours, "apply", 3)),
                *(spread(ours, "blocked", 1, 1000), spread(whole, "blocked", 1, 1000)),
                *(spread(ours, "trainer", 1), spread(ours, "explorer", 1)),
                *(spread(whole, "trainer", 1), spread(whole, "explorer", 1)),
            )


def relay(size: Size, rate: str, counts: Sequence[int], rounds: int, directory: Path) -> None:
    """Measures receivers that hand on blocks, on one network, and prints the table."""
    place = Place("trainer", "trainer", DELTA, *size, "")
    with network(rate, 1 + max(counts)) as hosts, contextlib.ExitStack() as stack:
        place = place._replace(host=hosts[0].address)
        (trainer,) = stack.enter_context(started([(place, hosts[0])], directory))
        places = []
        for number, host in enumerate(hosts[1:]):
            there = place._replace(role="receiver", name=f"explorer{number}.0", host=host.address)
            places.append((there._replace(publisher=trainer.address), host))
        receivers = stack.enter_context(started(places, directory))
        names = [place.name for place, _ in places]
        print(f"\nFull copies of {size.megabytes} MB in {size.leaves} arrays, {rate}\n")
        print_row("receivers", "fanout", "last has it, s", "to one", "sent", "streams")
        print_row(*["---"] * 6)
        version, one = 0, 0.0
        for count, fanout in itertools.product(sorted(counts), FANOUTS):
            tree = RelayTree(fanout or count)
            for name, receiver in zip(names[:count], receivers, strict=False):
                tree.join(name, receiver.address)
            for name, receiver in zip(names[:count], receivers, strict=False):
                receiver.ask("begin", tree.path(name, 0.0))
                receiver.answer()
            rows: Rows = []
            for _ in range(rounds + 1):
                rows.append(relayed(trainer, hosts[0], receivers[:count], version, size))
                version += 1
            if not one:
                one = statistics.median(row["secs"] for row in rows[1:])
            ratios = [row["secs"] / one for row in rows[1:]]
            print_row(
                *(str(count), str(fanout or "none"), spread(rows[1:], "secs", 2)),
                *(spread_of(ratios, 2), spread(rows[1:], "sent", 2), spread(rows[1:], "streams")),
            )


def relayed(
    trainer: Started, host: Host, receivers: Sequence[Started], version: int, size: Size
) -> dict[str, float]:
    """Lets receivers fetch a version, and returns what that took."""
    plain = not host.namespace
    before = 0 if plain else host.sent_bytes()
    for receiver in receivers:
        receiver.ask("pull", version)
    trainer.ask("publish", version, RELAYED_SHARE, "scattered")
    published = trainer.answer()
    pulled = [receiver.answer() for receiver in receivers]
    sent = 0 if plain else host.sent_bytes() - before
    return {
        "secs": max(answer["end"] for answer in pulled) - published["start"],
        "sent": sent / (size.megabytes * 10**6),
        "streams": max(answer["streams"] for answer in pulled),
    }


def spread(rows: Rows, column: str, digits: int = 0, times: float = 1) -> str:
    return spread_of([row[column] * times for row in rows], digits)


def spread_of(numbers: Sequence[float], digits: int) -> str:
    """Writes the least, the median and the greatest of some numbers."""
    three = (min(numbers), statistics.median(numbers), max(numbers))
    return " / ".join(f"{number:.{digits}f}" for number in three)


def print_row(*cells: str) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", default="500", help="500,2000")
    parser.add_argument("--shares", default="0.1,1,3,10,30,100", help="% of values that change")
    parser.add_argument("--patterns", default=",".join(sorted(RUN_BITS)))
    parser.add_argument("--networks", default=f"{PLAIN},10gbit,1gbit,100mbit")
    parser.add_argument("--relays", help="numbers of receivers, to measure relays instead")
    parser.add_argument("--leaves", type=int, default=25)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # Namespaces are deleted then, too.
    cases = list(itertools.product(map(float, args.shares.split(",")), args.patterns.split(",")))
    for megabytes, rate in itertools.product(args.megabytes.split(","), args.networks.split(",")):
        size = Size(int(megabytes), args.leaves)
        with tempfile.TemporaryDirectory() as directory:
            try:
                if args.relays:
                    counts = [int(count) for count in args.relays.split(",")]
                    relay(size, rate, counts, args.rounds, Path(directory))
                else:
                    compare(size, rate, cases, args.rounds, Path(directory))
            except NetworkError as error:
                print(f"\n{rate} is left out: {error}", flush=True)
            except RuntimeError as error:
                print(f"\n{rate} failed: {error}", flush=True)


if __name__ == "__main__":
    main()
