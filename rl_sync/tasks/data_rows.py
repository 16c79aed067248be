"""Reads rows of a data set from a file, or through the `datasets` library."""

from __future__ import annotations

import ast
import csv
import dataclasses
import io
import itertools
import json
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from rl_sync.models.huggingface.files import LFS_POINTER
from rl_sync.spelling import hint

T = TypeVar("T")

_PARQUET = ".parquet"
_JSON = ".json"
_BATCH_ROWS = 100
_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_FILE_SUFFIXES = (".jsonl", _JSON, *_SEPARATORS, _PARQUET)
_MOST_CHARACTERS = 2**31 - 1
_SPEAKERS = {"role", "from"}
_LINE = re.compile(r"[^\n]*\S[^\n]*")
_UNKNOWN_SPLIT = re.compile(r'Unknown split "(.*?)".*\[(.*)\]')
"""The text of `datasets` for a split that a data set lacks, with the splits that it has."""
_MESSAGES_TEXT = re.compile(r"""\s*\[\s*\{\s*["'](?:role|content|from|value)["']\s*:""")
"""Beginning of a text of messages."""
_SPACE = re.compile(r"[ \t\r\n]*")
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
      path: a file, a directory, or the name of a data set on the hub. A file is .parquet, .csv or
        .tsv with a line of names, or JSON: one object a line, objects over several lines, a list of
        objects, or an object with one such list. A directory must come from `Dataset.save_to_disk`,
        or be readable by `datasets.load_dataset`.
      subset: configuration of a data set that has several.
      split: name of the split; a file has none.
      path_setting: name of the setting of the path, for messages.
      split_setting: name of the setting of the split.
    """

    path: str
    subset: str | None = None
    split: str = "train"
    path_setting: str = "task.dataset.path"
    split_setting: str = "task.dataset.split"


def read_rows(source: RowSource, limit: int = 0) -> list[DataRow]:
    """Reads the rows of a source, or only the first `limit` rows if `limit` is not 0.

    Raises:
      ValueError: the source or split does not exist, or has no rows (the message names the
        setting), or has a malformed row (the message names file and line).
      OSError: a file cannot be read.
    """
    path = Path(source.path)
    rows: Iterator[DataRow]
    if path.is_file():
        rows = (row._replace(folder=path.parent) for row in _file_rows(path))
    elif not path.exists() and _is_meant_as_a_file(source.path):
        raise ValueError(f"{source.path_setting}={source.path}: no such file or directory.")
    else:
        rows = _library_rows(source)
    taken = list(itertools.islice(rows, limit or None))
    if not taken:
        raise ValueError(f"{source.path_setting}={source.path} has no rows.")
    return taken


def _is_meant_as_a_file(path: str) -> bool:
    return path.startswith(("/", ".", "~")) or path.endswith(_FILE_SUFFIXES)


def _file_rows(path: Path) -> Iterator[DataRow]:
    if path.suffix == _PARQUET:
        return _parquet_rows(path)
    text = _text(path)
    if path.suffix in _SEPARATORS:
        return _table_rows(path, text, _SEPARATORS[path.suffix])
    return _line_rows(path, text) if _has_a_row_a_line(path, text) else _json_rows(path, text)


def _text(path: Path) -> str:
    data = path.read_bytes()
    for start, (what, way_out) in _NO_TEXT.items():
        if data.startswith(start):
            raise ValueError(f"{path} is {what}, not text: {way_out}.")
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
            yield _row(where, _parsed(where, line, _value))


def _has_a_row_a_line(path: Path, text: str) -> bool:
    """Says whether a text of JSON has an object on each line, as many .json files have, too."""
    first, second, *_ = (*(found[0] for found in itertools.islice(_LINE.finditer(text), 2)), "", "")
    if not second:
        return not (path.suffix == _JSON or first.lstrip().startswith("["))
    # The only object of a list may stand on the second line.
    return _is_json(first, _value) or (_is_json(second, _value) and not _is_json(text, _values))


def _is_json(text: str, read: Callable[[str], object]) -> bool:
    try:
        read(text)
    except (ValueError, RecursionError):
        return False
    return True


def _json_rows(path: Path, text: str) -> Iterator[DataRow]:
    """Yields the objects of a text that is JSON as a whole."""
    values = _parsed(str(path), text, _values)
    listed = values[0] if len(values) == 1 else values
    if isinstance(listed, dict):
        lists = [name for name, value in listed.items() if _is_list_of_rows(value)]
        if len(lists) > 1:
            raise ValueError(
                f"{path} has several lists of rows: {', '.join(map(repr, lists))}. Save the one"
                " that is meant as a file of its own."
            )
        listed = listed[lists[0]] if lists else [listed]
    if not isinstance(listed, list):
        listed = [listed]
    for number, value in enumerate(listed, start=1):
        yield _row(f"{path}, row {number}", value)


def _is_list_of_rows(value: object) -> bool:
    """Says whether a value is a list of objects that are no messages."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(one, dict) and not _SPEAKERS & set(one) for one in value)
    )


def _are_messages(value: object) -> bool:
    """Says whether a value is a list of messages, in the form of OpenAI or ShareGPT."""
    return isinstance(value, list) and all(
        isinstance(one, dict) and _SPEAKERS & set(one) for one in value
    )


def _table_rows(path: Path, text: str, separator: str) -> Iterator[DataRow]:
    """Yields the rows of a table of texts, whose first line has the names of the fields.

    A text that is a list of messages, as JSON or as Python writes it, is read as such.
    """
    csv.field_size_limit(_MOST_CHARACTERS)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    names: list[str] = []
    line = 1
    try:
        for values in reader:
            where, line = f"{path}, line {line}", reader.line_num + 1
            if not names and values:
                names = _names(where, values, separator)
            elif values and len(values) != len(names):
                raise ValueError(
                    f"{where} has {len(values)} fields, and the first line names {len(names)}"
                    f" ({', '.join(names)}): put fields with {separator!r}, quotes or line breaks"
                    ' between ", and double quotes in them.'
                )
            elif values:
                fields = zip(names, values, strict=True)
                yield DataRow(where, {name: _cell(where, name, text) for name, text in fields})
    except csv.Error as error:
        raise ValueError(
            f"{path}, line {line} is no row of fields separated by {separator!r}: {error}."
        ) from error


def _cell(where: str, name: str, text: str) -> Any:
    if not _MESSAGES_TEXT.match(text):
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        try:
            value = ast.literal_eval(text.strip())  # As pandas writes lists.
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            raise ValueError(
                f"{where}: {name!r} begins as messages do, and is not JSON: {error}."
            ) from error
    return value if _are_messages(value) else text


def _names(where: str, names: list[str], separator: str) -> list[str]:
    """Returns the names of a table's first line; raises if they cannot be names."""
    if len(names) == 1:
        other = next(
            (one for one in (",", ";", "\t") if one in names[0] and one != separator), None
        )
        if other is not None:
            endings = " and ".join(f"{ending} for {one!r}" for ending, one in _SEPARATORS.items())
            raise ValueError(
                f"{where} has one field, {names[0]!r}, which {other!r} seems to separate. The"
                f" ending of a file names its separator: {endings}."
            )
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"{where} names the field {twice[0]!r} twice: rename one of them.")
    return names


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except ValueError:  # A number has more digits than Python converts.
        return json.loads(text, parse_int=_int_or_text)


def _values(text: str) -> list[Any]:
    """Returns the values that a text of JSON has one after another."""
    values, at, decoder = [], 0, json.JSONDecoder(parse_int=_int_or_text)
    while at < len(text):
        value, at = decoder.raw_decode(text, _behind_space(text, at))
        values.append(value)
        at = _behind_space(text, at)
    return values


def _behind_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


def _parsed(where: str, text: str, read: Callable[[str], T]) -> T:
    try:
        return read(text)
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


def _row(where: str, value: object) -> DataRow:
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
        if unknown := _UNKNOWN_SPLIT.match(reasons[0]):
            raise _no_split(source, unknown[1], re.findall(r"'([^']*)'", unknown[2])) from error
        raise ValueError(
            f"{source.path_setting}={source.path}{_part(source)} cannot be loaded:"
            f" {': '.join(reasons)}"
        ) from error
    if isinstance(loaded, datasets.DatasetDict):
        if source.split not in loaded:
            raise _no_split(source, source.split, [*map(str, loaded)])
        loaded = loaded[source.split]
    for number, fields in enumerate(_undecoded(loaded), start=1):
        where = f"{source.path}{_part(source)}, row {number}"
        yield DataRow(where, fields, is_padded=True)


def _no_split(source: RowSource, split: str, known: Sequence[str]) -> ValueError:
    return ValueError(
        f"{source.path} has no split {split!r} ({source.split_setting}); it has"
        f" {', '.join(map(repr, known))}{hint(split, known)}"
    )


def _undecoded(loaded: Any) -> Iterator[Mapping[str, Any]]:
    """Yields rows with the files of their images, which the library would decode."""
    if not _has_images(loaded.features):
        yield from loaded
        return
    for table in loaded.with_format("arrow").iter(batch_size=_BATCH_ROWS):
        yield from table.to_pylist()


def _has_images(feature: object) -> bool:
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
