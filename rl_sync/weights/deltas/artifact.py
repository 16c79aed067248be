"""Artifacts: a full copy of a version, or its difference to an older one, as a list of blocks.

The list has the size and a check sum of each encoded block (`rl_sync.weights.deltas.encoding`). A
receiver gets the list from the trainer, and the blocks from whoever has them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import xxhash

from rl_sync.isolation.codec import record
from rl_sync.weights.deltas.encoding import Bytes, Encoding, EncodingError

FULL = -1
"""Base of a full copy."""


@record
class ArtifactKey(NamedTuple):
    """Name of an artifact.

    Attributes:
      chain: id of the publisher that made it, which changes when a trainer restarts: no version is
        built on one of another chain.
      version: policy version that it makes.
      base: version that it is applied to; `FULL` for none.
      holder: index of the trainer's process whose parts it has.
    """

    chain: str
    version: int
    base: int
    holder: int

    def __str__(self) -> str:
        return f"version {self.version}" + (f" from {self.base}" if self.base != FULL else "")


@record
class PartBlocks(NamedTuple):
    """The encoded blocks of one part of the parameters, in order.

    Attributes:
      encodings: an `Encoding` a byte.
      sizes: bytes of each payload.
      checks: check sum of each payload.
    """

    encodings: bytes
    sizes: list[int]
    checks: list[bytes]


@record
class Artifact(NamedTuple):
    """The list of an artifact's blocks.

    Attributes:
      key: its name.
      digest: digest of the version that it makes.
      base_digest: digest of the version that it is applied to; empty for a full copy.
      parts: blocks of each part, by the part's number in the manifest.
      changed: number of elements that differ from the base; of a full copy, all.
      elements: number of elements.
    """

    key: ArtifactKey
    digest: str
    base_digest: str
    parts: dict[int, PartBlocks]
    changed: int
    elements: int

    def nbytes(self, parts: Sequence[int] | None = None) -> int:
        """Returns the bytes of the payloads, of all parts or of some."""
        chosen = self.parts if parts is None else parts
        return sum(sum(self.parts[part].sizes) for part in chosen)

    def blocks(self, parts: Sequence[int]) -> Iterator[BlockName]:
        """Lists the blocks of some parts that have bytes."""
        for part in parts:
            for number, size in enumerate(self.parts[part].sizes):
                if size:
                    yield BlockName(self.key, part, number)


@record
class BlockName(NamedTuple):
    """Name of a block: its artifact, part, and number in the part."""

    key: ArtifactKey
    part: int
    number: int


@record
class HeldVersion(NamedTuple):
    """A version whose digest its holder has verified.

    Attributes:
      chain: see `ArtifactKey`.
      version: the version.
      digest: its digest.
    """

    chain: str
    version: int
    digest: str


def check_of(payload: bytes | memoryview) -> bytes:
    """Returns a check sum of 16 bytes, which guards against mistakes, not against an adversary."""
    return xxhash.xxh3_128_digest(payload)


def check_block(artifact: Artifact, name: BlockName, payload: bytes | memoryview) -> None:
    """Raises an EncodingError unless these are the listed bytes of a block."""
    blocks = artifact.parts[name.part]
    if len(payload) != blocks.sizes[name.number] or check_of(payload) != blocks.checks[name.number]:
        raise EncodingError(
            f"block {name.number} of part {name.part} of {artifact.key} is damaged: its check sum"
            " is wrong"
        )


def check_copy(artifact: Artifact, sizes: Mapping[int, int]) -> None:
    """Raises an EncodingError unless a full copy has the bytes of these parts as they are."""
    for part, size in sizes.items():
        blocks = artifact.parts.get(part)
        if blocks is None or sum(blocks.sizes) != size or {*blocks.encodings} - {Encoding.RAW}:
            raise EncodingError(f"part {part} of {artifact.key} is no full copy of {size} bytes")


def payloads_of(artifact: Artifact, contents: Mapping[int, Bytes]) -> dict[BlockName, memoryview]:
    """Cuts the encoded bytes of parts into those of their blocks."""
    payloads = {}
    for part, content in contents.items():
        ends = itertools.accumulate(artifact.parts[part].sizes, initial=0)
        for number, (start, end) in enumerate(itertools.pairwise(ends)):
            if start < end:
                payloads[BlockName(artifact.key, part, number)] = content[start:end].data
    return payloads


def chain_from(
    held: HeldVersion | None, deltas: Mapping[int, Artifact], target: HeldVersion, full_bytes: int
) -> list[Artifact] | None:
    """Chooses the differences that take a receiver to a version; None for a full copy.

    Args:
      held: the receiver's verified version; None if it has none.
      deltas: differences by the version that they make.
      target: the version that it shall have.
      full_bytes: bytes of a full copy.

    Returns:
      The differences in the order in which they are applied, none if the receiver has the version.
      None if there is no such chain on the held version, or if it is not smaller than a full copy.
    """
    if held is None or held.chain != target.chain:
        return None
    chain: list[Artifact] = []
    version, digest = target.version, target.digest
    while version > held.version:
        if (delta := deltas.get(version)) is None:
            return None
        chain.insert(0, delta)
        version, digest = delta.key.base, delta.base_digest
    if (version, digest) != (held.version, held.digest):
        return None
    return chain if sum(one.nbytes() for one in chain) < full_bytes else None
