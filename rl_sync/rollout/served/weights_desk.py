"""Serves an explorer's newest checkpoint to its engine, tensor by tensor, as what has changed.

The other side is the package `rl_sync_vllm`. All paths begin with a secret of the desk:

    GET  KEY                        the tensors: name → dtype, shape and SHA-256
    GET  KEY/NAME?held=SHA-256      the blocks of a tensor
    POST KEY/held                   a worker has them all (`worker`, `workers`), or an `error`

A block has a byte with its encoding (`rl_sync.weights.deltas.encoding`), its size (4 bytes,
little-endian) and its payload. Blocks are differences from the checkpoint before, if `held` is its
tensor, and whole otherwise.
"""

from __future__ import annotations

import hashlib
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rl_sync.addresses import address_of
from rl_sync.models.huggingface.reading import TensorFiles
from rl_sync.rollout.served.vllm_calls import EngineLostError
from rl_sync.weights.deltas.encoding import BLOCK_BYTES, Bytes, EncodedBlock, Encoding, encode

_BLOCK = struct.Struct("<BI")
_POLL_SECS = 0.05
SILENT_SECS = 5.0
"""Silence after which a worker is told again: its process may be a new one."""


class _OfferedCheckpoint(NamedTuple):
    """A checkpoint that can be fetched.

    Attributes:
      key: its name in paths.
      files: its tensors.
      digests: SHA-256 of each tensor's bytes.
    """

    key: str
    files: TensorFiles
    digests: dict[str, str]

    def values(self, name: str) -> np.ndarray:
        """Reads a tensor."""
        return self.files.read_whole(name)

    def listed(self) -> dict[str, tuple[str, tuple[int, ...], str]]:
        """Returns dtype, shape and digest of each tensor."""
        return {
            name: (self.files.dtype(name), self.files.shape(name), digest)
            for name, digest in self.digests.items()
        }


class WeightsDesk:
    """A server of checkpoints on a port of its own, until `close`.

    Args:
      host: address to listen at.

    Attributes:
      address: host and port.
      url: address for `order_fetch`, with the secret.
    """

    def __init__(self, host: str) -> None:
        self._secret = secrets.token_urlsafe(16)
        self._offers: tuple[_OfferedCheckpoint, ...] = ()
        self._held, self._errors, self._heard = set[int](), list[str](), time.monotonic()
        self._workers = 1
        self._sent_bytes = 0
        self._changed = threading.Condition()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family)
        port = self._listener.getsockname()[1]
        self.address = address_of(host, port)
        self.url = f"http://{self.address}/{self._secret}"
        below = f"/{self._secret}/{{key}}"
        routes = [
            Route(below, self._list),
            Route(f"{below}/held", self._hear, methods=["POST"]),
            Route(f"{below}/{{name}}", self._send),
        ]
        config = uvicorn.Config(Starlette(routes=routes), log_level="error", lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([self._listener],), daemon=True
        )
        self._thread.start()

    @property
    def sent_bytes(self) -> int:
        """Bytes of all blocks that were fetched."""
        return self._sent_bytes

    def offer(self, key: str, checkpoint: Path) -> None:
        """Offers a checkpoint; the one before is what differences are made from."""
        files = TensorFiles(checkpoint)
        offer = _OfferedCheckpoint(key, files, {})
        for name in sorted(files.names):
            offer.digests[name] = hashlib.sha256(_bytes(offer.values(name)).data).hexdigest()
        with self._changed:
            self._offers = (*self._offers[-1:], offer)
            self._held, self._errors = set(), []

    def wait(
        self,
        timeout_secs: float,
        tell: Callable[[], None],
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """Waits until each worker of the engine has the newest checkpoint.

        Args:
          timeout_secs: longest time without a request.
          tell: tells the engine to fetch it; repeated after a silence.
          meanwhile: called again and again.

        Raises:
          EngineLostError: a worker could not fetch it, or none asked for it in time.
        """
        told = self._heard = time.monotonic()
        tell()
        while not self._is_held(timeout_secs):
            meanwhile()
            if (now := time.monotonic()) - max(self._heard, told) > SILENT_SECS:
                told = now
                tell()

    def _is_held(self, timeout_secs: float) -> bool:
        """Says whether all workers have the newest checkpoint, after a moment if not."""
        with self._changed:
            is_held = len(self._held) >= self._workers
            if not is_held and not self._errors:
                self._changed.wait(_POLL_SECS)
            if self._errors:
                raise EngineLostError(f"it could not fetch its weights: {self._errors[0]}")
            if (silent := time.monotonic() - self._heard) > timeout_secs:
                raise EngineLostError(
                    f"it has fetched no weights from {self.address} for {silent:.0f} s: its machine"
                    " must reach this address"
                )
            return is_held

    def close(self) -> None:
        """Ends the server."""
        self._server.should_exit = True
        self._thread.join(SILENT_SECS)

    async def _list(self, request: Request) -> Response:
        offer = self._newest(request)
        if offer is None:
            return JSONResponse({"error": "it is no longer the newest"}, 404)
        return JSONResponse(await run_in_threadpool(offer.listed))

    async def _send(self, request: Request) -> Response:
        offer, name = self._newest(request), request.path_params["name"]
        if offer is None or name not in offer.digests:
            return JSONResponse({"error": "it is no longer the newest"}, 404)
        held = request.query_params.get("held", "")
        body = await run_in_threadpool(self._blocks, offer, name, held)
        self._sent_bytes += len(body)
        return Response(body, media_type="application/octet-stream")

    async def _hear(self, request: Request) -> Response:
        if self._newest(request) is not None:
            body = await request.json()
            with self._changed:
                self._workers = body["workers"]
                if error := body["error"]:
                    self._errors.append(error)
                else:
                    self._held.add(body["worker"])
                self._changed.notify_all()
        return JSONResponse({})

    def _newest(self, request: Request) -> _OfferedCheckpoint | None:
        """Returns the newest checkpoint if the request is for it."""
        with self._changed:
            self._heard = time.monotonic()
            offer = self._offers[-1] if self._offers else None
            return offer if offer and offer.key == request.path_params["key"] else None

    def _blocks(self, offer: _OfferedCheckpoint, name: str, held: str) -> bytes:
        """Returns the blocks of a tensor, for a worker that holds one of this digest."""
        before = next((o for o in self._offers if held and o.digests.get(name) == held), None)
        new = offer.values(name)
        base = before.values(name) if before is not None else None
        if base is not None and (base.shape, base.dtype) != (new.shape, new.dtype):
            base = None
        made = _encoded(_bytes(new), None if base is None else _bytes(base), new.dtype.itemsize)
        return b"".join(
            part
            for block in made
            for part in (_BLOCK.pack(block.encoding, len(block.payload)), block.payload)
        )


def _encoded(new: Bytes, base: Bytes | None, itemsize: int) -> Iterator[EncodedBlock]:
    for start in range(0, new.size, BLOCK_BYTES):
        block = new[start : start + BLOCK_BYTES]
        if base is None:
            yield EncodedBlock(Encoding.RAW, block.data, block.size)
        else:
            yield encode(block, base[start : start + BLOCK_BYTES], itemsize)


def _bytes(values: np.ndarray) -> Bytes:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)
