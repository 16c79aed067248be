"""Frames between a host and a worker: a length, then as many bytes."""

from __future__ import annotations

import socket
import struct

LENGTH = struct.Struct("<I")
MOST_BYTES = 64 << 20
"""Maximum length of a frame. A longer answer is invalid, and must not fill the host's memory."""


def framed(payload: bytes) -> bytes:
    """Returns a frame of a payload of at most `MOST_BYTES`."""
    assert len(payload) <= MOST_BYTES, "a sender checks what it sends"
    return LENGTH.pack(len(payload)) + payload


def receive(channel: socket.socket) -> bytes | None:
    """Waits for a whole frame on a blocking socket and returns its payload; None at the end."""
    head = _exactly(channel, LENGTH.size)
    return None if head is None else _exactly(channel, LENGTH.unpack(head)[0])


def take(inbox: bytearray) -> bytes | None:
    """Removes the first frame from received bytes; returns its payload, or None if incomplete.

    Raises:
      ValueError: the frame is longer than `MOST_BYTES`.
    """
    if len(inbox) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack_from(inbox)
    if length > MOST_BYTES:
        raise ValueError(f"announced {length} bytes, which is no answer")
    end = LENGTH.size + length
    if len(inbox) < end:
        return None
    payload = bytes(memoryview(inbox)[LENGTH.size : end])
    del inbox[:end]
    return payload


def _exactly(channel: socket.socket, size: int) -> bytes | None:
    received = bytearray()
    while len(received) < size:
        chunk = channel.recv(min(size - len(received), 1 << 20))
        if not chunk:
            return None
        received += chunk
    return bytes(received)
