"""One process of a point-to-point transfer; `test_server_processes.py` starts it.

    server_process.py trainer
    server_process.py explorer READER ADDRESS pull | stop | ask
    server_process.py trainers INDEX COORDINATOR
    server_process.py explorers INDEX COORDINATOR ADDRESS,ADDRESS

The trainer publishes version 0, and writes its address. An explorer writes the digest that it
pulled. Or it stops as soon as it has begun to fetch, or asks and never fetches.

The last two commands are one of the two processes of a program, with two devices each. On the
trainer's side rows are sharded over all four. On the explorer's side columns are sharded over two
and replicated on two.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from rl_sync.cluster.rpc import RpcClient
from rl_sync.transfers.server import ServerPuller
from rl_sync.transfers.server_publisher import AskOffer, OpenLine, ServerPublisher
from rl_sync.transfers.trainer_processes import TrainerContact
from rl_sync.weights.digest import digest
from rl_sync.weights.server_transport import start_server

HOST, SECRET = "127.0.0.1", "only ours"
# Large enough that the C library gives their memory back to the system when they are freed.
LIKE = {f"w{i}": jax.ShapeDtypeStruct((10 << 20,), jnp.float32) for i in range(2)}


def make_params(version: int) -> dict:
    return {name: jnp.full(leaf.shape, version, leaf.dtype) for name, leaf in LIKE.items()}


def publisher_of(abstract: dict, **options) -> ServerPublisher:
    return ServerPublisher(abstract, host=HOST, secret=SECRET, **options)


def puller_of(
    abstract: dict, reader: str, addresses: str, client=RpcClient, stall_secs=60.0, **options
) -> ServerPuller:
    trainer = TrainerContact(
        reader, lambda: addresses.split(","), lambda *_: 0, SECRET, 30.0, stall_secs, client=client
    )
    return ServerPuller(abstract, trainer, host=HOST, **options)


def say(*words: object) -> None:
    """Writes a line that cannot be confused with the libraries' own output."""
    # At once, as Gloo writes lines of its own to the same place.
    os.write(1, f"> {' '.join(map(str, words))}\n".encode())


def train() -> None:
    publisher = publisher_of(LIKE)
    publisher.publish(0, make_params(0))
    say(publisher.address)
    time.sleep(1000)


def explore(reader: str, address: str, how: str) -> None:
    if how == "pull":
        version, params = puller_of(LIKE, reader, address).pull(timeout_secs=30)
        say(version, digest(params))
        return
    client = RpcClient(address, "trainer", SECRET)
    server = start_server(HOST)
    connection = server.connect(client.call(OpenLine(reader), 30))
    offer = client.call(AskOffer(reader, list(range(len(LIKE))), None, None, 30), 60)
    assert offer is not None
    if how == "stop":
        where = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        abstract = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where) for x in LIKE.values()]
        arriving = connection.pull(offer.uuid, abstract)
        os.kill(os.getpid(), signal.SIGSTOP)
        del arriving
    say("asked")
    time.sleep(1000)


def join(index: int, coordinator: str, spec: PartitionSpec) -> dict:
    """Joins a program of two processes; returns its parameters' shapes and shardings."""
    jax.config.update("jax_num_cpu_devices", 2)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(coordinator, 2, index)
    mesh = jax.make_mesh((2, 2), ("a", "b"))
    matrix = jax.ShapeDtypeStruct((1024, 512), jnp.float32, sharding=NamedSharding(mesh, spec))
    small = jax.ShapeDtypeStruct((8,), jnp.bfloat16, sharding=NamedSharding(mesh, PartitionSpec()))
    return {"large": matrix, "small": small}


def train_together(index: str, coordinator: str) -> None:
    abstract = join(int(index), coordinator, PartitionSpec(("a", "b")))

    def fill(x):
        return jnp.arange(x.size).reshape(x.shape).astype(x.dtype)

    make = jax.jit(
        lambda: jax.tree.map(fill, abstract),
        out_shardings=jax.tree.map(lambda x: x.sharding, abstract),
    )
    publisher = publisher_of(abstract)
    publisher.publish(5, make())
    say(publisher.address)
    time.sleep(1000)


def explore_together(index: str, coordinator: str, addresses: str) -> None:
    abstract = join(int(index), coordinator, PartitionSpec(None, "a"))
    puller = puller_of(abstract, f"explorer1.{index}", addresses)
    version, params = puller.pull(exactly=5, timeout_secs=60)
    mine = [np.asarray(shard.data).sum() for shard in params["large"].addressable_shards]
    say(version, *map(float, mine), float(params["small"].addressable_data(0)[7]))
    time.sleep(1000)  # It is killed: a cluster's processes would wait for each other.


if __name__ == "__main__":
    roles = {
        "trainer": train,
        "explorer": explore,
        "trainers": train_together,
        "explorers": explore_together,
    }
    roles[sys.argv[1]](*sys.argv[2:])
