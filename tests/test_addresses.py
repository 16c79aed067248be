"""Addresses of servers, of both versions of the Internet Protocol."""

import pytest

from rl_sync.addresses import address_of, parts_of


@pytest.mark.parametrize(
    ("host", "port", "address"),
    [("10.0.0.1", 80, "10.0.0.1:80"), ("fd00::1", 80, "[fd00::1]:80"), ("node", 1, "node:1")],
)
def test_a_host_and_a_port_are_joined_and_parted(host, port, address):
    assert address_of(host, port) == address
    assert parts_of(address) == (host, port)


@pytest.mark.parametrize("text", ["node", "node:", "node:x"])
def test_an_address_needs_a_port(text):
    with pytest.raises(ValueError, match="invalid literal"):
        parts_of(text)
