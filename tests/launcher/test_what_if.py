"""The flags of `tune` that ask what if."""

import pytest

from rl_sync.launcher import what_if
from rl_sync.settings.records import ConfigError


def test_numbers_are_lists_or_doubling_ranges():
    assert what_if.numbers("explorers", "1:64", 1) == [1, 2, 4, 8, 16, 32, 64]
    assert what_if.numbers("explorers", "3:10", 1) == [3, 6, 10]
    assert what_if.numbers("offsets", "0:3", 0) == [0, 1, 2, 3]
    assert what_if.numbers("explorers", "6,1,6", 1) == [1, 6]


@pytest.mark.parametrize("text", ["", "0", "5:2", "1:", "a", "1,,2", "-1", "1.5"])
def test_other_texts_are_not_numbers(text):
    with pytest.raises(ConfigError, match=f"--explorers={text} must be whole numbers"):
        what_if.numbers("explorers", text, 1)


def test_names_are_known_ones():
    assert what_if.names("modes", "a, b", ["a", "b", "c"]) == ["a", "b"]
    with pytest.raises(ConfigError, match=r"'asynchron' is not one of .* did you mean"):
        what_if.names("modes", "asynchron", ["synchronous", "asynchronous"])


def test_a_network_has_a_bandwidth_and_a_latency():
    link = what_if.network("8Mbit/s,20ms")
    assert link == (1e6, 0.02)
    assert link.secs(2e6) == 2.02
    assert what_if.network("2GB/s") == (2e9, 0.0)


@pytest.mark.parametrize("text", ["fast", "10", "0Gbit/s", "10Gbit/s,2", "1.2.3Gbit/s", "1GBit"])
def test_other_texts_are_no_networks(text):
    with pytest.raises(ConfigError, match="must be a bandwidth"):
        what_if.network(text)


def test_devices_are_factors():
    assert what_if.devices("trainer:2, explorer:0.5,apart") == (2.0, 0.5, True)
    assert what_if.devices("apart") == (1.0, 1.0, True)
    for text in ("gpu", "trainer:0", "trainer", "explorer:-1"):
        with pytest.raises(ConfigError, match="must be trainer:FACTOR"):
            what_if.devices(text)
