"""Writes plain values as messages; only these pass between a judged program and its tests.

A message is a JSON text behind its length. JSON has no tuples, sets and so on, so everything but
None, booleans, strings, floats and small integers is a pair of a tag and its content. Decoding
makes only objects of the types listed here, whose operators are Python's own: no class and no code
of the sender arrives. An iterator arrives as an iterator over a list of its items.

Imports of the standard library are few and of C modules, as the start of a sandbox waits for them:
`json`, `ast` and `typing` each take as long as the interpreter itself.
"""

from __future__ import annotations

import io
import os
import sys
from _collections_abc import Iterator, Mapping, Sequence, Set, ValuesView

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

DEEPEST = 100
MOST_ITEMS = 1_000_000
_SMALL = 1 << 53


class NotPlainError(TypeError):
    """Raised for a value that no message can hold.

    Attributes:
      value: the part of it that has an unsupported type, if that is the reason.
    """

    value: Any = None


class TooLargeError(NotPlainError):
    """Raised for a plain value that is too deep or too long."""


class MessageError(ValueError):
    """Raised for a message that breaks the rules, so its sender cannot be trusted."""


def encode(value: object, depth: int = 0) -> Any:
    """Turns a value into what JSON can hold.

    Subclasses of the types become the types, and numbers and arrays of NumPy become Python's.

    Raises:
      NotPlainError: the value, or a part of it, is of another type, or is nested too deeply.
    """
    if value is None or value is True or value is False or type(value) in (str, float):
        return value
    if depth > DEEPEST:
        raise TooLargeError(f"a value nested more than {DEEPEST} deep")
    kind = type(value)
    for base, tag, content in _ENCODERS:
        if kind is base or isinstance(value, base):
            return content(value, depth + 1) if tag is None else [tag, content(value, depth + 1)]
    if kind.__module__.partition(".")[0] == "numpy" and hasattr(value, "tolist"):
        return encode(value.tolist(), depth + 1)
    if kind.__module__ in ("decimal", "fractions") and kind.__name__ in ("Decimal", "Fraction"):
        return [kind.__name__, str(value)]
    error = NotPlainError(f"a value of type {kind.__module__}.{kind.__qualname__}")
    error.value = value
    raise error


def decode(value: object, depth: int = 0) -> Any:
    """Turns what JSON held back into a value.

    Raises:
      MessageError: it is not a result of `encode`.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if depth > DEEPEST or not isinstance(value, list) or len(value) != 2:
        raise MessageError("a malformed value")
    tag, content = value
    decoder = _DECODERS.get(tag) if isinstance(tag, str) else None
    if decoder is None:
        raise MessageError("a value of an unknown kind")
    try:
        return decoder(content, depth + 1)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise MessageError(f"a malformed value: {error}") from None


def _encode_items(items: Any, depth: int) -> list:
    encoded: list[Any] = []
    for item in items:
        if len(encoded) >= MOST_ITEMS:
            raise TooLargeError(f"a value of more than {MOST_ITEMS} items")
        encoded.append(encode(item, depth))
    return encoded


def _encode_mapping(mapping: Any, depth: int) -> list:
    return [[encode(key, depth), encode(item, depth)] for key, item in mapping.items()]


def _encode_int(value: int, depth: int) -> Any:
    # Python refuses long decimal numbers, as reading them takes time quadratic in their length.
    return int(value) if -_SMALL < value < _SMALL else ["int", hex(value)]


# The order matters: the first row that fits is taken.
_ENCODERS: list[tuple[Any, str | None, Callable[[Any, int], Any]]] = [
    (list, "list", _encode_items),
    (int, None, _encode_int),
    (str, None, lambda value, depth: str.__str__(value)),
    (float, None, lambda value, depth: float.__add__(value, 0.0)),
    (tuple, "tuple", _encode_items),
    (dict, "dict", _encode_mapping),
    (set, "set", _encode_items),
    (frozenset, "frozenset", _encode_items),
    (complex, "complex", lambda value, depth: [value.real, value.imag]),
    (bytes, "bytes", lambda value, depth: value.hex()),
    (bytearray, "bytearray", lambda value, depth: value.hex()),
    (
        range,
        "range",
        lambda value, depth: [encode(n) for n in (value.start, value.stop, value.step)],
    ),
    (Mapping, "dict", _encode_mapping),
    (Set, "set", _encode_items),
    ((Sequence, Iterator, ValuesView), "iterator", _encode_items),
]


def _decode_items(content: Any, depth: int) -> list:
    if not isinstance(content, list):
        raise MessageError("a list that is none")
    return [decode(item, depth) for item in content]


def _decode_mapping(content: Any, depth: int) -> dict:
    return {decode(key, depth): decode(item, depth) for key, item in content}


def _decode_number(content: Any, depth: int) -> int:
    return int(content, 16)


def _decode_exact(name: str, module: str) -> Callable[[Any, int], Any]:
    def decoder(content: Any, depth: int) -> Any:
        if not isinstance(content, str) or len(content) > 4000 or "e" in content.lower():
            raise MessageError(f"a {name} that is too long")
        return getattr(__import__(module), name)(content)

    return decoder


_DECODERS: dict[str, Callable[[Any, int], Any]] = {
    "list": _decode_items,
    "int": _decode_number,
    "tuple": lambda content, depth: tuple(_decode_items(content, depth)),
    "dict": _decode_mapping,
    "set": lambda content, depth: set(_decode_items(content, depth)),
    "frozenset": lambda content, depth: frozenset(_decode_items(content, depth)),
    "complex": lambda content, depth: complex(*content),
    "bytes": lambda content, depth: bytes.fromhex(content),
    "bytearray": lambda content, depth: bytearray.fromhex(content),
    "range": lambda content, depth: range(*_decode_items(content, depth)),
    "iterator": lambda content, depth: iter(_decode_items(content, depth)),
    "Decimal": _decode_exact("Decimal", "decimal"),
    "Fraction": _decode_exact("Fraction", "fractions"),
}


class _Reading:
    """The settings of `json.loads`, as the C scanner wants them."""

    strict, object_hook, object_pairs_hook = True, None, None
    parse_float, parse_int = float, int
    parse_constant = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": -float("inf")}.get


def _refuse(value: object) -> Any:
    raise TypeError(f"{type(value).__name__} in a message")


def _json() -> tuple[Callable[[Any], str], Callable[[str], Any]]:
    """Returns functions that write and read JSON: of the C module, if it works as expected."""
    try:
        from _json import encode_basestring_ascii, make_encoder, make_scanner

        write = make_encoder(
            None, _refuse, encode_basestring_ascii, None, ":", ",", False, False, True
        )
        scan: Any = make_scanner(_Reading)  # type: ignore[arg-type]

        def read(text: str) -> Any:
            value, end = scan(text, 0)
            if end != len(text):
                raise ValueError("more than one value")
            return value

        known = ["é\n", 1, -1.5, None, [True, {"a": []}]]
        if read("".join(write(known, 0))) == known:
            return lambda value: "".join(write(value, 0)), read
    except (ImportError, AttributeError, TypeError, ValueError):
        pass
    import json

    return lambda value: json.dumps(value, separators=(",", ":")), json.loads


to_json, from_json = _json()


def take_streams(*others: int) -> list[Any]:
    """Returns the standard streams as binary streams, and keeps all other code from using them.

    Other code then reads nothing, and what it prints goes to `others`, or nowhere.

    Args:
      others: the descriptors to put in place of output and error output; empty to discard both.

    Returns:
      The streams of input, output and error output.
    """
    if not hasattr(os, "dup2"):  # WebAssembly.
        sys.stdin, sys.stdout = io.StringIO(), sys.stderr if others else _Nothing()
        sys.stderr = sys.stderr if others else _Nothing()
        return [os.fdopen(0, "rb"), os.fdopen(1, "wb"), os.fdopen(2, "wb")]
    streams = [os.fdopen(os.dup(number), "rb" if number == 0 else "wb") for number in range(3)]
    nothing = os.open(os.devnull, os.O_RDWR)
    for number, source in enumerate((nothing, *(others or (nothing, nothing)))):
        os.dup2(source, number)
    return streams


class _Nothing(io.TextIOBase):
    """A text stream that discards what is written."""

    def write(self, text: str) -> int:
        """Discards a text."""
        return len(text)


def write_message(stream: Any, message: Any) -> None:
    """Writes a message to a binary stream."""
    text = to_json(message).encode()
    stream.write(len(text).to_bytes(4, "big") + text)
    stream.flush()


def read_message(stream: Any, most_bytes: int = 1 << 30) -> Any:
    """Reads a message; None at the end of the stream.

    Raises:
      MessageError: the message is too long, or not JSON.
    """
    head = stream.read(4)
    if len(head) < 4:
        return None
    if (length := int.from_bytes(head, "big")) > most_bytes:
        raise MessageError(f"a value of {length} bytes, where {most_bytes} are allowed")
    text = stream.read(length)
    if len(text) < length:
        return None
    try:
        return from_json(text.decode())
    except (ValueError, RecursionError, StopIteration):
        raise MessageError("a message that is no JSON") from None
