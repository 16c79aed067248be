"""A block and its base give the block again, in few bytes; damaged bytes never do harm."""

from __future__ import annotations

import random
import struct

import cramjam
import ml_dtypes
import numpy as np
import pytest

from rl_sync.weights.deltas.artifact import (
    FULL,
    Artifact,
    ArtifactKey,
    BlockName,
    PartBlocks,
    check_block,
    check_of,
)
from rl_sync.weights.deltas.encoding import (
    BLOCK_BYTES,
    EncodedBlock,
    Encoding,
    EncodingError,
    decode,
    encode,
)
from tests.weights.deltas.made import UNSIGNED

ITEMSIZES = (1, 2, 4, 8)


def elements_of(count: int, itemsize: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, count * itemsize, np.uint8).view(UNSIGNED[itemsize])


def changed_at(base: np.ndarray, positions, bits: int = 1) -> np.ndarray:
    new = base.copy()
    new[positions] ^= base.dtype.type(bits)
    return new


def encoded(new: np.ndarray, base: np.ndarray) -> EncodedBlock:
    return encode(new.view(np.uint8), base.view(np.uint8), new.itemsize)


def decoded(block: EncodedBlock, base: np.ndarray) -> np.ndarray:
    content = base.copy()
    decode(block.encoding, block.payload, content.view(np.uint8), base.itemsize)
    return content


def there_and_back(new: np.ndarray, base: np.ndarray) -> EncodedBlock:
    before = base.copy()
    block = encoded(new, base)
    assert decoded(block, base).tobytes() == new.tobytes()
    assert base.tobytes() == before.tobytes()
    assert block.changed == np.count_nonzero(new.view(new.dtype) != base)
    assert len(block.payload) <= new.nbytes
    return block


@pytest.mark.parametrize("itemsize", ITEMSIZES)
@pytest.mark.parametrize("clustered", [False, True], ids=["scattered", "clustered"])
def test_a_block_comes_back_whatever_share_of_it_has_changed(itemsize, clustered):
    for count in (1, 2, 7, 1000, 4099):
        base = elements_of(count, itemsize)
        order = np.arange(count) if clustered else np.random.default_rng(1).permutation(count)
        for share in (0, 0.001, 0.02, 0.29, 0.31, 0.5, 0.99, 1):
            some = np.sort(np.roll(order, count // 3)[: round(share * count)])
            there_and_back(changed_at(base, some), base)
            there_and_back(changed_at(base, some, 1 << (8 * itemsize - 1)), base)


@pytest.mark.parametrize("itemsize", ITEMSIZES)
def test_a_block_of_other_values_comes_back(itemsize):
    for count in (1, 3, 4099):
        block = there_and_back(elements_of(count, itemsize, 1), elements_of(count, itemsize))
        assert block.encoding == Encoding.RAW


def test_a_raw_block_is_not_copied():
    new, base = elements_of(4096, 2, 1), elements_of(4096, 2)
    assert np.shares_memory(np.frombuffer(encoded(new, base).payload, np.uint8), new)


@pytest.mark.parametrize("itemsize", ITEMSIZES)
def test_a_block_that_stays_the_same_has_no_bytes(itemsize):
    base = elements_of(1000, itemsize)
    assert there_and_back(base.copy(), base) == (Encoding.SAME, b"", 0)


@pytest.mark.parametrize("gap", [0, 1, 253, 254, 255, 256, 257, 509, 510, 511, 764, 765, 766])
def test_changes_come_back_at_any_distance(gap):
    base = elements_of(4096, 2)
    last = len(base) - 1
    for some in ([gap], [gap, 2 * gap + 1], [5, 6 + gap, 7 + 2 * gap], [last - gap - 1, last]):
        block = there_and_back(changed_at(base, some), base)
        assert block.encoding == Encoding.SPARSE


def test_the_format_of_a_sparse_block_is_the_documented_one():
    base = np.zeros(4096, np.uint16)
    new = base.copy()
    new[[0, 255, 511, 1022]] = [0x0102, 0x0304, 0x0506, 0x0708]
    block = there_and_back(new, base)
    gaps = [0, 254, 255, 0, 255, 255, 0]
    planes = [0x02, 0x04, 0x06, 0x08, 0x01, 0x03, 0x05, 0x07]
    content = bytes(cramjam.zstd.decompress(block.payload))
    assert content == struct.pack("<q", 4) + bytes(gaps) + bytes(planes)


def test_the_format_of_byte_planes_is_the_documented_one():
    base = np.zeros(300, np.uint16)
    new = np.full(300, 0x0102, np.uint16)
    block = there_and_back(new, base)
    assert block.encoding == Encoding.PLANES
    content = bytes(cramjam.zstd.decompress(block.payload))
    assert content == struct.pack("<q", 300) + b"\x02" * 300 + b"\x01" * 300


def test_bit_patterns_of_nan_and_negative_zero_come_back():
    patterns = [0x0000, 0x8000, 0x7FC0, 0x7FC1, 0xFFC0, 0xFFFF, 0x7F80, 0xFF80, 0x7F81]
    base = np.repeat(np.array(patterns, np.uint16), 50).view(ml_dtypes.bfloat16)
    for shift in range(len(patterns)):
        new = np.roll(base.view(np.uint16), 50 * shift)
        block = there_and_back(new, base.view(np.uint16))
        assert block.changed == (len(new) if shift else 0)
    new = base.view(np.uint16).copy()
    new[3] = 0x8000  # It was 0, which is equal as a number.
    new[110] = 0x7FC1  # Another NaN.
    assert there_and_back(new, base.view(np.uint16)).changed == 2


def test_two_of_a_hundred_weights_in_their_last_place_cost_little_more_than_that():
    rng = np.random.default_rng(0)
    weights = rng.normal(0, 0.02, BLOCK_BYTES // 2).astype(ml_dtypes.bfloat16)
    base = weights.view(np.uint16)
    chosen = rng.random(len(base)) < 0.02
    new = base + chosen * rng.choice(np.array([1, 0xFFFF], np.uint16), len(base))
    block = there_and_back(new, base)
    assert block.changed == pytest.approx(0.02 * len(base), rel=0.05)
    assert len(block.payload) <= 0.025 * new.nbytes


def block_kinds() -> list[tuple[EncodedBlock, np.ndarray]]:
    """Returns a block of each encoding that has bytes, with its base."""
    kinds = []
    for itemsize in ITEMSIZES:
        base = elements_of(2000, itemsize)
        some = np.flatnonzero(np.random.default_rng(2).random(len(base)) < 0.02)
        for new in (
            changed_at(base, some),
            changed_at(base, [3, 700, 1999]),
            changed_at(base, slice(None)),
            elements_of(2000, itemsize, 1),
        ):
            kinds.append((encoded(new, base), base))
    assert {block.encoding for block, _ in kinds} == set(Encoding) - {Encoding.SAME}
    return kinds


def harmless(encoding: int, payload: bytes, base: np.ndarray) -> bool:
    """Decodes damaged bytes; says whether they were refused."""
    try:
        decoded(EncodedBlock(encoding, payload, 0), base)
    except EncodingError:
        return True
    return False


def listed(block: EncodedBlock) -> Artifact:
    blocks = PartBlocks(bytes([block.encoding]), [len(block.payload)], [check_of(block.payload)])
    return Artifact(ArtifactKey("chain", 1, FULL, 0), "", "", {0: blocks}, 0, 0)


def test_damaged_bytes_are_refused_or_have_another_check_sum():
    draw, refused, tried = random.Random(0), 0, 0
    for block, base in block_kinds():
        artifact, whole = listed(block), bytes(block.payload)
        name = BlockName(artifact.key, 0, 0)
        check_block(artifact, name, whole)
        for _ in range(150):
            damaged = bytearray(whole)
            kind = draw.choice(["cut", "flip", "more", "zeros", "swap"])
            at = draw.randrange(len(damaged))
            if kind == "cut":
                del damaged[at : at + draw.choice([1, 2, len(damaged)])]
            elif kind == "more":
                damaged[at:at] = draw.randbytes(draw.randint(1, 4))
            elif kind == "zeros":
                damaged[at : at + 8] = bytes(8)
            elif kind == "swap":
                damaged[at:] = damaged[at:][::-1]
            else:
                for _ in range(draw.randint(1, 3)):
                    damaged[draw.randrange(len(damaged))] ^= draw.randint(1, 255)
            if damaged == whole:
                continue
            tried += 1
            refused += harmless(block.encoding, bytes(damaged), base)
            with pytest.raises(EncodingError, match="check sum"):
                check_block(artifact, name, bytes(damaged))
    assert refused > tried / 4


def test_bytes_of_another_encoding_are_refused_or_have_another_check_sum():
    for block, base in block_kinds():
        for encoding in (*Encoding, 4, 255):
            if encoding != block.encoding:
                harmless(encoding, bytes(block.payload), base)
        assert harmless(Encoding.SAME, bytes(block.payload), base)
        assert harmless(4, bytes(block.payload), base)


@pytest.mark.parametrize("encoding", [Encoding.SPARSE, Encoding.PLANES, Encoding.RAW])
def test_no_bytes_are_refused_where_some_are_due(encoding):
    assert harmless(encoding, b"", elements_of(100, 2))


def test_bytes_that_zstd_reads_but_that_are_no_difference_are_refused():
    base = elements_of(1000, 2)

    def refused(encoding, count, rest) -> bool:
        content = struct.pack("<q", count) + bytes(rest)
        return harmless(encoding, bytes(cramjam.zstd.compress(content)), base)

    assert harmless(Encoding.SPARSE, bytes(cramjam.zstd.compress(b"short")), base)
    for count in (-1, 1001, 1 << 62, -(1 << 63)):
        assert refused(Encoding.SPARSE, count, [0, 1, 0])
        assert refused(Encoding.PLANES, count, bytes(2000))
    assert refused(Encoding.PLANES, 1000, bytes(1999))
    assert refused(Encoding.PLANES, 1000, bytes(2002))
    assert refused(Encoding.SPARSE, 3, [])  # Nothing follows.
    assert refused(Encoding.SPARSE, 3, bytes(5))  # Fewer than the xors.
    assert refused(Encoding.SPARSE, 3, [0, 0, *bytes(6)])  # A position is missing.
    assert refused(Encoding.SPARSE, 1, [0, 0, *bytes(2)])  # One too many.
    assert refused(Encoding.SPARSE, 1, [255, *bytes(2)])  # A gap without an end.
    assert refused(Encoding.SPARSE, 1, [255, 255, 255, 235, *bytes(2)])  # Element 1000.
    assert not refused(Encoding.SPARSE, 1, [255, 255, 255, 234, *bytes(2)])  # Element 999.
    assert not refused(Encoding.SPARSE, 0, [])


def test_random_content_is_refused_or_gives_a_block_of_the_same_size():
    draw, refused = random.Random(1), 0
    base = elements_of(64, 2)
    for _ in range(2000):
        count = draw.choice([0, 1, 2, 5, 64, draw.randint(-2, 70)])
        rest = draw.randbytes(draw.choice([0, 1, 2 * count if count > 0 else 0, 130]))
        content = struct.pack("<q", count) + rest
        payload = bytes(cramjam.zstd.compress(content))
        refused += harmless(draw.choice([Encoding.SPARSE, Encoding.PLANES]), payload, base)
    assert refused > 1000
