"""One process of a cluster of a trainer and explorers; `test_collective.py` starts them.

    cluster_process.py PROCESS_ID PROCESSES CLUSTER_PORT MEETING_PORT DIRECTORY

It writes what it saw to `<directory>/<process id>.json`.
"""

from __future__ import annotations

import functools
import json
import sys
from multiprocessing.managers import BaseManager
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rl_sync.weights.cluster import init_cluster, leave_cluster
from rl_sync.weights.collective import CollectivePublisher, CollectivePuller
from rl_sync.weights.digest import digest
from rl_sync.weights.interface import WeightsTimeoutError

BUCKET_BYTES = 4096  # several buckets, and leaves cut in two
EXACT, LATEST, ABSENT = (0, 1, 2), (3, 4, 5), 6


class Meetings(BaseManager):
    """Reaches the meeting point, which the test hosts."""


Meetings.register("meeting")


def make_params(version: int) -> dict:
    """The parameters of a version, in every dtype; the same in every process."""
    key = jax.random.key(version)
    keys = jax.random.split(key, 5)
    return {
        "embed": jax.random.normal(key, (37, 53)),
        "half": [jax.random.normal(k, (7, i + 1), jnp.bfloat16) for i, k in enumerate(keys)],
        "step": jnp.int32(version),
        "mask": jax.random.bernoulli(key, 0.5, (13,)),
        "nan": jnp.array([jnp.nan, -0.0, jnp.inf]),
    }


def on_local_mesh(params: dict) -> dict:
    """Shards parameters as a model does: by name, over a mesh of this process's device."""
    mesh = Mesh(np.array(jax.local_devices()), ("data",))
    return jax.device_put(params, NamedSharding(mesh, PartitionSpec()))


def train(explorers: list[int], meeting, directory: Path) -> dict:
    """The trainer's part: exact pulls, latest pulls, a meeting where nobody comes, a snapshot."""
    like = on_local_mesh(make_params(0))
    waits: list = []

    def publisher(meet: bool, timeout_secs: float) -> CollectivePublisher:
        return CollectivePublisher(
            like,
            explorers,
            meeting,
            meet=meet,
            bucket_bytes=BUCKET_BYTES,
            timeout_secs=timeout_secs,
            on_wait=lambda state: waits.append(list(state.missing)),
        )

    def publish_and_donate(to: CollectivePublisher, version: int) -> str:
        params = on_local_mesh(make_params(version))
        published = digest(params)
        to.publish(version, params)
        donate(params)
        return published

    exact = publisher(True, 60)
    report: dict = {"exact": {v: publish_and_donate(exact, v) for v in EXACT}}
    report["exact_waits"] = list(waits)
    exact.close()

    waits.clear()
    latest = publisher(False, 60)
    report["latest"] = {v: publish_and_donate(latest, v) for v in LATEST}
    report["served"] = []
    while len(report["served"]) < len(explorers):
        report["served"] += latest.serve_waiting(60)
    report["latest_waits"] = list(waits)
    latest.close()

    try:
        publisher(True, 1.5).publish(ABSENT, like)
    except WeightsTimeoutError as error:
        report["absent"] = str(error)
    report["snapshot"] = snapshot(directory)
    return report


@functools.partial(jax.jit, donate_argnums=0)
def donate(params: dict) -> dict:
    """Overwrites the parameters' buffers, as a train step does."""
    return jax.tree.map(lambda x: ~x if x.dtype == bool else x + 1, params)


def snapshot(directory: Path) -> bool:
    """Whether a snapshot that the trainer takes and loads alone comes back to the bit."""
    # Here, because explorers need no Orbax, and importing it takes a second.
    from rl_sync.runtime.snapshots import load_snapshot, save_snapshot

    state = {"params": on_local_mesh(make_params(5)), "rng": jax.random.key(3), "step": 7}
    save_snapshot(directory / "snapshots", 7, state, {"seed": 1})
    step, loaded, metadata = load_snapshot(directory / "snapshots", None, state)
    same_sharding = loaded["params"]["embed"].sharding == state["params"]["embed"].sharding
    same_key = bool((jax.random.key_data(loaded["rng"]) == jax.random.key_data(state["rng"])).all())
    same = digest(loaded["params"]) == digest(state["params"])
    return same and same_sharding and same_key and (step, metadata) == (7, {"seed": 1})


def explore(explorer: int, meeting) -> dict:
    """An explorer's part."""
    report: dict = {"exact": {}, "latest": {}, "newest": []}
    like = on_local_mesh(make_params(0))
    puller = CollectivePuller(like, explorer, meeting, bucket_bytes=BUCKET_BYTES)
    for version in EXACT:
        pulled, params = puller.pull(exactly=version, timeout_secs=60)
        assert params["embed"].sharding == like["embed"].sharding
        report["exact"][pulled] = digest(params)
        report["newest"].append(puller.newest())
    pulled, params = puller.pull(at_least=LATEST[-1], timeout_secs=60)
    report["latest"][pulled] = digest(params)
    try:
        puller.pull(exactly=99, timeout_secs=3)
    except WeightsTimeoutError as error:
        report["absent"] = str(error)
    puller.close()
    return report


def main() -> None:
    process, processes, cluster_port, meeting_port = map(int, sys.argv[1:5])
    directory = Path(sys.argv[5])
    init_cluster(f"127.0.0.1:{cluster_port}", processes, process, timeout_secs=60)
    manager = Meetings(("127.0.0.1", meeting_port), authkey=b"test")
    manager.connect()
    meeting = manager.meeting()
    if process == 0:
        report = train(list(range(1, processes)), meeting, directory)
    else:
        report = explore(process, meeting)
    (directory / f"{process}.json").write_text(json.dumps(report))
    leave_cluster(60)


if __name__ == "__main__":
    main()
