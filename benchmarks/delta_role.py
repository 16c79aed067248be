"""One process of `benchmarks/delta.py`: a trainer, an explorer, or a receiver without parameters.

    delta_role.py '[PLACE]'

It says the address that it answers at. Then it answers each line on standard input, a function's
name and its arguments, with a line of JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from weights_role import SECRET, TIMEOUT_SECS, Case, like_of, resident_bytes

RUN_BITS = {"scattered": 0, "clustered": 10}
"""How changed values lie: each by itself, or in runs of 1024. Lengths as powers of two."""

_GOLDEN = 0x9E3779B1
_STALL_SECS = 60.0  # As in a run.


class Place(NamedTuple):
    """Task of a process, and its place.

    Attributes:
      role: `trainer`, `explorer` or `receiver`.
      name: name that no other process has.
      transfer: `delta`, or `dense` for a server transfer of whole versions.
      megabytes, leaves: size of the weights, and number of arrays.
      host: address of its host.
      publisher: address of the trainer's publisher, for those that fetch.
    """

    role: str
    name: str
    transfer: str
    megabytes: int
    leaves: int
    host: str
    publisher: str = ""


Actions = dict[str, Callable[..., dict[str, Any]]]


def take_part(place: Place) -> None:
    """Answers requests from standard input."""
    # Libraries write to standard output too.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    roles = {"trainer": trainer_actions, "explorer": explorer_actions, "receiver": receiver_actions}
    address, actions = roles[place.role](place)
    print(json.dumps(address), file=answers, flush=True)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(actions[name](*arguments)), file=answers, flush=True)
    os._exit(0)  # Otherwise threads that serve would be waited for.


def like(place: Place) -> Any:
    return like_of(Case("server", place.megabytes, place.leaves, "bfloat16", "one", 1), 0)


def trainer_actions(place: Place) -> tuple[str, Actions]:
    """Returns the publisher's address, and what the trainer does."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    from rl_sync.transfers.server_delta_publisher import DeltaPublisher
    from rl_sync.transfers.server_publisher import ServerPublisher
    from rl_sync.weights.cells import mesh_regions

    abstract = like(place)
    before = resident_bytes()

    def mixed(x: Any, salt: Any) -> Any:
        x = x * jnp.uint32(_GOLDEN) + salt
        x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
        x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
        return x ^ (x >> 16)

    def stepped(leaf: Any, salt: Any, below: Any, run_bits: Any) -> Any:
        """Moves chosen values up or down by one unit in the last place."""
        place = lax.iota(jnp.uint32, leaf.size).reshape(leaf.shape)
        chosen = mixed(place >> run_bits, salt) <= below
        up = mixed(place, salt + 1) & 1 == 0
        bits = lax.bitcast_convert_type(leaf, jnp.uint16)
        moved = jnp.where(up, bits + jnp.uint16(1), bits - jnp.uint16(1))
        return lax.bitcast_convert_type(jnp.where(chosen, moved, bits), leaf.dtype)

    def first(key: Any, leaf: Any) -> Any:
        return (0.02 * jax.random.normal(key, leaf.shape)).astype(leaf.dtype)

    step = jax.jit(stepped, donate_argnums=0)
    begin = jax.jit(first, static_argnums=1)
    keys = jax.random.split(jax.random.key(0), len(abstract))
    params = {
        name: jax.block_until_ready(begin(key, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)))
        for key, (name, leaf) in zip(keys, abstract.items(), strict=True)
    }
    offered: queue.SimpleQueue[tuple[float, float]] = queue.SimpleQueue()
    ends: dict[str, Any] = {
        "host": place.host,
        "secret": SECRET,
        "expected": mesh_regions(abstract),
    }
    publisher: DeltaPublisher | ServerPublisher
    if place.transfer == "delta":
        publisher = DeltaPublisher(
            abstract,
            **ends,
            chain="benchmark",
            on_added=lambda version, added: offered.put((time.time(), added.encode_secs)),
        )
    else:
        publisher = ServerPublisher(
            abstract, **ends, on_ready=lambda version: offered.put((time.time(), 0.0))
        )

    def publish(version: int, share: float, pattern: str) -> dict[str, Any]:
        nonlocal params
        below = jnp.uint32(share * 0xFFFFFFFF)
        salts = range(version * 1000, version * 1000 + len(params))
        params = {
            name: step(leaf, jnp.uint32(salt), below, jnp.uint32(RUN_BITS[pattern]))
            for salt, (name, leaf) in zip(salts, params.items(), strict=True)
        }
        jax.block_until_ready(params)
        forget_peak()
        start = time.time()
        publisher.publish(version, params)
        blocked = time.time() - start
        at, encode = offered.get(timeout=TIMEOUT_SECS)
        cut = at - encode - start
        return {"start": start, "blocked": blocked, "cut": cut, "encode": encode}

    return publisher.address, {
        "publish": publish,
        "peak": lambda: {"peak": (peak_bytes() - before) / (place.megabytes * 10**6)},
    }


def explorer_actions(place: Place) -> tuple[str, Actions]:
    """Returns no address, and what the explorer does."""
    import jax

    from rl_sync.transfers.server import ServerPuller
    from rl_sync.transfers.server_deltas import DeltaPuller
    from rl_sync.transfers.trainer_processes import TrainerContact

    abstract, weights = like(place), None
    before = resident_bytes()
    trainer = TrainerContact(
        place.name, lambda: [place.publisher], _asked, SECRET, call_secs=TIMEOUT_SECS
    )
    puller: DeltaPuller | ServerPuller
    if place.transfer == "delta":
        puller = DeltaPuller(abstract, trainer)
    else:
        puller = ServerPuller(abstract, trainer, host=place.host)

    def pull(version: int) -> dict[str, Any]:
        nonlocal weights
        forget_peak()
        _, weights = puller.pull(exactly=version, timeout_secs=TIMEOUT_SECS)
        jax.block_until_ready(weights)
        end = time.time()
        peak = (peak_bytes() - before) / (place.megabytes * 10**6)
        stats = puller.stats if isinstance(puller, DeltaPuller) else None
        return {"end": end, "peak": peak, "stats": stats._asdict() if stats else {}}

    return "", {"pull": pull}


def receiver_actions(place: Place) -> tuple[str, Actions]:
    """Returns the address for others, and what a receiver does, which keeps blocks as they are."""
    from rl_sync.cluster.rpc import CallHandlers, RpcClient, RpcServer
    from rl_sync.transfers.server_delta_publisher import (
        Acknowledge,
        AskArtifact,
        AskUpdate,
        FetchBlocks,
        RpcSource,
    )
    from rl_sync.weights.deltas.block_cache import BlockCache

    trainer = RpcClient(place.publisher, "trainer", SECRET)
    sources: list[RpcSource] = []
    cache: BlockCache

    def begin(path: list[tuple[str, str]]) -> dict[str, Any]:
        """Begins with an empty cache, which asks the processes of a path before the trainer."""
        nonlocal cache, sources
        for source in sources:
            source.close()
        chain = [*path, ("trainer", place.publisher)]
        sources = [RpcSource(name, address, SECRET, _STALL_SECS) for name, address in chain]
        cache = BlockCache(
            place.name,
            lambda key: sources,
            lambda key: trainer.call(AskArtifact(key), TIMEOUT_SECS),
            most_bytes=place.megabytes * 10**6,
        )
        return {}

    def pull(version: int) -> dict[str, Any]:
        ask = AskUpdate(place.name, None, version, None, TIMEOUT_SECS)
        update = trainer.call(ask, 2 * TIMEOUT_SECS)
        assert update is not None, "the trainer is late"
        payloads = cache.fetch(update.route, list(update.route[0].parts))
        end = time.time()
        cache.release()
        trainer.call(Acknowledge(place.name, version), TIMEOUT_SECS)
        return {"end": end, "bytes": sum(map(len, payloads.values())), "streams": cache.streams}

    def hand_on(call: FetchBlocks) -> list[bytes]:
        return [bytes(payload) for payload in cache.get(call.names, call.via)]

    server = RpcServer(
        CallHandlers(FetchBlocks.answered_by(hand_on)), 0, place.host, threads=64, secret=SECRET
    )
    return f"{place.host}:{server.port}", {"begin": begin, "pull": pull}


def _asked(at_least: int, _timeout_secs: float) -> int:
    """Returns the wanted version as the newest: pulls are requested with publication."""
    return at_least


def forget_peak() -> None:
    """Lets the peak of the memory begin at what is used now, where the system can do that."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int:
    """Returns the largest resident memory since `forget_peak`; Linux only."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (found,) = [line for line in lines if line.startswith("VmHWM:")]
    return int(found.split()[1]) << 10


if __name__ == "__main__":
    take_part(Place(*json.loads(sys.argv[1])))
