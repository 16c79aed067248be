"""The log of batches: what the trainer took from the replay buffer since its snapshots.

    <directory>/batch_00000017          groups of trainer step 17, and groups that it left for later
    <directory>/taken_00000018_0000     groups taken for step 18, whose batch is not whole yet

A trainer's state follows from a snapshot and the batches after it. So a trainer that died does the
steps after its snapshot again, with the same groups, and gets the same bits. A file appears by one
rename; it holds its checksum, and a damaged file counts as missing.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cramjam

from rl_sync.checkpoints.durability import flush_directory
from rl_sync.isolation.codec import decode, encode
from rl_sync.types import Consumed, Group

_BATCH = re.compile(r"batch_(\d{8,})")
_TAKEN = re.compile(r"taken_(\d{8,})_(\d{4,})")
_CHECKSUM_BYTES = 4


class LoggedBatch(NamedTuple):
    """A trainer step's batch, and what the trainer had besides.

    Attributes:
      batch: groups that the step consumes.
      aside: other groups that the trainer had taken from the buffer by then.
      uses: for each lease whose group later steps may train on again, the number of steps that have
        done so.
    """

    batch: Consumed
    aside: list[Group]
    uses: Mapping[int, int]


class BatchLog:
    """Keeps batches in a directory, which is created.

    Raises:
      OSError: the directory cannot be created; also raised by the methods that write, for example
        if the disk is full.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = Path(directory)
        self._directory.mkdir(parents=True, exist_ok=True)
        for path in self._directory.glob("*.tmp"):
            path.unlink()

    def write(self, step: int, logged: LoggedBatch) -> None:
        """Writes the batch of a step to disk; then groups that were taken for it are forgotten."""
        batch = logged.batch
        content = {
            "groups": [group.to_columns() for group in batch.groups],
            "left_out": [*batch.left_out],
            "kept": [*batch.kept],
            "notes": {**batch.notes},
            "aside": [group.to_columns() for group in logged.aside],
            "uses": {**logged.uses},
        }
        self._write(f"batch_{step:08d}", encode(content), is_vital=True)
        for path, of, _ in self._taken():
            if of <= step:
                path.unlink()

    def write_taken(self, step: int, groups: Sequence[Group]) -> None:
        """Writes groups that were taken from the buffer for a step whose batch is not whole yet."""
        numbers = [number for _, of, number in self._taken() if of == step]
        name = f"taken_{step:08d}_{max(numbers, default=-1) + 1:04d}"
        self._write(name, encode([group.to_columns() for group in groups]), is_vital=False)

    def read(self, step: int) -> LoggedBatch | None:
        """Reads the batch of a step; None if there is none, or it is damaged."""
        content = self._read(self._directory / f"batch_{step:08d}")
        if content is None:
            return None
        batch = Consumed(
            [Group.from_columns(columns) for columns in content["groups"]],
            content["left_out"],
            content["kept"],
            content["notes"],
        )
        aside = [Group.from_columns(columns) for columns in content["aside"]]
        return LoggedBatch(batch, aside, content["uses"])

    def read_taken(self, step: int) -> list[Group]:
        """Reads the groups that were taken for a step; damaged files are left out."""
        found: list[Group] = []
        for path, of, _ in sorted(self._taken()):
            if of == step:
                found += [Group.from_columns(columns) for columns in self._read(path) or []]
        return found

    def reach(self, start: int) -> int:
        """Returns the last step of the unbroken, undamaged batches that follow step `start`."""
        step = start
        while self._read(self._directory / f"batch_{step + 1:08d}") is not None:
            step += 1
        return step

    def forget(self, until: int) -> None:
        """Deletes the batches of steps up to `until`."""
        for step in self._steps():
            if step <= until:
                (self._directory / f"batch_{step:08d}").unlink()

    def forget_after(self, step: int) -> None:
        """Deletes everything that belongs to steps after `step`, which will be taken anew."""
        for other in self._steps():
            if other > step:
                (self._directory / f"batch_{other:08d}").unlink()
        for path, _, _ in self._taken():
            path.unlink()

    def _steps(self) -> list[int]:
        names = os.listdir(self._directory)
        return sorted(int(match[1]) for name in names if (match := _BATCH.fullmatch(name)))

    def _taken(self) -> list[tuple[Path, int, int]]:
        """Lists the files of taken groups, each with its step and its number."""
        names = os.listdir(self._directory)
        matches = [match for name in names if (match := _TAKEN.fullmatch(name))]
        return [(self._directory / match[0], int(match[1]), int(match[2])) for match in matches]

    def _write(self, name: str, content: bytes, *, is_vital: bool) -> None:
        """Writes a file.

        Args:
          is_vital: whether it must outlive a crash of the machine, not only of the process.
        """
        packed = bytes(cramjam.snappy.compress_raw(content))
        temporary = self._directory / f"{name}.tmp"
        try:
            with temporary.open("wb") as file:
                file.write(zlib.crc32(packed).to_bytes(_CHECKSUM_BYTES, "little"))
                file.write(packed)
                if is_vital:
                    file.flush()
                    os.fsync(file.fileno())
            temporary.replace(self._directory / name)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        if is_vital:
            flush_directory(self._directory)

    def _read(self, path: Path) -> Any:
        """Returns the content of a file; None if it is missing or damaged."""
        try:
            data = path.read_bytes()
        except OSError:
            return None
        checksum, packed = data[:_CHECKSUM_BYTES], data[_CHECKSUM_BYTES:]
        if zlib.crc32(packed).to_bytes(_CHECKSUM_BYTES, "little") != checksum:
            return None
        return decode(bytes(cramjam.snappy.decompress_raw(packed)))
