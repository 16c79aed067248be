"""Comparison of a checkpoint with the digests of the tensors that an engine holds.

vLLM joins tensors of a checkpoint: the kernels of queries, keys and values, and those of an MLP's
gate and its upward projection. It pads vocabularies with rows of zeros. What it has packed for a
processor's own kernels has no bytes left to read, and what it has cut over several devices is not
joined again: these tensors are counted as unread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from rl_sync.models.huggingface.reading import TensorFiles

_JOINED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
_PADDED = ("embed_tokens.weight", "lm_head.weight")
_VOCABULARY_MULTIPLE = 64
_NOTHING = hashlib.sha256().hexdigest()
_ONE_DEVICE = ":tp0:"
_DTYPES = ("float32", "bfloat16", "float16")


class HeldTensors(NamedTuple):
    """Result of a comparison.

    Attributes:
      equal: number of tensors that the engine holds as they are in the checkpoint.
      differing: names of those that it holds otherwise.
      missing: names of tensors of the checkpoint that the engine lacks.
      unread: number of tensors whose bytes the engine does not show.
      dtype: dtype in which the engine holds them; None if it shows none.
    """

    equal: int
    differing: tuple[str, ...]
    missing: tuple[str, ...]
    unread: int
    dtype: str | None


def compare(checkpoint: Path, digests: Mapping[str, str]) -> HeldTensors:
    """Compares a checkpoint with the digests of an engine, to the bit.

    Args:
      checkpoint: directory of safetensors files.
      digests: SHA-256 of the bytes of each tensor, by the engine's own names, which begin with the
        device's place, such as `dp0:pp0:pcp0:tp0:`.
    """
    tensors = TensorFiles(checkpoint)
    of_name = [(key.rpartition(":")[2], key, digest) for key, digest in digests.items()]
    is_cut = any(_ONE_DEVICE not in key for _, key, _ in of_name)
    sources = {name: _sources(name, tensors.names) for name, _, _ in of_name}
    found = {source for of in sources.values() for source in of}
    readable = [
        (name, digest)
        for name, _, digest in of_name
        if sources[name] and digest != _NOTHING and not is_cut
    ]
    dtype = _dtype(tensors, readable, sources)
    differing = [
        name
        for name, digest in readable
        if digest not in _digests(tensors, name, sources[name], dtype or _DTYPES[0])
    ]
    return HeldTensors(
        equal=len(readable) - len(differing),
        differing=tuple(differing),
        # An engine has an output kernel of its own only where it is not the embedding.
        missing=tuple(sorted(tensors.names - found - {"lm_head.weight"})),
        unread=len(digests) - len(readable),
        dtype=dtype,
    )


def _sources(name: str, names: set[str]) -> tuple[str, ...]:
    """Returns the checkpoint's tensors that make one of the engine's, in their order."""
    for whole, parts in _JOINED.items():
        if f".{whole}." in name:
            made = tuple(name.replace(f".{whole}.", f".{part}.") for part in parts)
            return made if names.issuperset(made) else ()
    return (name,) if name in names else ()


def _dtype(
    tensors: TensorFiles,
    readable: list[tuple[str, str]],
    sources: Mapping[str, tuple[str, ...]],
) -> str | None:
    """Returns the dtype in which the most tensors are equal, of those that are quick to read."""
    few = [one for one in readable if len(tensors.shape(sources[one[0]][0])) == 1] or readable[:1]
    equal = {
        dtype: sum(digest in _digests(tensors, name, sources[name], dtype) for name, digest in few)
        for dtype in _DTYPES
    }
    best = max(equal, key=lambda dtype: equal[dtype])
    return best if equal[best] else None


def _digests(tensors: TensorFiles, name: str, parts: tuple[str, ...], dtype: str) -> Iterator[str]:
    """Yields the digests that the engine's tensor may have: as it is, and with padded rows."""
    values = [tensors.read_whole(part) for part in parts]
    whole = np.concatenate(values).astype(jnp.dtype(dtype))
    yield _digest(whole)
    if name.endswith(_PADDED) and (rows := -len(whole) % _VOCABULARY_MULTIPLE):
        yield _digest(np.pad(whole, ((0, rows), (0, 0))))


def _digest(values: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(values).view(np.uint8).data).hexdigest()
