# /// script
# requires-python = "==3.11.*"
# dependencies = ["dm-reverb==0.14.0", "tensorflow-cpu==2.15.1", "setuptools<81"]
# ///
"""Items and bytes a second through a Reverb server, with our client and the official one.

    python benchmarks/replay.py

Starts one server, and this file once more as a uv script. The script has the official client, in an
environment like the server's (described by the comment at the top). Measures both clients in turns:
items of several sizes are inserted by one writer and sampled by one reader. Every number is the
best of several rounds; the ratio is ours divided by theirs. Where the script cannot be started, our
client is measured alone.

There are two ways to insert: *one by one* waits for the confirmation of each item, *pipelined*
waits for all confirmations at the end. The official client calls `TrajectoryWriter.flush` after
each item, or once. There are two ways to sample: one item in a request, or all in one. Half of an
item's data are token-like integers, half are floats that do not compress.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:  # The script's environment has none of ours.
    from rl_sync.replay.client import ReplayClient

TABLE = "benchmark"
TIMEOUT_SECS = 120.0


class Case(NamedTuple):
    """One measurement: an action, the size of its items, and their number in a round."""

    action: str
    size_bytes: int
    items: int


CASES = [
    Case(action, size_bytes, items)
    for size_bytes, items in ((1_000, 2000), (66_000, 500), (4_000_000, 24))
    for action in (
        "insert one by one",
        "insert pipelined",
        "sample one by one",
        "sample all",
    )
]


def make_columns(size_bytes: int) -> dict[str, np.ndarray]:
    """Makes an item of about that size, with the columns of a group of 8 trajectories."""
    rng = np.random.default_rng(0)
    length = max(1, size_bytes // (8 * 4 * 2))
    return {
        "behavior_logprobs": rng.standard_normal((8, length)).astype(np.float32),
        "ordinal": np.array(7, np.int32),
        "tokens": rng.integers(0, 512, (8, length)).astype(np.int32),
    }


def our_actions(
    client: ReplayClient,
) -> dict[str, Callable[[Case, dict[str, np.ndarray]], None]]:
    """Returns the actions with our client."""

    def insert_one_by_one(case: Case, columns: dict[str, np.ndarray]) -> None:
        for _ in range(case.items):
            client.insert(TABLE, columns, timeout_secs=TIMEOUT_SECS)

    def insert_pipelined(case: Case, columns: dict[str, np.ndarray]) -> None:
        client.insert_many(TABLE, [columns] * case.items, timeout_secs=TIMEOUT_SECS)

    def sample_one_by_one(case: Case, columns: dict[str, np.ndarray]) -> None:
        for _ in range(case.items):
            client.sample(TABLE, 1, timeout_secs=TIMEOUT_SECS)

    def sample_all(case: Case, columns: dict[str, np.ndarray]) -> None:
        client.sample(TABLE, case.items, timeout_secs=TIMEOUT_SECS)

    return {
        "insert one by one": insert_one_by_one,
        "insert pipelined": insert_pipelined,
        "sample one by one": sample_one_by_one,
        "sample all": sample_all,
    }


def official_actions(address: str) -> dict[str, Callable[[Case, dict[str, np.ndarray]], None]]:
    """Returns the actions with the official client; it runs in the server's environment only."""
    import reverb

    client = reverb.Client(address)

    def insert(case: Case, columns: dict[str, np.ndarray], flush_each: bool) -> None:
        with client.trajectory_writer(num_keep_alive_refs=1) as writer:
            for name in columns:
                writer.configure((name,), num_keep_alive_refs=1, max_chunk_length=1)
            for _ in range(case.items):
                writer.append(columns)
                trajectory = {name: column[-1] for name, column in writer.history.items()}
                writer.create_item(TABLE, 1.0, trajectory)
                if flush_each:
                    writer.flush()
            writer.flush()

    def sample(case: Case, requests: int) -> None:
        for _ in range(requests):
            for _ in client.sample(TABLE, case.items // requests, emit_timesteps=False):
                pass

    return {
        "insert one by one": lambda case, columns: insert(case, columns, True),
        "insert pipelined": lambda case, columns: insert(case, columns, False),
        "sample one by one": lambda case, columns: sample(case, case.items),
        "sample all": lambda case, columns: sample(case, 1),
    }


def measure(actions: dict[str, Callable[..., None]], case: Case) -> float:
    """Returns the seconds that one round of a case takes."""
    columns = make_columns(case.size_bytes)
    start = time.perf_counter()
    actions[case.action](case, columns)
    return time.perf_counter() - start


def answer_requests(address: str) -> None:
    """Runs the official side: measures the cases from standard input, one line of JSON each."""
    actions = official_actions(address)
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(measure(actions, Case(*json.loads(line)))), flush=True)
    os._exit(0)  # without TensorFlow's slow tear-down


def start_official(address: str) -> subprocess.Popen[str]:
    """Starts this file as a uv script, as the official side."""
    import uv

    return subprocess.Popen(
        [uv.find_uv_bin(), "run", "--quiet", "--script", __file__, "--official", address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        stderr=subprocess.DEVNULL,
    )


def compare(rounds: int, log_path: pathlib.Path) -> None:
    """Measures all cases, and prints the table."""
    from rl_sync.replay.client import ReplayClient
    from rl_sync.replay.server_process import start_server
    from rl_sync.replay.tables import TableSpec

    tables = [TableSpec(TABLE, 100_000, max_times_sampled=1)]
    with (
        start_server(
            "reverb", tables, 0, log_path=log_path, start_timeout_secs=TIMEOUT_SECS
        ) as server,
        start_official(server.address) as official,
        ReplayClient(server.address) as client,
        ReplayClient(server.address) as filler,
    ):
        requests, answers = official.stdin, official.stdout
        assert requests is not None
        assert answers is not None
        ours = our_actions(client)
        sides: dict[str, Callable[[Case], float]] = {"ours": lambda case: measure(ours, case)}
        if answers.readline():
            sides["official"] = lambda case: asked(case, requests, answers)
        else:
            print("# The official client cannot be measured: uv cannot make its environment.")

        def best(measured: Callable[[Case], float], case: Case) -> float:
            client.reset(TABLE)  # It would take another client's reset for a loss of items.
            if case.action.startswith("sample"):
                columns = [make_columns(case.size_bytes)] * case.items
                filler.insert_many(TABLE, columns, timeout_secs=TIMEOUT_SECS)
            return measured(case)

        print(
            f"{'':20}{'item':>9}{'ours':>12}{'':>12}{'official':>12}{'':>12}{'ratio':>8}\n"
            f"{'':20}{'bytes':>9}{'items/s':>12}{'MB/s':>12}{'items/s':>12}{'MB/s':>12}"
        )
        for case in CASES:
            secs: dict[str, list[float]] = {side: [] for side in sides}
            for _ in range(rounds):
                for side, measured in sides.items():
                    secs[side].append(best(measured, case))
            rates = [case.items / min(found) for found in secs.values()]
            cells = "".join(f"{rate:12,.0f}{rate * case.size_bytes / 1e6:12,.1f}" for rate in rates)
            ratio = f"{rates[0] / rates[-1]:8.2f}" * (len(rates) > 1)
            print(f"{case.action:20}{case.size_bytes:9,}{cells}{ratio}", flush=True)
        with contextlib.suppress(BrokenPipeError):
            requests.close()


def asked(case: Case, requests: IO[str], answers: IO[str]) -> float:
    """Returns the seconds that one round of a case takes on the official side."""
    print(json.dumps(case), file=requests, flush=True)
    return float(answers.readline())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="of which the best counts")
    parser.add_argument("--official", metavar="ADDRESS", help="be the official side (internal)")
    args = parser.parse_args()
    if args.official:
        answer_requests(args.official)
    else:
        with tempfile.TemporaryDirectory() as folder:
            compare(args.rounds, pathlib.Path(folder) / "server.log")


if __name__ == "__main__":
    main()
