"""Versions as files: full copies and differences, which other programs can follow.

docs/sync.md describes the format. For version 12 there are some of:

    full_00000012.json                 a manifest: written last, so what it names is complete
    full_00000012.p0.safetensors       the parts of process 0 of the trainer
    delta_00000012.json, ….p0.safetensors
    readers/NAME@VERSION@TIME          a reader has that version, -1 for none, since TIME
    readers/NAME@full@TIME             a reader needs a full copy

The directory is on a file system that all processes share, or in a bucket of an object store.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import secrets
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import fsspec
import numpy as np

from rl_sync.clock import now_secs
from rl_sync.isolation.codec import record
from rl_sync.weights.deltas.artifact import (
    FULL,
    Artifact,
    ArtifactKey,
    HeldVersion,
    PartBlocks,
    check_of,
)
from rl_sync.weights.deltas.encoding import BLOCK_BYTES, Bytes, EncodingError, empty
from rl_sync.weights.locations import Location, absolute, is_remote

FORMAT = 1
FRAME = "model"
"""Directory of the files that a checkpoint of transformers has besides its weights."""

_READERS = "readers"
_WISH = "full"
_MARK = re.compile(r"(.+)@(-?\d+|full)@([\d.]+)")
_MANIFEST = re.compile(r"(full|delta)_(\d{8,})\.json")
_HEADER = struct.Struct("<Q")
_METADATA = "__metadata__"
_POLL_SECS, _REMOTE_POLL_SECS = 0.05, 1.0


class VersionFilesError(ValueError):
    """A directory holds no versions of this format, or those of another run."""


@record
class StoredArtifact(NamedTuple):
    """A manifest: an artifact whose files are complete.

    Attributes:
      run: tag of the run; see `run_tag`.
      chain, version, base: see `ArtifactKey`; the base is `FULL` for a full copy.
      digest, base_digest: digests of the version and of its base.
      files: names of the files, one for each of the trainer's processes that hold parts.
      nbytes, dense_bytes: bytes of all blocks, and of the version that they make.
      leaves: name, dtype and shape of each array.
      made: tag of this manifest, which is another one if the files are written again.
    """

    run: str
    chain: str
    version: int
    base: int
    digest: str
    base_digest: str
    files: list[str]
    nbytes: int
    dense_bytes: int
    leaves: list[tuple[str, str, list[int]]]
    made: str

    @property
    def name(self) -> str:
        """Name of its files, without an ending."""
        return stem(self.version, self.base)


class StoredPart(NamedTuple):
    """The place of a part's blocks in a file.

    Attributes:
      start: position of the first block.
      blocks: the blocks.
    """

    start: int
    blocks: PartBlocks


class PartFile(NamedTuple):
    """Header of a file.

    Attributes:
      name: name of the file.
      parts: its parts by name; see `part_name`.
    """

    name: str
    parts: dict[str, StoredPart]


def stem(version: int, base: int) -> str:
    """Returns the name of an artifact's files, without an ending."""
    return f"{'full' if base == FULL else 'delta'}_{version:08d}"


class VersionFiles:
    """The files of a directory, shared by one trainer and any number of readers.

    Args:
      root: the directory; it is created if it does not exist.
      create: whether to create it.

    Attributes:
      poll_secs: time between two checks for something that is not there yet.

    Raises:
      ImportError: a package for the object store is not installed; the message names it.
    """

    def __init__(self, root: Location, *, create: bool = True) -> None:
        remote = is_remote(root)
        self.root = absolute(root)
        self.poll_secs = _REMOTE_POLL_SECS if remote else _POLL_SECS
        self._remote = remote
        self._files, self._at = fsspec.core.url_to_fs(
            os.fspath(self.root), use_listings_cache=False
        )
        self._manifests: dict[str, StoredArtifact] = {}
        self._damaged: set[str] = set()
        if create and not remote:  # A bucket has no directories.
            self._files.makedirs(f"{self._at}/{_READERS}", exist_ok=True)

    def write_parts(
        self,
        artifact: Artifact,
        names: Mapping[int, str],
        payloads: Mapping[tuple[int, int], bytes | memoryview],
    ) -> str:
        """Writes the blocks of one process; returns the name of the file.

        Args:
          artifact: the list of the blocks.
          names: name of each part.
          payloads: the blocks, by part and number.
        """
        header: dict[str, dict[str, object]] = {}
        tables: dict[str, list[list[int | str]]] = {}
        content: list[bytes | memoryview] = []
        end = 0
        for part, blocks in artifact.parts.items():
            content += [payloads[part, at] for at, size in enumerate(blocks.sizes) if size]
            start, end = end, end + sum(blocks.sizes)
            header[names[part]] = {
                "dtype": "U8",
                "shape": [end - start],
                "data_offsets": [start, end],
            }
            tables[names[part]] = [
                [encoding, size, check.hex()]
                for encoding, size, check in zip(
                    blocks.encodings, blocks.sizes, blocks.checks, strict=True
                )
            ]
        header[_METADATA] = {"blocks": json.dumps(tables), "digest": artifact.digest}
        written = json.dumps(header).encode()
        written += b" " * (-len(written) % _HEADER.size)  # The format aligns what follows.
        key = artifact.key
        name = f"{stem(key.version, key.base)}.p{key.holder}.safetensors"
        self._write(name, [_HEADER.pack(len(written)), written, *content])
        return name

    def announce(self, stored: StoredArtifact) -> None:
        """Writes a manifest; all files that it names must be complete."""
        values = {"format": FORMAT, "block_bytes": BLOCK_BYTES, **stored._asdict()}
        values["base"] = None if stored.base == FULL else stored.base
        self._write(f"{stored.name}.json", [json.dumps(values, indent=1).encode()])

    def write_frame(self, name: str, content: bytes) -> None:
        """Writes a file of a checkpoint of transformers, such as config.json."""
        self._write(f"{FRAME}/{name}", [content])

    def read_frame(self) -> dict[str, bytes]:
        """Reads the files of a checkpoint of transformers, by name."""
        names = self._names(FRAME)
        return {name: self._files.cat_file(f"{self._at}/{FRAME}/{name}") for name in names}

    def stored(self) -> list[StoredArtifact]:
        """Returns all manifests, by version, without those of damaged files.

        Raises:
          VersionFilesError: a manifest is of another format.
        """
        names = {name for name in self._names() if _MANIFEST.fullmatch(name)}
        for name in [name for name in self._manifests if name not in names]:
            del self._manifests[name]
        for name in names - set(self._manifests):
            with contextlib.suppress(FileNotFoundError):  # It was deleted since.
                manifest = self._manifest(name)
                if manifest.made not in self._damaged:
                    self._manifests[name] = manifest
        return sorted(self._manifests.values(), key=lambda one: (one.version, one.base))

    def leave_out(self, stored: StoredArtifact) -> None:
        """Leaves out an artifact with a damaged file until it is written again."""
        self._damaged.add(stored.made)
        self._manifests.pop(f"{stored.name}.json", None)

    def exists(self, name: str) -> bool:
        """Says whether a file is there."""
        return self._files.exists(f"{self._at}/{name}")

    def header(self, name: str) -> PartFile:
        """Reads the header of a file of parts.

        Raises:
          FileNotFoundError: there is no such file, or no longer.
          EncodingError: it is damaged.
        """
        path = f"{self._at}/{name}"
        try:
            (length,) = _HEADER.unpack(self._range(path, 0, _HEADER.size))
            found = json.loads(self._range(path, _HEADER.size, _HEADER.size + length))
            tables = json.loads(found.pop(_METADATA)["blocks"])
            parts = {}
            for part, entry in found.items():
                rows = tables[part]
                blocks = PartBlocks(
                    bytes(row[0] for row in rows),
                    [row[1] for row in rows],
                    [bytes.fromhex(row[2]) for row in rows],
                )
                start = _HEADER.size + length + entry["data_offsets"][0]
                parts[part] = StoredPart(start, blocks)
        except (ValueError, KeyError, TypeError, struct.error) as error:
            raise EncodingError(f"{self.root}/{name} is damaged: {error!r}") from error
        return PartFile(name, parts)

    def contents(self, file: PartFile, parts: Mapping[int, str]) -> dict[int, Bytes]:
        """Reads the encoded bytes of some parts of a file, and compares their check sums.

        Args:
          file: the file's header.
          parts: names of the parts, by number.

        Raises:
          FileNotFoundError: there is no such file, or no longer.
          EncodingError: a block is damaged.
        """
        contents = {}
        for part, name in parts.items():
            start, blocks = file.parts[name]
            content = self._content(file.name, start, sum(blocks.sizes))
            ends = itertools.accumulate(blocks.sizes, initial=0)
            for (begin, end), check in zip(itertools.pairwise(ends), blocks.checks, strict=True):
                if check_of(content[begin:end].data) != check:
                    raise EncodingError(f"{self.root}/{file.name} is damaged: {name} has changed")
            contents[part] = content
        return contents

    def delete(self, stored: StoredArtifact) -> None:
        """Deletes an artifact, its manifest first."""
        for name in (f"{stored.name}.json", *stored.files):
            self._remove(name)

    def clear(self) -> None:
        """Deletes all artifacts, and files that no manifest names."""
        names = self._names()
        for name in sorted(names, key=lambda name: not _MANIFEST.fullmatch(name)):
            if name.endswith((".safetensors", ".unfinished")) or _MANIFEST.fullmatch(name):
                self._remove(name)
        for name in self._names(_READERS):
            self._remove(f"{_READERS}/{name}")

    def remove_parts(self, version: int, base: int, holder: int) -> None:
        """Deletes the file of one process, which is damaged or incomplete."""
        name = f"{stem(version, base)}.p{holder}.safetensors"
        for one in (name, f"{name}.unfinished"):
            self._remove(one)

    def mark(self, reader: str, version: int) -> None:
        """Notes that a reader has a version, and needs nothing older; -1 for none."""
        self._mark(reader, str(version))

    def wish(self, reader: str) -> None:
        """Asks the trainer for a full copy of its newest version."""
        self._mark(reader, _WISH)

    def unmark(self, reader: str) -> None:
        """Removes the marks of a reader."""
        for name in self._marks(reader):
            self._remove(f"{_READERS}/{name}")

    def held(self, expiry_secs: float) -> dict[str, int]:
        """Returns the versions that readers have, by reader, without those of dead readers."""
        now = now_secs()
        marks = map(_MARK.fullmatch, self._names(_READERS))
        return {
            mark[1]: -1 if mark[2] == _WISH else int(mark[2])
            for mark in marks
            if mark and now - float(mark[3]) < expiry_secs
        }

    def take_wishes(self) -> bool:
        """Says whether a reader has asked for a full copy since the last call."""
        wishes = [name for name in self._names(_READERS) if f"@{_WISH}@" in name]
        for name in wishes:
            self._remove(f"{_READERS}/{name}")
        return bool(wishes)

    def _mark(self, reader: str, what: str) -> None:
        old = self._marks(reader)
        new = f"{reader}@{what}@{now_secs():.3f}"
        self._files.pipe_file(f"{self._at}/{_READERS}/{new}", b"\n")
        for name in old:
            if name != new:
                self._remove(f"{_READERS}/{name}")

    def _marks(self, reader: str) -> list[str]:
        """Returns the names of a reader's marks."""
        marks = map(_MARK.fullmatch, self._names(_READERS))
        return [mark[0] for mark in marks if mark and mark[1] == reader]

    def _manifest(self, name: str) -> StoredArtifact:
        where = f"{self.root}/{name}"
        try:
            values: dict[str, Any] = json.loads(self._files.cat_file(f"{self._at}/{name}"))
            form, block = values.pop("format"), values.pop("block_bytes")
            values["base"] = FULL if values["base"] is None else values["base"]
            values["leaves"] = [(name, dtype, shape) for name, dtype, shape in values["leaves"]]
            stored = StoredArtifact(**{field: values[field] for field in StoredArtifact._fields})
        except (ValueError, KeyError, TypeError) as error:
            raise VersionFilesError(f"{where} is no manifest of a version: {error!r}") from error
        if (form, block) != (FORMAT, BLOCK_BYTES):
            raise VersionFilesError(
                f"{where} has format {form} with blocks of {block} bytes, which this version of"
                f" rl_sync does not read: it knows format {FORMAT} with {BLOCK_BYTES}."
            )
        return stored

    def _range(self, path: str, start: int, end: int) -> bytes:
        content: bytes = self._files.cat_file(
            path, start=start, end=end
        )  # By position s3fs differs.
        return content

    def _content(self, name: str, start: int, nbytes: int) -> Bytes:
        """Reads a range of a file; on a file system, into memory that is made for arrays."""
        path = f"{self._at}/{name}"
        if self._remote:
            return np.frombuffer(self._range(path, start, start + nbytes), np.uint8)
        content = empty(nbytes)
        with open(path, "rb", buffering=0) as file:
            file.seek(start)
            left = content.data
            while left and (count := file.readinto(left)):
                left = left[count:]
        if left:
            raise EncodingError(f"{self.root}/{name} is damaged: it ends early")
        return content

    def _write(self, name: str, content: Sequence[bytes | memoryview]) -> None:
        """Writes a file, which appears under its name once it is complete."""
        path = f"{self._at}/{name}"
        if self._remote:
            self._files.pipe_file(path, b"".join(content))
            return
        unfinished = f"{path}.{secrets.token_hex(4)}.unfinished"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            with open(unfinished, "wb") as file:
                file.writelines(content)
            os.replace(unfinished, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.remove(unfinished)
            raise

    def _names(self, below: str = "") -> list[str]:
        try:
            paths = self._files.ls(f"{self._at}/{below}".rstrip("/"), detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [path.rstrip("/").rpartition("/")[2] for path in paths]

    def _remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._files.rm(f"{self._at}/{name}", recursive=False)


def artifact_of(stored: StoredArtifact, holder: int, parts: Mapping[int, PartBlocks]) -> Artifact:
    """Returns the list of the blocks of one file."""
    key = ArtifactKey(stored.chain, stored.version, stored.base, holder)
    return Artifact(key, stored.digest, stored.base_digest, dict(parts), 0, 0)


def route_to(
    version: int, stored: Iterable[StoredArtifact], held: HeldVersion | None
) -> list[StoredArtifact] | None:
    """Chooses the artifacts that lead to a version in the fewest bytes.

    Args:
      version: the version.
      stored: the artifacts that there are.
      held: the verified version; None if there is none.

    Returns:
      The artifacts in the order in which they are applied; None if there is no way.
    """
    by_version: dict[int, list[StoredArtifact]] = {}
    for one in stored:
        by_version.setdefault(one.version, []).append(one)
    chains = {one.chain for row in by_version.values() for one in row}
    best: list[StoredArtifact] | None = None
    for chain in sorted(chains):
        way: list[StoredArtifact] = []
        at, digest = version, ""
        while True:
            if held is not None and (chain, at) == held[:2] and digest in ("", held.digest):
                best = _cheaper(best, way)
                break
            here = [one for one in by_version.get(at, ()) if one.chain == chain]
            here = [one for one in here if digest in ("", one.digest)]
            for full in here:
                if full.base == FULL:
                    best = _cheaper(best, [full, *way])
            deltas = [one for one in here if one.base != FULL]
            if not deltas:
                break
            way = [deltas[0], *way]
            at, digest = deltas[0].base, deltas[0].base_digest
    return best


def _cheaper(
    best: list[StoredArtifact] | None, way: Sequence[StoredArtifact]
) -> list[StoredArtifact]:
    def nbytes(route: Sequence[StoredArtifact]) -> int:
        return sum(one.nbytes for one in route)

    return [*way] if best is None or nbytes(way) < nbytes(best) else best
