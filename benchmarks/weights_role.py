"""One process of `benchmarks/weights.py`: the trainer, or an explorer.

    weights_role.py '[CASE, PLACES]'

Each line on standard input is a version. The trainer publishes it, an explorer pulls it, and both
answer with a line of JSON.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

HOST, SECRET, RUN = "127.0.0.1", "only ours", "benchmark"
TIMEOUT_SECS = 300.0
COLUMNS = 1024


class Case(NamedTuple):
    """One line of the table."""

    transfer: str
    megabytes: int
    leaves: int
    dtype: str
    sharding: str
    explorers: int


class Endpoints(NamedTuple):
    """Addresses at which the processes of a case find each other."""

    directory: str
    cluster_port: int
    master_port: int
    number: int


class Session:
    """The session of the only process of a role; the parent hosts the master's meeting point."""

    def __init__(self, endpoints: Endpoints) -> None:
        from rl_sync.cluster.rpc import RpcClient
        from rl_sync.ports.clock_port import SystemClock
        from rl_sync.records.spans import SpanRecorder

        self.clock = SystemClock()
        self._master = RpcClient(f"{HOST}:{endpoints.master_port}", "master", SECRET)
        self.spans = SpanRecorder(None, "role")

    def call(self, call: Any) -> Any:
        return self._master.call(call, TIMEOUT_SECS)

    def agree(self, what: str, thunk: Callable[[], Any]) -> Any:
        return thunk()

    def check(self) -> None:
        """Does nothing: the benchmark is never stopped."""


def like_of(case: Case, number: int) -> Any:
    """Returns the parameters' shapes and shardings in process `number`, 0 for the trainer.

    Without a cluster, a process knows only its own devices, which stand for the others' devices.
    """
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    joint = case.transfer == "collective"
    devices = [d for d in jax.devices() if d.process_index == number or not joint]
    mesh = Mesh(np.array(devices), ("x",))
    rows_first = number == 0 or case.sharding != "different"
    cuts = PartitionSpec("x", None) if rows_first else PartitionSpec(None, "x")
    itemsize = np.dtype("float32").itemsize if case.dtype == "float32" else 2
    rows = case.megabytes * 10**6 // (case.leaves * COLUMNS * itemsize) // 2 * 2
    leaf = jax.ShapeDtypeStruct((rows, COLUMNS), case.dtype, sharding=NamedSharding(mesh, cuts))
    return {f"w{i}": leaf for i in range(case.leaves)}


def publisher_of(case: Case, endpoints: Endpoints) -> Any:
    """Makes the trainer's end; for a server also the service for its callers."""
    from rl_sync.weights.cells import mesh_regions

    if case.transfer == "checkpoint":
        from rl_sync.transfers.checkpoint import CheckpointPublisher

        return CheckpointPublisher(
            Path(endpoints.directory),
            like_of(case, 0),
            run=RUN,
            chain=RUN,
            deltas=False,
            expected=mesh_regions(like_of(case, 1)),
        )
    if case.transfer == "server":
        from rl_sync.transfers.server_publisher import ServerPublisher

        there = mesh_regions(like_of(case, 1))
        publisher = ServerPublisher(like_of(case, 0), host=HOST, secret=SECRET, expected=there)
        address = Path(endpoints.directory, "address")
        temporary = address.with_suffix(".tmp")
        temporary.write_text(publisher.address)
        temporary.rename(address)
        return publisher
    from rl_sync.records.spans import sync_kind
    from rl_sync.transfers.collective import CollectivePublisher
    from rl_sync.weights.link import Link

    explorers = range(1, case.explorers + 1)
    links = {number: Link(like_of(case, 0), like_of(case, number)) for number in explorers}
    session: Any = Session(endpoints)
    kind = sync_kind("collective")
    return CollectivePublisher(session, links, kind=kind, meet=True, timeout_secs=TIMEOUT_SECS)


def puller_of(case: Case, endpoints: Endpoints) -> Any:
    """Makes an explorer's end."""
    abstract = like_of(case, endpoints.number)
    if case.transfer == "checkpoint":
        from rl_sync.transfers.checkpoint import CheckpointPuller

        return CheckpointPuller(Path(endpoints.directory), abstract, run=RUN, deltas=False)
    if case.transfer == "server":
        from rl_sync.transfers.server import ServerPuller
        from rl_sync.transfers.trainer_processes import TrainerContact

        address = Path(endpoints.directory, "address")
        deadline = time.monotonic() + TIMEOUT_SECS
        while not address.exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the trainer has served nothing for {TIMEOUT_SECS:.0f} s")
            time.sleep(0.01)
        trainer = TrainerContact(
            f"explorer{endpoints.number}",
            lambda: [address.read_text()],
            _asked,
            SECRET,
            TIMEOUT_SECS,
        )
        return ServerPuller(abstract, trainer, host=HOST)
    from rl_sync.transfers.collective import CollectivePuller
    from rl_sync.weights.link import Link

    link = Link(like_of(case, 0), abstract)
    session: Any = Session(endpoints)
    return CollectivePuller(session, link, endpoints.number)


def _asked(at_least: int, _timeout_secs: float) -> int:
    """Returns the wanted version as the newest: pulls are requested after publication."""
    return at_least


def take_part(case: Case, endpoints: Endpoints) -> None:
    """Answers requests from standard input, one line of JSON each."""
    import jax

    jax.config.update("jax_num_cpu_devices", 1 if case.sharding == "one" else 2)
    if case.transfer == "collective":
        from rl_sync.weights.cluster import init_cluster

        init_cluster(f"{HOST}:{endpoints.cluster_port}", 1 + case.explorers, endpoints.number)
    # Libraries write to standard output too.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    act = (
        trainer_actions(case, endpoints)
        if endpoints.number == 0
        else explorer_actions(case, endpoints)
    )
    before = resident_bytes()
    for line in sys.stdin:
        answer = act(json.loads(line))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
        print(json.dumps({**answer, "peak_bytes": peak}), file=answers, flush=True)
    os._exit(0)  # Otherwise a cluster's processes wait for each other.


def trainer_actions(case: Case, endpoints: Endpoints) -> Callable[[int], dict[str, float]]:
    import jax
    import jax.numpy as jnp

    abstract = like_of(case, 0)
    shardings = jax.tree.map(lambda x: x.sharding, abstract)

    def first() -> Any:
        return {
            name: (jnp.arange(x.size, dtype=jnp.uint32) * (7 + i)).astype(x.dtype).reshape(x.shape)
            for i, (name, x) in enumerate(abstract.items())
        }

    step = jax.jit(lambda params: jax.tree.map(lambda x: x + 1, params), donate_argnums=0)
    params = jax.block_until_ready(jax.jit(first, out_shardings=shardings)())
    publisher = publisher_of(case, endpoints)

    def publish(version: int) -> dict[str, float]:
        nonlocal params
        params = jax.block_until_ready(step(params))
        start = time.time()
        publisher.publish(version, params)
        return {"start": start, "blocked": time.time() - start}

    return publish


def explorer_actions(case: Case, endpoints: Endpoints) -> Callable[[int], dict[str, float]]:
    import jax

    puller, weights = puller_of(case, endpoints), None

    def pull(version: int) -> dict[str, float]:
        nonlocal weights
        _, new = puller.pull(exactly=version, timeout_secs=TIMEOUT_SECS)
        weights = jax.block_until_ready(new)
        return {"end": time.time()}

    return pull


def resident_bytes() -> int:
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    described, found = json.loads(sys.argv[1])
    take_part(Case(*described), Endpoints(*found))
