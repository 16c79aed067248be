"""Serialization for other processes: msgpack with tuples, arrays and records.

Decoding runs no code of the sender: a record is rebuilt from a class that is registered here, and
an error from a class whose only argument is a message. A process may also pickle values for a
worker that it has started; the worker's answers never have pickled values.

Programs in a sandbox send their values by `rl_sync.sandbox.inside.plain` instead: the interpreter
there has no packages, and may be WebAssembly.
"""

from __future__ import annotations

import builtins
import dataclasses
import functools
import pickle
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar

import msgpack
import numpy as np

from rl_sync.images import Image

_TUPLE, _ARRAY, _RECORD, _ERROR, _INTEGER, _COLUMNS, _PICKLE = range(1, 8)
_TEXT = "surrogatepass"
"""Error handler for text: users' data may have unpaired surrogates, which must arrive unchanged."""
_BUFFER_BYTES = 1 << 12
"""Buffer size of a packer. Each part of a value has a packer, and msgpack's default is 1 MiB."""
_records: dict[str, type] = {}

C = TypeVar("C", bound=type)
T = TypeVar("T")


class Records(list[T]):
    """A list of records of one class, which is encoded column by column.

    This takes a tenth of the time of encoding the records one by one.
    """


def record(cls: C) -> C:
    """Registers a dataclass or a NamedTuple, whose objects are encoded by field; a decorator."""
    assert _records.get(cls.__name__, cls) is cls, f"two records are called {cls.__name__}"
    _records[cls.__name__] = cls
    return cls


record(Image)


def encode(value: object) -> bytes:
    """Encodes numbers, text, bytes, arrays, records, errors, and collections of them.

    Raises:
      TypeError: the value or a part of it has another type, or its class is not registered.
    """
    return _packed(value, _extension)


def encode_for_worker(value: object) -> bytes:
    """Encodes a value for a worker of this process; objects of other classes are pickled.

    Rows of data may have any fields, such as dates.

    Raises:
      Exception: a part of it cannot be pickled; each class raises errors of its own.
    """
    return _packed(value, _extension_for_worker)


def decode(data: bytes) -> Any:
    """Decodes a value.

    Raises:
      ValueError: the data do not encode a value.
    """
    return _unpacked(data, _value)


def decode_of_host(data: bytes) -> Any:
    """Decodes a value sent by the process that started this one, which is trusted.

    Raises:
      Exception: the data do not encode a value, or a class of it cannot be imported.
    """
    return _unpacked(data, _value_of_host)


def _packed(value: object, extension: Callable[[object], msgpack.ExtType]) -> bytes:
    packer = msgpack.Packer(
        default=extension, strict_types=True, unicode_errors=_TEXT, buf_size=_BUFFER_BYTES
    )
    return packer.pack(value)


def _unpacked(data: bytes, value: Callable[[int, bytes], Any]) -> Any:
    return msgpack.unpackb(data, ext_hook=value, strict_map_key=False, unicode_errors=_TEXT)


def _extension(value: object) -> msgpack.ExtType:
    """Encodes a value that msgpack does not support."""
    found = _extended(value, encode)
    if found is None:
        raise TypeError(f"A {type(value).__name__} cannot be sent to other processes.")
    return found


def _extension_for_worker(value: object) -> msgpack.ExtType:
    """Encodes a value that msgpack does not support, or pickles it."""
    try:
        found = _extended(value, encode_for_worker)
    except TypeError:  # An array of objects, or a list of records of several classes.
        found = None
    return found or msgpack.ExtType(_PICKLE, pickle.dumps(value, protocol=5))


def _extended(value: object, encode: Callable[[object], bytes]) -> msgpack.ExtType | None:
    """Encodes a value with one of the extensions here; None if none fits."""
    if (name := type(value).__name__) in _records and type(value) is _records[name]:
        fields = {field: getattr(value, field) for field in _fields(name)}
        return msgpack.ExtType(_RECORD, encode([name, fields]))
    if type(value) is tuple:
        return msgpack.ExtType(_TUPLE, encode(list(value)))
    if type(value) is Records:
        return msgpack.ExtType(_COLUMNS, encode(_columns(value)))
    if isinstance(value, np.ndarray | np.generic):
        return msgpack.ExtType(_ARRAY, encode(_plain(np.asarray(value))))
    if isinstance(value, BaseException):
        return msgpack.ExtType(_ERROR, encode(_described(value)))
    if type(value) is int:  # More than 64 bits.
        return msgpack.ExtType(_INTEGER, encode(hex(value)))
    return None


def _value(code: int, data: bytes) -> Any:
    """Inverts `_extension`."""
    if code == _PICKLE:
        raise ValueError("A pickled object arrived, which only a worker reads, of its own host.")
    return _reduced(code, decode(data))


def _value_of_host(code: int, data: bytes) -> Any:
    """Inverts `_extension_for_worker`."""
    return pickle.loads(data) if code == _PICKLE else _reduced(code, decode_of_host(data))


def _reduced(code: int, value: Any) -> Any:
    """Inverts `_extended`, given the decoded content."""
    if code == _TUPLE:
        return tuple(value)
    if code == _ARRAY:
        name, shape, content = value
        array = np.frombuffer(content, np.dtype(name)).reshape(shape).copy()
        return array if shape else array[()]
    if code == _RECORD:
        name, fields = value
        return _class_of(name, fields.keys())(**fields)
    if code == _COLUMNS:
        return _made_of_columns(*value) if value else Records()
    if code == _ERROR:
        return _error(*value)
    if code == _INTEGER:
        return int(value, 16)
    raise ValueError(f"Extension {code} is not one that processes send each other.")


@functools.cache
def _fields(name: str) -> Sequence[str]:
    """Returns the names of a record's fields."""
    cls: Any = _records[name]
    if dataclasses.is_dataclass(cls):
        return [field.name for field in dataclasses.fields(cls)]
    return cls._fields


def _columns(records: Records[Any]) -> list[Any]:
    """Returns the class name of records and their fields as columns; [] if there are none."""
    if not records:
        return []
    kind = type(records[0])
    name = kind.__name__
    if _records.get(name) is not kind or any(type(one) is not kind for one in records):
        raise TypeError(f"A list of {name} records has a record of another class.")
    if dataclasses.is_dataclass(kind):
        columns: Iterable[Any] = (
            [getattr(one, field) for one in records] for field in _fields(name)
        )
    else:
        columns = zip(*records, strict=True)
    return [
        name,
        {field: _column(values) for field, values in zip(_fields(name), columns, strict=True)},
    ]


def _column(values: Sequence[object]) -> list[Any]:
    """Returns values as a list, which is encoded column by column if they are records."""
    kind = type(values[0])
    is_known = _records.get(kind.__name__) is kind
    return Records(values) if is_known and {*map(type, values)} == {kind} else list(values)


def _made_of_columns(name: str, columns: Mapping[str, Sequence[Any]]) -> Records[Any]:
    """Inverts `_columns`."""
    make = _class_of(name, columns.keys())
    return Records(map(make, *(columns[field] for field in _fields(name))))


def _class_of(name: str, fields: AbstractSet[str]) -> Any:
    """Returns the registered class with a name and fields.

    Raises:
      ValueError: no such class is registered.
    """
    if name not in _records:
        raise ValueError(f"A {name} is not a record that processes send each other.")
    known = _fields(name)
    if fields == set(known):
        return _records[name]
    missing = [field for field in known if field not in fields]
    unknown = [field for field in fields if field not in known]
    wrong = [f"lacks {', '.join(missing)}"] * bool(missing)
    wrong += [f"has {', '.join(unknown)}, which it does not know"] * bool(unknown)
    raise ValueError(
        f"A {name} that arrived {' and '.join(wrong)}: the processes of a run must all have"
        " the same rl_sync."
    )


def _plain(array: np.ndarray) -> list[Any]:
    if array.dtype.kind not in "biufcV" or array.dtype.fields:
        raise TypeError(f"An array of {array.dtype} cannot be sent to other processes.")
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    return [array.dtype.name, list(array.shape), array.tobytes()]


def _described(error: BaseException) -> list[str]:
    """Returns the module and name of an error's class, and its message."""
    kind, message = type(error), str(error)
    if isinstance(error, Exception) and error.args in ((), (message,)):
        return [kind.__module__, kind.__name__, message]
    return ["builtins", "RuntimeError", f"{kind.__name__}: {message}"]


def _error(module: str, name: str, message: str) -> Exception:
    """Makes an error of a class of ours or Python's; otherwise one that names the class."""
    found: Any = None
    if module == builtins.__name__ or module.partition(".")[0] == __name__.partition(".")[0]:
        found = vars(sys.modules.get(module, builtins)).get(name)
    make: Callable[[str], Exception] = RuntimeError
    if isinstance(found, type) and issubclass(found, Exception):
        make = found
    else:
        message = f"{name}: {message}"
    try:
        return make(message)
    except TypeError:  # The class takes more arguments than a message.
        return RuntimeError(f"{name}: {message}")
