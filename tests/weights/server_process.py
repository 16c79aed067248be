"""One process of a point-to-point transfer; `test_server_processes.py` starts it.

    server_process.py trainer
    server_process.py explorer READER ADDRESS pull | stop | ask

The trainer publishes version 0, and writes its address. An explorer writes the digest that it
pulled; or stands still as soon as it has begun to fetch; or has asked and never fetches.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import jax
import jax.numpy as jnp

from rl_sync.runtime.serving import HolderServer, RemoteHolder
from rl_sync.weights.digest import digest
from rl_sync.weights.server_publisher import ServerPublisher
from rl_sync.weights.server_puller import ServerPuller
from rl_sync.weights.server_transport import start_server

HOST = "127.0.0.1"
# Large enough that the C library gives their memory back to the system when they are freed.
LIKE = {f"w{i}": jax.ShapeDtypeStruct((10 << 20,), jnp.float32) for i in range(2)}


def make_params(version: int) -> dict:
    return {name: jnp.full(leaf.shape, version, leaf.dtype) for name, leaf in LIKE.items()}


def train() -> None:
    publisher = ServerPublisher(LIKE, host=HOST)
    publisher.publish(0, make_params(0))
    print(HolderServer(publisher, HOST).address, flush=True)
    time.sleep(1000)


def explore(reader: str, address: str, how: str) -> None:
    holder = RemoteHolder(address, call_secs=30)
    if how == "pull":
        puller = ServerPuller(LIKE, reader, lambda: [holder], lambda: 0, host=HOST)
        version, params = puller.pull(timeout_secs=30)
        print(version, digest(params), flush=True)
        return
    server = start_server(HOST)
    connection = server.connect(holder.open(reader))
    offer = holder.offer(reader, list(range(len(LIKE))), None, None, 30)
    assert offer is not None
    if how == "stop":
        where = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        like = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where) for x in LIKE.values()]
        arriving = connection.pull(offer[1], like)
        os.kill(os.getpid(), signal.SIGSTOP)
        del arriving
    print("asked", flush=True)
    time.sleep(1000)


if __name__ == "__main__":
    train() if sys.argv[1] == "trainer" else explore(*sys.argv[2:])
