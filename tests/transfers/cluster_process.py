"""One process of a cluster of a trainer and explorers; `test_collective.py` starts them.

    cluster_process.py PROCESS_ID CLUSTER_PORT MASTER DIRECTORY MESHES

MESHES is JSON: the trainer's mesh and each explorer's, such as [{"fsdp": 2}, {"tensor": 4}]. The
process writes its report to `<directory>/<process id>.json`.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from rl_sync.cluster.rpc import RpcClient
from rl_sync.models.mesh_shape import MeshShape
from rl_sync.records.spans import sync_kind
from rl_sync.transfers.collective import CollectivePublisher, CollectivePuller
from rl_sync.weights.cluster import init_cluster, leave_cluster
from rl_sync.weights.digest import digest
from rl_sync.weights.ends_interface import WeightsTimeoutError
from rl_sync.weights.link import Link
from tests.transfers.sessions import LoneSession

SECRET = "only ours"
BUCKET_BYTES = 4096  # several buckets, and leaves cut in two
CUTS = {"embed": ("fsdp", "tensor"), "wide": (("tensor", "fsdp"),)}
EXACT, LATEST, ABSENT = (0, 1, 2), (3, 4, 5), 6


def make_params(version: int) -> dict:
    """Makes the parameters of a version, in every dtype; the same in every process."""
    key = jax.random.key(version)
    keys = jax.random.split(key, 5)
    return {
        "embed": jax.random.normal(key, (72, 112)),
        "wide": jax.random.normal(key, (24, 3)).astype(jnp.bfloat16),
        "half": [jax.random.normal(k, (7, i + 1), jnp.bfloat16) for i, k in enumerate(keys)],
        "step": jnp.int32(version),
        "mask": jax.random.bernoulli(key, 0.5, (13,)),
        "nan": jnp.array([jnp.nan, -0.0, jnp.inf]),
    }


def places(process: int, shape: MeshShape) -> dict:
    """Returns the shardings of a process's parameters, by name, on a mesh of its own."""
    mine = [device for device in jax.devices() if device.process_index == process]
    mesh = shape.mesh(mine)
    shapes = jax.eval_shape(make_params, 0)
    cuts = {name: NamedSharding(mesh, PartitionSpec(*CUTS.get(name, ()))) for name in shapes}
    # A tree of places that is a prefix of the parameters' reaches every leaf below it.
    return jax.tree.map(lambda cut, part: jax.tree.map(lambda _: cut, part), cuts, shapes)


def abstract(process: int, shape: MeshShape) -> dict:
    """Returns shapes, dtypes and shardings of a process's parameters."""

    def placed(leaf, sharding):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree.map(placed, jax.eval_shape(make_params, 0), places(process, shape))


def live_bytes() -> int:
    """Returns the bytes of all live arrays of this process."""
    buffers = {
        (shard.device.id, shard.data.unsafe_buffer_pointer()): shard.data.nbytes
        for array in jax.live_arrays()
        for shard in array.addressable_shards
    }
    return sum(buffers.values())


def watch(link: Link, peaks: list[int]) -> Link:
    """Makes a link record the live bytes when both sent and received arrays exist."""

    def watched(mover):
        def move(load, wave):
            moved = mover(load, wave)
            peaks.append(live_bytes())
            return moved

        return move

    link._movers = [watched(mover) for mover in link._movers]
    return link


def train(meshes: list[MeshShape], session: LoneSession, directory: Path) -> dict:
    """Plays the trainer: exact pulls, latest pulls, a meeting where nobody comes, a snapshot."""
    mine = places(0, meshes[0])
    peaks: list[int] = []
    links = {
        explorer: watch(
            Link(abstract(0, meshes[0]), abstract(explorer, shape), BUCKET_BYTES), peaks
        )
        for explorer, shape in enumerate(meshes)
        if explorer
    }
    sent: list[int] = []
    for explorer, link in links.items():
        link.send = noting(link.send, sent, explorer)

    def publisher(meet: bool, timeout_secs: float) -> CollectivePublisher:
        kind = sync_kind("collective")
        return CollectivePublisher(session, links, kind=kind, meet=meet, timeout_secs=timeout_secs)

    def publish_and_donate(to: CollectivePublisher, version: int) -> str:
        params = jax.device_put(make_params(version), mine)
        published, before = digest(params), live_bytes()
        to.publish(version, params)
        if to is exact:
            extra.append(max(peaks) - before)
        peaks.clear()
        donate(params)
        return published

    extra: list[int] = []
    exact = publisher(True, 60)
    report: dict = {"exact": {v: publish_and_donate(exact, v) for v in EXACT}}
    report["extra_bytes"] = max(extra)
    report["devices"] = meshes[0].devices
    exact.close()

    sent.clear()
    latest = publisher(False, 60)
    report["latest"] = {v: publish_and_donate(latest, v) for v in LATEST}
    report["met"] = list(sent)
    while len(sent) < len(links):
        latest.serve()
        time.sleep(0.01)
    report["served"] = list(sent)
    latest.close()

    try:
        publisher(True, 1.5).publish(ABSENT, jax.device_put(make_params(ABSENT), mine))
    except WeightsTimeoutError as error:
        report["absent"] = str(error)
    report["snapshot"] = snapshot(directory, jax.device_put(make_params(5), mine))
    return report


def noting(send, sent: list[int], explorer: int):
    def noted(params: dict) -> None:
        send(params)
        sent.append(explorer)

    return noted


@functools.partial(jax.jit, donate_argnums=0)
def donate(params: dict) -> dict:
    """Overwrites the parameters' buffers, as a train step does."""
    return jax.tree.map(lambda x: ~x if x.dtype == bool else x + 1, params)


def snapshot(directory: Path, params: dict) -> bool:
    """Says whether a snapshot that only the trainer saves and loads is the same to the bit."""
    # Here, because explorers need no Orbax, and importing it takes a second.
    from rl_sync.checkpoints.snapshot_folder import SnapshotFolder

    state = {"params": params, "rng": jax.random.key(3), "step": 7}
    SnapshotFolder(directory / "snapshots").save(7, state, {"seed": 1})
    step, loaded, metadata = SnapshotFolder(directory / "snapshots").load(None, state)
    same_sharding = loaded["params"]["embed"].sharding == state["params"]["embed"].sharding
    same_key = bool((jax.random.key_data(loaded["rng"]) == jax.random.key_data(state["rng"])).all())
    same = digest(loaded["params"]) == digest(state["params"])
    return same and same_sharding and same_key and (step, metadata) == (7, {"seed": 1})


def explore(explorer: int, meshes: list[MeshShape], session: LoneSession) -> dict:
    """Plays an explorer."""
    report: dict = {"exact": {}, "latest": {}, "newest": []}
    mine = abstract(explorer, meshes[explorer])
    peaks: list[int] = []
    link = watch(Link(abstract(0, meshes[0]), mine, BUCKET_BYTES), peaks)
    puller = CollectivePuller(session, link, explorer)
    extra = []
    for version in EXACT:
        params = None  # What it had does not count.
        pulled, params = puller.pull(exactly=version, timeout_secs=60)
        extra.append(max(peaks) - live_bytes())
        peaks.clear()
        for name in CUTS:
            assert params[name].sharding == mine[name].sharding
        report["exact"][pulled] = digest(params)
        report["newest"].append(puller.newest())
    report["extra_bytes"] = max(extra)
    report["devices"] = meshes[explorer].devices
    pulled, params = puller.pull(at_least=LATEST[-1], timeout_secs=60)
    report["latest"][pulled] = digest(params)
    try:
        puller.pull(exactly=99, timeout_secs=3)
    except WeightsTimeoutError as error:
        report["absent"] = str(error)
    puller.close()
    return report


def main() -> None:
    process, cluster_port = map(int, sys.argv[1:3])
    directory = Path(sys.argv[4])
    meshes = [MeshShape(**sizes) for sizes in json.loads(sys.argv[5])]
    jax.config.update("jax_num_cpu_devices", meshes[process].devices)
    init_cluster(f"127.0.0.1:{cluster_port}", len(meshes), process, timeout_secs=60)
    master = RpcClient(sys.argv[3], "master", SECRET)
    session = LoneSession(lambda call: master.call(call, 60))
    if process == 0:
        report = train(meshes, session, directory)
    else:
        report = explore(process, meshes, session)
    (directory / f"{process}.json").write_text(json.dumps(report))
    leave_cluster(60)


if __name__ == "__main__":
    main()
