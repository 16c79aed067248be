"""Numbers of requests, by which the master knows a request that comes again."""

from __future__ import annotations

import secrets

_BITS = 53  # As many as JSON numbers have in every reader.


def request_number() -> int:
    """Returns a number that no other request has, from any process or after any restart."""
    return secrets.randbits(_BITS)
