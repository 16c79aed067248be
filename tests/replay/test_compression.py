"""Large data are compressed by several threads, with the same result as by one."""

import cramjam
import numpy as np
import pytest

from rl_sync.replay import compression


def data_of(size_bytes: int) -> memoryview:
    values = np.random.default_rng(0).integers(0, 512, size_bytes // 4 + 1).astype(np.int32)
    return memoryview(values.tobytes())[:size_bytes]


@pytest.mark.parametrize("size_bytes", [1, 65_536, 524_288, 524_289, 1_000_003, 4_000_000])
def test_whatever_the_cores_the_bytes_are_those_of_snappy_itself(monkeypatch, size_bytes):
    data = data_of(size_bytes)
    for cores in (1, 2, 3, 8):
        monkeypatch.setattr(compression, "_cores", lambda cores=cores: cores)
        pieces = compression.compress(data)
        assert b"".join(pieces) == bytes(cramjam.snappy.compress_raw(data))
        assert (len(pieces) > 1) == (cores > 1 and size_bytes >= 524_288)


def test_varints_carry_seven_bits_a_byte():
    assert [compression.varint(n) for n in (0, 127, 128, 300)] == [
        b"\x00", b"\x7f", b"\x80\x01", b"\xac\x02",
    ]  # fmt: skip
