"""JAX's transfer server behind one module: start it, connect to it, wait for its arrays.

In jax 0.10 to 0.12 it behaves as follows. A server without transport addresses of its own crashes
the process at the first pull. A registered array can be fetched once; it stays in memory until
then, or until the server is gone. All peers of a server share its buffers, so a peer that gets
stuck in a transfer blocks the others: give each peer its own server. Its time-outs have no effect.
It does not check that a requested shape or dtype is the registered one.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import jax

from rl_sync.weights.ends_interface import TransferUnavailableError, WeightsTransferError

if TYPE_CHECKING:
    from jax.experimental.transfer import TransferServer  # Not every version of JAX has it.

_CHUNK_BYTES = 1 << 20
_CHUNKS = 16
_STREAMS = 2
_POLL_SECS = 0.001


def start_server(host: str) -> TransferServer:
    """Starts a transfer server on free ports.

    Args:
      host: interface to listen on, as the peers reach it.

    Raises:
      TransferUnavailableError: this JAX or backend has none; the message says why.
    """
    device = jax.local_devices()[0]
    address = f"[{host}]:0" if ":" in host else f"{host}:0"
    try:
        from jax.experimental.transfer import start_transfer_server

        return start_transfer_server(
            device.client,
            address,
            [address] * _STREAMS,
            _CHUNKS,
            _CHUNK_BYTES,
            False,
            # On a CPU, memory is sent without a copy.
            device.platform == "cpu",
        )
    except (ImportError, AttributeError, TypeError, RuntimeError, ValueError) as error:
        raise TransferUnavailableError(
            f"jax {jax.__version__} has no transfer server on {device.platform}:"
            f" {type(error).__name__}: {error}"
        ) from error


def wait_ready(array: Any, stall_secs: float, from_whom: str) -> None:
    """Waits until a pulled array has arrived; wait for earlier requests first.

    Args:
      array: the array that `pull` returned; its type does not declare `is_ready`.
      stall_secs: maximum time without progress.
      from_whom: name of the peer in errors.

    Raises:
      WeightsTransferError: the connection broke, or the transfer makes no progress.
    """
    start = time.monotonic()
    while not array.is_ready():
        if time.monotonic() - start > stall_secs:
            raise WeightsTransferError(
                f"Nothing has arrived from {from_whom} for {stall_secs:g} s, so the transfer is"
                " given up: that process hangs, or the network to it is down."
            )
        time.sleep(_POLL_SECS)
    try:
        array.block_until_ready()
    except jax.errors.JaxRuntimeError as error:
        raise WeightsTransferError(
            f"The transfer from {from_whom} broke; that process has probably died: {error}"
        ) from error
