"""Seconds and bytes a second of each weight transfer, beside plain sockets, copies and files.

    python benchmarks/weights.py [--megabytes=100] [--leaves=25] [--dtypes=float32]
                                 [--shardings=one] [--explorers=1] [--rounds=5]
                                 [--transfers=collective,checkpoint,server]

Every option except `--rounds` takes several values, separated by commas; all combinations are run.
`--all` means 100, 500 and 2000 MB, 25 and 300 leaves, float32 and bfloat16, all shardings, 1 and 3
explorers. Trainer and explorers are processes on this machine's CPU. They have one device each
(`--shardings=one`), or two. With two, the matrices are sharded along rows on both sides (`equal`),
or along rows on one side and columns on the other (`different`).

*secs* is the time from the call of `publish` until the last explorer has the weights, digest
checked. *GB/s* counts the bytes of every explorer. *blocked* is the time of `publish`. *of socket*
is that rate divided by the rate of a plain loopback socket that copies the same bytes once. *of
files* is secs divided by the time of writing and reading the same bytes as one plain file in
`--directory`, the folder of checkpoints. Socket and file are measured in turns with the transfer,
and the best rounds are compared. The first round, in which everything is compiled, does not count.
*trainer* and *explorer* are the largest growth of the processes' memory, divided by the size of the
weights: an explorer has the old and the new ones.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from weights_role import HOST, SECRET, Case, Endpoints

from rl_sync.cluster import malloc
from rl_sync.cluster.ports import free_ports
from rl_sync.cluster.rpc import CallHandlers, RpcServer
from rl_sync.messages.master_calls import Happened
from rl_sync.roles.master.weight_registry import WeightRegistry

ROLE = Path(__file__).with_name("weights_role.py")


class Outcome(NamedTuple):
    """Result of one case; the last two fields are multiples of the weights' size."""

    secs: float
    blocked_secs: float
    socket_secs: float
    copy_secs: float
    files_secs: float
    trainer_peak: float
    explorer_peak: float


class Plain:
    """Copies of the same bytes over a socket, from memory to memory, and through a file."""

    def __init__(self, nbytes: int, directory: Path):
        self._source = np.arange(nbytes, dtype=np.uint8)
        self._target = np.zeros_like(self._source)
        self._file = directory / "plain"

    def over_socket(self) -> float:
        with socket.create_server((HOST, 0)) as server:
            sender = threading.Thread(target=self._send, args=(server.getsockname(),))
            sender.start()
            connection, _ = server.accept()
        with connection:
            view, got = self._target.data, 0
            start = time.perf_counter()
            while got < len(view):
                got += connection.recv_into(view[got:])
            secs = time.perf_counter() - start
        sender.join()
        return secs

    def _send(self, address: tuple[str, int]) -> None:
        with socket.create_connection(address) as connection:
            connection.sendall(self._source.data)

    def in_memory(self) -> float:
        start = time.perf_counter()
        np.copyto(self._target, self._source)
        return time.perf_counter() - start

    def through_file(self) -> float:
        start = time.perf_counter()
        self._source.tofile(self._file)
        with self._file.open("rb") as file:
            file.readinto(self._target.data)
        secs = time.perf_counter() - start
        self._file.unlink()
        return secs


class Process:
    """A trainer or an explorer, as the parent sees it: it answers lines with lines, both JSON."""

    def __init__(self, command: list[str], log: Path):
        self._log = log
        environment = {"JAX_PLATFORMS": "cpu", **malloc.environment(os.environ)}
        with log.open("w") as errors:
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
            )

    def ask(self, request: object) -> None:
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # Its answer gives the reason.
            print(json.dumps(request), file=self._popen.stdin, flush=True)

    def answer(self) -> dict[str, Any]:
        assert self._popen.stdout is not None
        line = self._popen.stdout.readline()
        if not line:
            last = [said for said in self._log.read_text().splitlines() if said.strip()][-1:]
            raise RuntimeError(last[0] if last else "a process died without a word")
        return json.loads(line)

    def end(self) -> None:
        self._popen.kill()
        self._popen.communicate()


@contextlib.contextmanager
def processes(case: Case, directory: Path) -> Iterator[list[Process]]:
    """Starts the trainer and the explorers of a case, and ends them afterwards."""
    desk = CallHandlers(*WeightRegistry().handlers(), Happened.answered_by(lambda call: None))
    master = RpcServer(desk, 0, HOST, secret=SECRET)
    (cluster_port,) = free_ports(HOST, 1)
    started = []
    for number in range(1 + case.explorers):
        endpoints = Endpoints(str(directory), cluster_port, master.port, number)
        command = [sys.executable, str(ROLE), json.dumps([case, endpoints])]
        started.append(Process(command, directory / f"process{number}.log"))
    try:
        yield started
    finally:
        for process in started:
            process.end()
        master.close()


def measure(case: Case, rounds: int, directory: Path) -> Outcome:
    """Runs one case.

    Raises:
      RuntimeError: a process failed; the message has the last line that it wrote.
    """
    directory.mkdir(parents=True)
    nbytes = case.megabytes * 10**6
    plain = Plain(nbytes, directory)
    rows, peaks = [], [0.0, 0.0]
    with processes(case, directory) as (trainer, *explorers):
        for version in range(rounds + 1):
            beside = [plain.over_socket(), plain.in_memory(), plain.through_file()]
            for explorer in explorers:
                explorer.ask(version)
            trainer.ask(version)
            published = trainer.answer()
            pulled = [explorer.answer() for explorer in explorers]
            secs = max(answer["end"] for answer in pulled) - published["start"]
            rows.append([secs, published["blocked"], *beside])
            peaks[0] = published["peak_bytes"] / nbytes
            peaks[1] = max(answer["peak_bytes"] for answer in pulled) / nbytes
    shutil.rmtree(directory)
    return Outcome(*(min(column) for column in zip(*rows[1:], strict=True)), *peaks)


def compare(cases: list[Case], rounds: int, directory: Path) -> None:
    """Measures all cases, and prints the table."""
    print(
        f"{'transfer':11}{'MB':>6}{'leaves':>7}{'dtype':>9}{'sharding':>10}{'explorers':>10}"
        f"{'secs':>8}{'GB/s':>7}{'of socket':>10}{'of files':>9}{'blocked':>9}"
        f"{'trainer':>9}{'explorer':>9}{'socket':>8}{'copy':>7}{'files':>7}"
    )
    for number, case in enumerate(cases):
        name = f"{case.transfer:11}{case.megabytes:6}{case.leaves:7}{case.dtype:>9}"
        name += f"{case.sharding:>10}{case.explorers:10}"
        try:
            of = measure(case, rounds, directory / str(number))
        except RuntimeError as error:
            print(f"{name}  failed: {error}", flush=True)
            continue
        gigabytes = case.megabytes / 1000
        rate = gigabytes * case.explorers / of.secs
        print(
            f"{name}{of.secs:8.3f}{rate:7.2f}{rate * of.socket_secs / gigabytes:10.0%}"
            f"{of.secs / of.files_secs:8.1f}x{of.blocked_secs / of.secs:9.1%}"
            f"{of.trainer_peak:8.1f}x{of.explorer_peak:8.1f}x"
            f"{gigabytes / of.socket_secs:8.2f}{gigabytes / of.copy_secs:7.2f}"
            f"{gigabytes / of.files_secs:7.2f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    everything = {
        "megabytes": "100,500,2000",
        "leaves": "25,300",
        "dtypes": "float32,bfloat16",
        "shardings": "one,equal,different",
        "explorers": "1,3",
    }
    parser.add_argument("--transfers", default="collective,checkpoint,server")
    for name, values in everything.items():
        parser.add_argument(f"--{name}", default=values.split(",")[0], help=values)
    parser.add_argument("--all", action="store_true", help="all values of all options")
    parser.add_argument("--rounds", type=int, default=5, help="of which the best counts")
    parser.add_argument("--directory", type=Path, help="for files; by default a temporary one")
    args = parser.parse_args()
    chosen = {
        name: (everything if args.all else vars(args))[name].split(",") for name in everything
    }
    cases = [
        Case(
            transfer=transfer,
            megabytes=int(megabytes),
            leaves=int(leaves),
            dtype=dtype,
            sharding=sharding,
            explorers=int(explorers),
        )
        for megabytes, leaves, dtype, sharding, explorers, transfer in itertools.product(
            *chosen.values(), args.transfers.split(",")
        )
    ]
    with tempfile.TemporaryDirectory(dir=args.directory) as directory:
        compare(cases, args.rounds, Path(directory))


if __name__ == "__main__":
    main()
