"""Versions of small parameters, and differences between them, for tests."""

from __future__ import annotations

import hashlib
from functools import partial

import numpy as np

from rl_sync.weights.deltas.history import VersionHistory

BLOCK = 512
"""Size of a block in tests; so parts of a few thousand bytes have several."""

SIZES = {0: 1600, 1: 2, 2: 512, 3: 0, 4: 1030, 5: 1096}
"""Bytes of each part: one element, none, whole blocks, and others."""
ITEMSIZES = {0: 2, 1: 2, 2: 1, 3: 4, 4: 2, 5: 8}
DENSE = sum(SIZES.values())

UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def parts_of(seed: int) -> dict[int, np.ndarray]:
    """Returns parts with bytes that no encoding makes smaller."""
    rng = np.random.default_rng(seed)
    return {part: rng.integers(0, 256, size, np.uint8) for part, size in SIZES.items()}


def with_changes(parts, seed: int, share: float) -> dict[int, np.ndarray]:
    """Returns new parts in which about a share of the elements differ in their last bit."""
    rng = np.random.default_rng(seed)
    new = {}
    for part, content in parts.items():
        elements = content.copy().view(UNSIGNED[ITEMSIZES[part]])
        elements[rng.random(len(elements)) < share] ^= 1
        new[part] = elements.view(np.uint8)
    return new


def digest_of(parts) -> str:
    return hashlib.sha256(b"".join(parts[part].tobytes() for part in sorted(parts))).hexdigest()


def same(one, other) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[k], other[k]) for k in one)


def history_of(*versions, chain="chain", keep=1, first=0) -> VersionHistory:
    """Returns the history of a sender that has published these versions, each as its parts."""
    history = VersionHistory(chain, 0, ITEMSIZES, keep)
    for number, parts in enumerate(versions, first):
        history.add(number, partial(digest_of, parts), parts)
    return history


def steps(count: int, share: float = 0.05) -> list[dict[int, np.ndarray]]:
    """Returns parts of some versions, each with a few changes to the one before it."""
    made = [parts_of(0)]
    while len(made) < count:
        made.append(with_changes(made[-1], len(made), share))
    return made
