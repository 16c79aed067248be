"""Fetches a checkpoint's tensors from an explorer: those that are not held, as differences."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote

import numpy as np
import requests

from rl_sync_vllm.encoding import BLOCK_BYTES, Bytes, EncodingError, decode

_BLOCK = struct.Struct("<BI")
_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_TIMEOUT_SECS = 60.0


class FetchError(RuntimeError):
    """A checkpoint could not be fetched, or is not what it claims to be."""


class HeldTensor(NamedTuple):
    """A tensor in the host's memory.

    Attributes:
      dtype: its dtype.
      shape: its shape.
      sha256: SHA-256 of its bytes.
      content: its bytes, in row-major order.
    """

    dtype: str
    shape: tuple[int, ...]
    sha256: str
    content: Bytes


def fetch(url: str, key: str, held: Mapping[str, HeldTensor]) -> dict[str, HeldTensor]:
    """Returns all tensors of a checkpoint, verified.

    Args:
      url: address of the explorer's desk, with its secret.
      key: name of the checkpoint there.
      held: tensors of an older checkpoint, which stay as they are.

    Raises:
      FetchError: the desk does not answer, offers another checkpoint, or a tensor is damaged.
    """
    with requests.Session() as session:
        session.trust_env = False  # The explorer is no matter of a proxy.
        try:
            listed = _get(session, f"{url}/{key}").json()
            return {
                name: _tensor(
                    session, f"{url}/{key}/{quote(name, safe='')}", held.get(name), *entry
                )
                for name, entry in listed.items()
            }
        except (requests.RequestException, EncodingError, struct.error) as error:
            raise FetchError(f"{type(error).__name__}: {error}".replace(url, "the desk")) from error


def report(url: str, key: str, worker: int, workers: int, error: str) -> None:
    """Tells the desk that a worker has a checkpoint, or why it has not."""
    told: dict[str, str | int] = {"worker": worker, "workers": workers, "error": error}
    with requests.Session() as session:
        session.trust_env = False
        session.post(f"{url}/{key}/held", json=told, timeout=_TIMEOUT_SECS)


def _get(session: requests.Session, path: str, **asked: str) -> requests.Response:
    response = session.get(path, params=asked, timeout=_TIMEOUT_SECS)
    if response.status_code != 200:
        raise FetchError(f"the desk answers {response.status_code}: {response.text[:200]}")
    return response


def _tensor(
    session: requests.Session,
    path: str,
    held: HeldTensor | None,
    dtype: str,
    shape: list[int],
    sha256: str,
) -> HeldTensor:
    if held is not None and (held.sha256, held.shape) == (sha256, (*shape,)):
        return held
    nbytes = _ITEM_BYTES[dtype] * math.prod(shape)
    bases = (
        [held] if held is not None and (held.dtype, held.content.size) == (dtype, nbytes) else []
    )
    for base in (*bases, None):
        found = HeldTensor(dtype, (*shape,), sha256, _content(session, path, base, dtype, nbytes))
        if hashlib.sha256(found.content.data).hexdigest() == sha256:
            return found
    raise FetchError(f"{path.rpartition('/')[2]} arrives with another SHA-256 than {sha256}")


def _content(
    session: requests.Session, path: str, base: HeldTensor | None, dtype: str, nbytes: int
) -> Bytes:
    """Fetches a tensor's bytes, as a difference from a base or whole."""
    if base is None:
        content, asked = np.empty(nbytes, np.uint8), {}
    else:
        content, asked = base.content.copy(), {"held": base.sha256}
    body, at = memoryview(_get(session, path, **asked).content), 0
    for start in range(0, nbytes, BLOCK_BYTES):
        encoding, size = _BLOCK.unpack_from(body, at)
        at += _BLOCK.size
        block = content[start : start + BLOCK_BYTES]
        decode(encoding, body[at : at + size], block, _ITEM_BYTES[dtype])
        at += size
    return content
