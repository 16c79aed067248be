"""Reads rows of a data set from a file, or through the `datasets` library."""

from __future__ import annotations

import dataclasses
import itertools
import json
import reprlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rl_sync.models.huggingface.files import LFS_POINTER

_PARQUET = ".parquet"
_JSON = ".json"
_BATCH_ROWS = 100
_FILE_SUFFIXES = (".jsonl", _JSON, _PARQUET)
# First bytes of files that are often mistaken for text, with their kind and the remedy.
_NO_TEXT = {
    LFS_POINTER: ("a Git LFS pointer", "fetch the file itself with `git lfs pull`"),
    b"\x1f\x8b": ("compressed with gzip", "unpack it first"),
    b"\x28\xb5\x2f\xfd": ("compressed with Zstandard", "unpack it first"),
    b"PK\x03\x04": ("a zip archive", "unpack it first"),
    b"PAR1": ("a Parquet file", f"give it a name that ends in {_PARQUET}"),
    b"\xff\xfe": ("in UTF-16", "save it as UTF-8"),
    b"\xfe\xff": ("in UTF-16", "save it as UTF-8"),
}


class DataRow(NamedTuple):
    """One row.

    Attributes:
      where: file and line, or row number, for messages.
      fields: columns by name.
      folder: directory of the file, in which relative paths of images are looked up first; None if
        the rows are not from a file.
      is_padded: whether a null in an object may stand for a field that the object lacks, as in
        tables with typed columns.
    """

    where: str
    fields: Mapping[str, Any]
    folder: Path | None = None
    is_padded: bool = False


@dataclasses.dataclass(frozen=True)
class RowSource:
    """Source of rows.

    Attributes:
      path: a file (.parquet, .json with a list of objects, or any file with one object a line), a
        directory, or the name of a data set on the hub. A directory must come from
        `Dataset.save_to_disk`, or be readable by `datasets.load_dataset`.
      subset: configuration of a data set that has several.
      split: name of the split; a file has none.
    """

    path: str
    subset: str | None = None
    split: str = "train"


def read_rows(source: RowSource, limit: int = 0) -> list[DataRow]:
    """Reads the rows of a source, or only the first `limit` rows if `limit` is not 0.

    Raises:
      ValueError: the source or split does not exist, has no rows, or has a malformed row (the
        message names file and line).
      OSError: a file cannot be read.
    """
    path = Path(source.path)
    rows: Iterator[DataRow]
    if path.is_file():
        rows = (row._replace(folder=path.parent) for row in _file_rows(path))
    elif not path.exists() and _is_meant_as_a_file(source.path):
        raise ValueError(f"{source.path}: no such file or directory.")
    else:
        rows = _library_rows(source)
    taken = list(itertools.islice(rows, limit or None))
    if not taken:
        raise ValueError(f"{source.path} has no rows.")
    return taken


def _is_meant_as_a_file(path: str) -> bool:
    return path.startswith(("/", ".", "~")) or path.endswith(_FILE_SUFFIXES)


def _file_rows(path: Path) -> Iterator[DataRow]:
    if path.suffix == _PARQUET:
        return _parquet_rows(path)
    text = _text(path)
    # Many .json files have one object a line.
    if path.suffix == _JSON and text.lstrip().startswith("["):
        return _list_rows(path, text)
    return _line_rows(path, text)


def _text(path: Path) -> str:
    data = path.read_bytes()
    for start, (what, way_out) in _NO_TEXT.items():
        if data.startswith(start):
            raise ValueError(f"{path} is {what}, not text of JSON: {way_out}.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{path}, line {line} is not UTF-8 text: {error.reason} 0x{data[error.start]:02x}. Save"
            " the file as UTF-8."
        ) from error


def _line_rows(path: Path, text: str) -> Iterator[DataRow]:
    # Not splitlines, which also splits at characters that JSON strings may contain.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            where = f"{path}, line {number}"
            yield _row(where, _parsed(where, line))


def _list_rows(path: Path, text: str) -> Iterator[DataRow]:
    for number, value in enumerate(_parsed(str(path), text), start=1):
        yield _row(f"{path}, row {number}", value)


def _parsed(where: str, text: str) -> Any:
    try:
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            raise
        except ValueError:  # A number has more digits than Python converts.
            return json.loads(text, parse_int=_int_or_text)
    except RecursionError as error:
        raise ValueError(f"{where} is nested too deeply to be read: make it flat.") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} is not JSON: {error}.") from error


def _int_or_text(digits: str) -> int | str:
    """Reads a whole number; one with more digits than Python converts stays text."""
    try:
        return int(digits)
    except ValueError:
        return digits


def _row(where: str, value: Any) -> DataRow:
    if not isinstance(value, dict):
        raise ValueError(f'{where} is not an object {{"field": …}}, but {reprlib.repr(value)}.')
    return DataRow(where, value)


def _parquet_rows(path: Path) -> Iterator[DataRow]:
    import pyarrow
    import pyarrow.parquet

    with path.open("rb") as start:
        if start.read(len(LFS_POINTER)) == LFS_POINTER:
            what, way_out = _NO_TEXT[LFS_POINTER]
            raise ValueError(f"{path} is {what}, not a Parquet file: {way_out}.")
    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches():
                for fields in batch.to_pylist():
                    number += 1
                    yield DataRow(f"{path}, row {number}", fields, is_padded=True)
    except pyarrow.ArrowException as error:
        raise ValueError(f"{path} is not a Parquet file: {error}.") from error


def _library_rows(source: RowSource) -> Iterator[DataRow]:
    """Reads rows through `datasets`, which is imported here because that takes a second or two."""
    import datasets

    try:
        if _was_saved(Path(source.path)):
            loaded = datasets.load_from_disk(source.path)
        else:
            loaded = datasets.load_dataset(source.path, source.subset, split=source.split)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        # The library's own error often gives no reason; its cause does.
        reasons = [str(e).partition("\n")[0] for e in (error, error.__cause__) if e is not None]
        raise ValueError(
            f"The data set {source.path}{_part(source)} cannot be loaded: {': '.join(reasons)}"
        ) from error
    if isinstance(loaded, datasets.DatasetDict):
        if source.split not in loaded:
            raise ValueError(
                f"The data set {source.path} has no split {source.split!r}; it has"
                f" {', '.join(map(repr, loaded))}."
            )
        loaded = loaded[source.split]
    for number, fields in enumerate(_undecoded(loaded), start=1):
        where = f"{source.path}{_part(source)}, row {number}"
        yield DataRow(where, fields, is_padded=True)


def _undecoded(loaded: Any) -> Iterator[Mapping[str, Any]]:
    """Yields rows with the files of their images, which the library would decode."""
    if not _has_images(loaded.features):
        yield from loaded
        return
    for table in loaded.with_format("arrow").iter(batch_size=_BATCH_ROWS):
        yield from table.to_pylist()


def _has_images(feature: Any) -> bool:
    import datasets

    if isinstance(feature, Mapping):
        return any(map(_has_images, feature.values()))
    inner = feature[0] if isinstance(feature, list) else getattr(feature, "feature", None)
    return isinstance(feature, datasets.Image) or (inner is not None and _has_images(inner))


def _was_saved(directory: Path) -> bool:
    return any((directory / name).exists() for name in ("dataset_dict.json", "state.json"))


def _part(source: RowSource) -> str:
    subset = f", subset {source.subset!r}" if source.subset else ""
    return f"{subset}, split {source.split!r}"
