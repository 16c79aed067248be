"""Weights on their way: copies, digests, and the project's transfers in one process."""

from __future__ import annotations

import collections
import functools
import queue
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from device_parts.finding import CheckFailedError, Finding, PartOptions, median
from device_parts.model_shape import random_weights, shape_directory
from device_parts.peak_rates import peak_rates, seconds
from rl_sync.models.huggingface.reading import load_config
from rl_sync.models.placement import abstract_params, cast_abstract
from rl_sync.models.sharding import Layout
from rl_sync.plan.memory import model_memory
from rl_sync.transfers.trainer_processes import TrainerContact
from rl_sync.types import Params
from rl_sync.weights.cells import mesh_regions
from rl_sync.weights.copies import copied, on_host
from rl_sync.weights.deltas.device_changes import device_changes, fetched, runs_needed
from rl_sync.weights.deltas.encoding import ChangedElements
from rl_sync.weights.digest import digest

_HOST, _SECRET = "127.0.0.1", "only ours"
_TIMEOUT_SECS = 60.0
_ROUNDS = 3
_SHARES = (1.0, 0.03)
_GOLDEN = 0x9E3779B1


def measure(options: PartOptions) -> Iterator[Finding]:
    """Measures copies, comparisons, digests, and each transfer from `publish` to the end of `pull`.

    Raises:
      CheckFailedError: a transfer failed.
    """
    path = Path(shape_directory("qwen2.5-0.5b", options.small))
    config = load_config(path)
    abstract = cast_abstract(abstract_params(config, Layout.single()), "bfloat16")
    params = random_weights(abstract)
    nbytes = model_memory.tree_bytes(abstract)
    yield Finding("weights", nbytes / 1e9, "GB", f"{len(jax.tree.leaves(abstract))} arrays")
    yield from _copies(params, nbytes)
    yield from _compared(params, nbytes)
    wrong = []
    for name, transfer in _TRANSFERS.items():
        try:
            yield from transfer(params, abstract, nbytes)
        except Exception as error:  # Each transfer fails on its own.
            first = (str(error).splitlines() or [""])[0][:200]
            yield Finding(name, "failed", beside=f"{type(error).__name__}: {first}")
            wrong.append(name)
    if wrong:
        raise CheckFailedError(f"failed: {', '.join(wrong)}")


def _copies(params: Params, nbytes: int) -> Iterator[Finding]:
    peaks = peak_rates()
    copy = min(seconds(lambda: copied(params), _ROUNDS))
    share = 2 * nbytes / copy / peaks.bandwidth
    yield Finding(
        "device to device", nbytes / copy / 1e9, "GB/s", f"{share:.0%} of {peaks.source}, both ways"
    )
    placed = jax.tree.map(lambda x: x.sharding, params)
    there = []
    for _ in range(_ROUNDS):
        fresh = jax.block_until_ready(copied(params))  # A host copy of an array is kept by it.
        started = time.perf_counter()
        host = jax.device_get(fresh)
        there.append(time.perf_counter() - started)
    yield Finding("device to host", nbytes / min(there) / 1e9, "GB/s")
    for name, pinned in (("pageable", False), ("pinned", True)):
        there = []
        for _ in range(_ROUNDS):
            fresh = jax.block_until_ready(copied(params))
            started = time.perf_counter()
            collections.deque(on_host(jax.tree.leaves(fresh), pinned=pinned), maxlen=0)
            there.append(time.perf_counter() - started)
        rate = nbytes / min(there) / 1e9
        yield Finding(f"device to host, several at a time, {name} memory", rate, "GB/s")
    back = min(seconds(lambda: jax.device_put(host, placed), _ROUNDS))
    yield Finding("host to device", nbytes / back / 1e9, "GB/s")
    secs = min(seconds(lambda: digest(params), _ROUNDS))
    yield Finding("digest", 1e3 * secs, "ms", f"{nbytes / secs / 1e9:.3g} GB/s")


def _compared(params: Params, nbytes: int) -> Iterator[Finding]:
    """Compares versions on the device, and fetches what changed, as deltas on GPUs do."""
    base = dict(enumerate(jax.tree.leaves(params)))
    for share in _SHARES[::-1]:
        new = dict(enumerate(jax.tree.leaves(_changed(params, share, 0))))
        runs = runs_needed(new, fetched(new, device_changes(new, base, {})))
        compared = seconds(functools.partial(device_changes, new, base, runs), _ROUNDS)
        there = []
        for _ in range(_ROUNDS):
            fresh = jax.block_until_ready(copied(new))
            changes = jax.block_until_ready(device_changes(fresh, base, runs))
            started = time.perf_counter()
            found = fetched(fresh, changes)
            there.append(time.perf_counter() - started)
        crossed = sum(
            one.mask.nbytes + one.values.nbytes if isinstance(one, ChangedElements) else one.nbytes
            for one in found.values()
        )
        yield Finding(
            f"compared on the device: {share:.0%} of values changed",
            1e3 * min(compared),
            "ms",
            f"{2 * nbytes / min(compared) / 1e9:.3g} GB/s; {crossed / nbytes:.1%} of the bytes to"
            f" the host in {1e3 * min(there):.3g} ms",
        )


def _local(params: Params, abstract: Params, nbytes: int) -> Iterator[Finding]:
    from rl_sync.transfers.local import LocalPublisher, LocalPuller

    publisher = LocalPublisher(1, keep=1)
    puller = LocalPuller(publisher, abstract, 1)
    yield _timed("local", publisher.publish, puller.pull, params, nbytes)
    publisher.close()


def _checkpoint(params: Params, abstract: Params, nbytes: int) -> Iterator[Finding]:
    from rl_sync.transfers.checkpoint import CheckpointPublisher, CheckpointPuller

    with tempfile.TemporaryDirectory() as folder:
        expected = mesh_regions(abstract)
        publisher = CheckpointPublisher(
            Path(folder), abstract, run="device", chain="device", deltas=False, expected=expected
        )
        puller = CheckpointPuller(Path(folder), abstract, run="device", deltas=False)
        yield _timed("checkpoint", publisher.publish, puller.pull, params, nbytes)
        puller.close()
        publisher.close()


def _deltas(params: Params, abstract: Params, nbytes: int) -> Iterator[Finding]:
    from rl_sync.transfers.server_delta_publisher import DeltaPublisher
    from rl_sync.transfers.server_deltas import DeltaPuller

    added: queue.SimpleQueue[float] = queue.SimpleQueue()
    publisher = DeltaPublisher(
        abstract,
        host=_HOST,
        secret=_SECRET,
        chain="device",
        expected=mesh_regions(abstract),
        on_added=lambda version, one: added.put(one.encode_secs),
    )
    puller = DeltaPuller(abstract, _contact(publisher.address))
    version = 0
    for share in (None, *_SHARES):
        rows = []
        for _ in range(1 if share is None else _ROUNDS):
            if share is not None:
                params = jax.block_until_ready(_changed(params, share, version))
            started = time.perf_counter()
            publisher.publish(version, params)
            blocked = time.perf_counter() - started
            _, pulled = puller.pull(exactly=version, timeout_secs=_TIMEOUT_SECS)
            jax.block_until_ready(pulled)
            secs = time.perf_counter() - started
            sent = puller.stats.received_bytes / nbytes if puller.stats else 1.0
            rows.append((secs, blocked, added.get(timeout=_TIMEOUT_SECS), sent))
            version += 1
        secs, blocked, encode, sent = (median([*column]) for column in zip(*rows, strict=True))
        name = "deltas: a full copy" if share is None else f"deltas: {share:.0%} of values changed"
        yield Finding(
            name,
            secs,
            "s",
            f"publish blocks for {1e3 * blocked:.3g} ms, encoding {encode:.3g} s,"
            f" {sent:.1%} of the bytes",
        )
    if digest(pulled) != digest(params):
        raise CheckFailedError("the pulled weights are others than the published ones")
    puller.close()
    publisher.close()


def _server(params: Params, abstract: Params, nbytes: int) -> Iterator[Finding]:
    from rl_sync.transfers.server import ServerPuller
    from rl_sync.transfers.server_publisher import ServerPublisher

    there = mesh_regions(abstract)
    publisher = ServerPublisher(abstract, host=_HOST, secret=_SECRET, expected=there)
    puller = ServerPuller(abstract, _contact(publisher.address), host=_HOST)
    yield _timed("server", publisher.publish, puller.pull, params, nbytes)
    puller.close()
    publisher.close()


def _contact(address: str) -> TrainerContact:
    """Returns the way to a trainer of one process."""
    return TrainerContact(
        "explorer1.0", lambda: [address], _asked, _SECRET, call_secs=_TIMEOUT_SECS
    )


def _asked(at_least: int, timeout_secs: float) -> int:
    """Returns the wanted version as the newest: pulls are requested after publication."""
    return at_least


_TRANSFERS: dict[str, Callable[[Params, Params, int], Iterator[Finding]]] = {
    "local": _local,
    "deltas": _deltas,
    "checkpoint": _checkpoint,
    "server": _server,
}


def _timed(
    name: str,
    publish: Callable[[int, Params], None],
    pull: Callable[..., tuple[int, Params]],
    params: Params,
    nbytes: int,
) -> Finding:
    """Times versions from `publish` to the end of `pull`, without the first, which compiles."""
    rows = []
    for version in range(_ROUNDS + 1):
        started = time.perf_counter()
        publish(version, params)
        blocked = time.perf_counter() - started
        _, pulled = pull(exactly=version, timeout_secs=_TIMEOUT_SECS)
        jax.block_until_ready(pulled)
        rows.append((time.perf_counter() - started, blocked))
    secs, blocked = (median([*column]) for column in zip(*rows[1:], strict=True))
    return Finding(
        f"{name}: from publish to pull",
        secs,
        "s",
        f"{nbytes / secs / 1e9:.3g} GB/s; publish blocks for {1e3 * blocked:.3g} ms",
    )


def _changed(params: Params, share: float, salt: int) -> Params:
    """Moves a share of the values by one unit in the last place, each by itself."""
    below = jnp.uint32(share * 0xFFFFFFFF)
    return jax.tree.map(lambda x: _moved(x, below, jnp.uint32(salt)), params)


@jax.jit
def _moved(x: Any, below: Any, salt: Any) -> Any:
    bits = lax.iota(jnp.uint32, x.size).reshape(x.shape) * jnp.uint32(_GOLDEN) + salt
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x85EBCA6B)
    bits ^= bits >> 13
    is_up = (bits * jnp.uint32(_GOLDEN)) >> 31 == 0
    values = lax.bitcast_convert_type(x, jnp.uint16)
    moved = jnp.where(is_up, values + jnp.uint16(1), values - jnp.uint16(1))
    return jnp.where(bits <= below, lax.bitcast_convert_type(moved, x.dtype), x)
