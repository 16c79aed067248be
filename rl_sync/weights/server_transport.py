"""JAX's transfer server, behind one door: starting it, reaching it, waiting for what it brings.

What one must know of it (jax 0.10 to 0.12): without transport addresses of its own a server ends
the process as soon as somebody pulls. A registered array can be fetched once, and stays in memory
until it is, or until the server is gone. All peers of a server share its buffers, so that one which
stands still in the middle of a transfer holds up the others: give each peer its own server. Its
time-outs do nothing; nothing checks that a shape or a dtype is the registered one.
"""

from __future__ import annotations

import time
from typing import Any

import jax

from rl_sync.weights.interface import TransferUnavailableError, WeightsTransferError

_CHUNK_BYTES = 1 << 20
_CHUNKS = 16
_STREAMS = 2
_POLL_SECS = 0.001


def start_server(host: str) -> Any:
    """Starts a transfer server on free ports.

    Args:
      host: the interface to listen on, as the peers reach it.

    Raises:
      TransferUnavailableError: there is none here; says why.
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
            # A CPU's memory is sent from where it is.
            device.platform == "cpu",
        )
    except (ImportError, AttributeError, TypeError, RuntimeError, ValueError) as error:
        raise TransferUnavailableError(
            f"jax {jax.__version__} has no transfer server on {device.platform}:"
            f" {type(error).__name__}: {error}"
        ) from error


def wait_ready(array: Any, stall_secs: float, from_whom: str) -> None:
    """Waits until a pulled array is there, those that were asked for before it being there already.

    Args:
      array: what `pull` returned.
      stall_secs: how long to wait.
      from_whom: names the peer in errors.

    Raises:
      WeightsTransferError: the connection broke, or nothing arrives any more.
    """
    start = time.monotonic()
    while not array.is_ready():
        if time.monotonic() - start > stall_secs:
            raise WeightsTransferError(
                f"Nothing has arrived from {from_whom} for {stall_secs:g} s, so the transfer is"
                " given up: that process stands still, or the network to it is gone."
            )
        time.sleep(_POLL_SECS)
    try:
        array.block_until_ready()
    except jax.errors.JaxRuntimeError as error:
        raise WeightsTransferError(
            f"The transfer from {from_whom} broke; that process has probably died: {error}"
        ) from error
