"""Names of parts in files: a leaf's, and a region's if the part is not the whole leaf."""

from __future__ import annotations

from rl_sync.types import Params
from rl_sync.weights.cells import Piece, Region
from rl_sync.weights.deltas.encoding import EncodingError
from rl_sync.weights.deltas.version_files import PartFile, StoredArtifact
from rl_sync.weights.parts import Arrivals, Leaf, Manifest, Part, first_difference, leaves_of


def part_names(manifest: Manifest) -> dict[int, str]:
    """Returns the name of each part: its leaf's, and its region if it is not the whole leaf."""
    names = {}
    for number, part in enumerate(manifest.parts):
        leaf = manifest.leaves[part.piece.leaf]
        whole = tuple((0, length) for length in leaf.shape)
        region = ",".join(f"{start}:{stop}" for start, stop in part.piece.region)
        names[number] = plain_name(leaf) + ("" if part.piece.region == whole else f"@{region}")
    return names


def plain_name(leaf: Leaf) -> str:
    """Returns a leaf's name with slashes, such as `layers/mlp/up`."""
    return leaf.name.replace("']['", "/").strip("[']")


def arrivals_of(headers: list[PartFile], stored: StoredArtifact, params: Params) -> Arrivals:
    """Returns the way of a full copy's parts into the shardings of abstract params.

    Raises:
      ValueError: they are those of another model, or of another dtype.
    """
    leaves = leaves_of(params)
    there = [Leaf(name, tuple(shape), dtype) for name, dtype, shape in stored.leaves]
    here = [leaf._replace(name=plain_name(leaf)) for leaf in leaves]
    if (pair := first_difference(here, there)) is not None:
        raise ValueError(
            f"{stored.name} has {pair[1]} where this program has {pair[0]}: start both with the"
            " same model and the same explorer.dtype."
        )
    numbers = {leaf.name: at for at, leaf in enumerate(here)}
    pieces = []
    for file in headers:
        for name in file.parts:
            leaf_name, _, text = name.partition("@")
            if leaf_name not in numbers:
                raise EncodingError(f"{file.name} has {leaf_name}, which its manifest lacks")
            at = numbers[leaf_name]
            whole = tuple((0, length) for length in leaves[at].shape)
            pieces.append(Piece(at, _region(text) if text else whole))
    manifest = Manifest(leaves, tuple(Part(0, 0, piece) for piece in sorted(pieces)))
    return Arrivals(params, manifest)


def _region(text: str) -> Region:
    intervals = [axis.split(":") for axis in text.split(",")]
    return tuple((int(start), int(stop)) for start, stop in intervals)
