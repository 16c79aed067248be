"""A reader of version files that knows nothing but docs/sync.md; it imports nothing of rl_sync."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path

import cramjam
import ml_dtypes
import numpy as np
import xxhash

SAME, RAW, SPARSE, PLANES = range(4)
UNSIGNED = {1: "<u1", 2: "<u2", 4: "<u4", 8: "<u8"}


def size_of(dtype: str) -> int:
    return np.dtype(getattr(ml_dtypes, dtype, dtype)).itemsize


def mix(x):
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))


def digest(arrays: dict, leaves: list) -> str:
    total = np.zeros(2, np.uint32)
    for name, dtype, shape in leaves:
        bits = arrays[name].reshape(-1)
        words = bits.view("<u4") if bits.itemsize == 8 else bits.astype(np.uint32)
        index = np.arange(len(words), dtype=np.uint32)
        once = mix(words + index * np.uint32(0x9E3779B1))
        twice = once ^ (words * np.uint32(0x85EBCA77) + np.uint32(0x9E3779B1))
        sums = np.array([once.sum(dtype=np.uint32), twice.sum(dtype=np.uint32)], np.uint32)
        path = "".join(f"[{key!r}]" for key in name.split("/"))
        salt = hashlib.sha256(repr((path, tuple(shape), dtype)).encode()).digest()[:8]
        total += mix(sums ^ np.frombuffer(salt, "<u4"))
    return f"{total[0]:08x}{total[1]:08x}"


def planes(raw: bytes, count: int, size: int):
    assert len(raw) == count * size
    return np.frombuffer(raw, np.uint8).reshape(size, count).T.copy().view(UNSIGNED[size]).ravel()


def decoded(encoding: int, raw: bytes, old, nbytes: int, size: int):
    if encoding == SAME:
        assert not raw
        return old
    if encoding == RAW:
        assert len(raw) == nbytes
        return np.frombuffer(raw, UNSIGNED[size])
    body = bytes(cramjam.zstd.decompress(raw))
    (count,) = struct.unpack("<Q", body[:8])
    new = old.copy()
    if encoding == PLANES:
        new ^= planes(body[8:], len(new), size)
        assert count == (new != old).sum()
        return new
    assert encoding == SPARSE
    at, position = 8, -1
    positions = []
    for _ in range(count):
        while body[at] == 255:
            position, at = position + 255, at + 1
        position, at = position + body[at] + 1, at + 1
        positions.append(position)
    new[positions] ^= planes(body[at:], count, size)
    return new


def read(directory: Path, manifest: dict, base: dict | None) -> tuple[dict, set[int]]:
    """Returns the arrays of an artifact as unsigned integers, and the encodings that it has."""
    shapes = {name: tuple(shape) for name, _, shape in manifest["leaves"]}
    sizes = {name: size_of(dtype) for name, dtype, _ in manifest["leaves"]}
    new = {name: np.zeros(shape, UNSIGNED[sizes[name]]) for name, shape in shapes.items()}
    hits = {name: np.zeros(shape, np.uint8) for name, shape in shapes.items()}
    seen, total = set(), 0
    for file in manifest["files"]:
        content = (directory / file).read_bytes()
        (length,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8 : 8 + length])
        tables = json.loads(header.pop("__metadata__")["blocks"])
        for part, entry in header.items():
            first, last = (8 + length + offset for offset in entry["data_offsets"])
            name, _, text = part.partition("@")
            cut = tuple(slice(*map(int, axis.split(":"))) for axis in text.split(",") if axis)
            cut = cut or (...,)
            size, region = sizes[name], new[name][cut]
            old = None if base is None else np.ascontiguousarray(base[name][cut]).ravel()
            step, out, at = manifest["block_bytes"] // size, [], first
            for number, (encoding, nbytes, check) in enumerate(tables[part]):
                raw = content[at : at + nbytes]
                assert xxhash.xxh3_128_hexdigest(raw) == check
                before = None if old is None else old[number * step : (number + 1) * step]
                here = min(step, region.size - number * step) * size
                out.append(decoded(encoding, raw, before, here, size))
                at, total = at + nbytes, total + nbytes
                seen.add(encoding)
            assert at == last
            new[name][cut] = np.concatenate(out).reshape(region.shape)
            hits[name][cut] += 1
    assert all((hit == 1).all() for hit in hits.values())
    assert total == manifest["nbytes"]
    assert digest(new, manifest["leaves"]) == manifest["digest"]
    return new, seen


def read_all(directory: Path) -> tuple[dict[int, dict], set[int]]:
    """Returns every version, by every way to it, and the encodings that were seen."""
    manifests = [json.loads(path.read_text()) for path in sorted(directory.glob("*.json"))]
    versions, encodings = {}, set()
    for full in [one for one in manifests if one["base"] is None]:
        arrays, seen = read(directory, full, None)
        ways = {full["version"]: (arrays, full["digest"])}
        encodings |= seen
        for delta in manifests:
            if delta["base"] not in ways:
                continue
            before, known = ways[delta["base"]]
            assert delta["base_digest"] == known
            arrays, seen = read(directory, delta, before)
            ways[delta["version"]] = arrays, delta["digest"]
            encodings |= seen
        for version, (arrays, _) in ways.items():
            other = versions.setdefault(version, arrays)
            assert all((other[name] == arrays[name]).all() for name in arrays)
    return versions, encodings
