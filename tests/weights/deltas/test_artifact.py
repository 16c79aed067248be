"""The way to a version begins at the version that a receiver has verified, or at nothing."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from rl_sync.weights.deltas.artifact import (
    FULL,
    Artifact,
    ArtifactKey,
    BlockName,
    HeldVersion,
    PartBlocks,
    chain_from,
    check_block,
    check_copy,
    check_of,
    payloads_of,
)
from rl_sync.weights.deltas.encoding import EncodingError

FULL_BYTES = 100


def delta(version: int, base: int | None = None, nbytes: int = 10) -> Artifact:
    base = version - 1 if base is None else base
    blocks = PartBlocks(b"\2", [nbytes], [b""])
    key = ArtifactKey("chain", version, base, 0)
    return Artifact(key, f"digest {version}", f"digest {base}", {0: blocks}, 0, 0)


def deltas(*artifacts: Artifact) -> dict[int, Artifact]:
    return {one.key.version: one for one in artifacts}


def held(version: int, chain: str = "chain", digest: str | None = None) -> HeldVersion:
    return HeldVersion(chain, version, digest or f"digest {version}")


def way(have, there, to: int, full_bytes: int = FULL_BYTES) -> list[int] | None:
    """Returns the versions that the chosen differences make."""
    chain = chain_from(have, there, held(to), full_bytes)
    return None if chain is None else [one.key.version for one in chain]


def test_the_way_leads_over_each_version_since_the_held_one():
    there = deltas(delta(3), delta(4), delta(5))
    assert way(held(2), there, 5) == [3, 4, 5]
    assert way(held(4), there, 5) == [5]
    assert way(held(3), there, 4) == [4]


def test_the_way_leads_over_versions_that_were_skipped():
    there = deltas(delta(7, base=3), delta(12, base=7))
    assert way(held(3), there, 12) == [7, 12]
    assert way(held(7), there, 12) == [12]


def test_there_is_nothing_to_do_for_a_receiver_that_has_the_version():
    assert way(held(5), deltas(delta(5)), 5) == []


@pytest.mark.parametrize("target", [4, 5])
@pytest.mark.parametrize(
    "have",
    [None, held(4, chain="another"), held(4, digest="another")],
    ids=["no version", "another chain", "another digest"],
)
def test_a_receiver_gets_a_full_copy_if_what_it_has_cannot_be_trusted(have, target):
    assert way(have, deltas(delta(4), delta(5)), target) is None
    if have:
        assert way(held(4), deltas(delta(4), delta(5)), target) is not None


def test_a_receiver_gets_a_full_copy_if_its_version_is_newer():
    assert way(held(6), deltas(delta(5), delta(6)), 5) is None


def test_a_receiver_gets_a_full_copy_if_its_version_lies_beside_the_chain():
    assert way(held(4), deltas(delta(5, base=3), delta(6)), 6) is None


@pytest.mark.parametrize("missing", [3, 4, 5])
def test_a_receiver_gets_a_full_copy_if_a_difference_is_gone(missing):
    there = deltas(delta(3), delta(4), delta(5))
    del there[missing]
    assert way(held(2), there, 5) is None


def test_a_receiver_gets_a_full_copy_if_the_differences_are_not_smaller():
    there = deltas(delta(3, nbytes=60), delta(4, nbytes=40))
    assert way(held(2), there, 4) is None
    assert way(held(2), there, 4, 101) == [3, 4]
    assert way(held(3), there, 4) == [4]


def test_an_artifact_lists_the_blocks_that_have_bytes():
    parts = {
        0: PartBlocks(b"\2\0\1", [5, 0, 64], [b"", b"", b""]),
        1: PartBlocks(b"\0", [0], [b""]),
        2: PartBlocks(b"\2", [7], [b""]),
    }
    key = ArtifactKey("chain", 4, 3, 0)
    artifact = Artifact(key, "", "", parts, 0, 0)
    assert [*artifact.blocks([0, 1])] == [BlockName(key, 0, 0), BlockName(key, 0, 2)]
    assert [*artifact.blocks([2])] == [BlockName(key, 2, 0)]
    assert (artifact.nbytes(), artifact.nbytes([0, 1]), artifact.nbytes([1])) == (76, 69, 0)


def test_artifacts_say_what_they_lead_from():
    assert str(ArtifactKey("chain", 4, 3, 0)) == "version 4 from 3"
    assert str(ArtifactKey("chain", 4, FULL, 0)) == "version 4"


def test_only_the_listed_bytes_of_a_block_pass_its_check():
    payloads = [b"first", b"other"]
    table = PartBlocks(b"\1\1", [5, 5], [check_of(one) for one in payloads])
    artifact = Artifact(ArtifactKey("chain", 4, 3, 0), "", "", {7: table}, 0, 0)
    names = [BlockName(artifact.key, 7, number) for number in (0, 1)]
    for name, payload in zip(names, payloads, strict=True):
        check_block(artifact, name, payload)
        check_block(artifact, name, memoryview(payload))
    for name, payload in zip(names, reversed(payloads), strict=True):
        with pytest.raises(EncodingError, match=f"block {name.number} of part 7 of version 4"):
            check_block(artifact, name, payload)
    for wrong in (b"", b"firs", b"firstt", b"First"):
        with pytest.raises(EncodingError):
            check_block(artifact, names[0], wrong)


def test_the_bytes_of_parts_are_cut_into_blocks_where_there_are_some():
    key = ArtifactKey("chain", 3, 2, 0)
    tables = {4: PartBlocks(b"\2\0\1", [2, 0, 3], [b""] * 3), 7: PartBlocks(b"\0", [0], [b""])}
    artifact = Artifact(key, "", "", tables, 0, 0)
    contents = {4: np.arange(5, dtype=np.uint8), 7: np.empty(0, np.uint8)}
    cut = {name: bytes(payload) for name, payload in payloads_of(artifact, contents).items()}
    assert cut == {BlockName(key, 4, 0): b"\0\1", BlockName(key, 4, 2): b"\2\3\4"}


@pytest.mark.parametrize(
    ("blocks", "fits"),
    [
        (PartBlocks(b"\1\1", [4, 2], [b""] * 2), True),
        (PartBlocks(b"\1\2", [4, 2], [b""] * 2), False),
        (PartBlocks(b"\1", [5], [b""]), False),
        (None, False),
    ],
)
def test_a_full_copy_has_all_bytes_as_they_are(blocks, fits):
    tables = {} if blocks is None else {0: blocks}
    artifact = Artifact(ArtifactKey("chain", 3, FULL, 0), "", "", tables, 0, 0)
    expected = contextlib.nullcontext() if fits else pytest.raises(EncodingError, match="6 bytes")
    with expected:
        check_copy(artifact, {0: 6})
