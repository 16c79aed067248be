"""Names of accelerators to compile for."""

import re

import pytest

from rl_sync.plan.chips import CHIPS
from rl_sync.plan.targets import Target, TargetError, target


@pytest.mark.parametrize(
    ("text", "shape", "count"),
    [
        ("v5e:4x4", (4, 4), 16),
        ("v5p:2x2x1", (2, 2, 1), 4),
        ("tpu7x:2x2x1", (2, 2, 1), 8),  # Two devices a chip.
        ("h100:8", (8,), 8),
        *((f"{name}:1", (1,), 1) for name, chip in CHIPS.items() if chip.platform == "gpu"),
        ("2xv5e:4x4", (4, 4), 32),
    ],
)
def test_a_target_is_a_chip_and_a_shape(text, shape, count):
    found = target(text)
    assert (found.shape, found.count, str(found)) == (shape, count, text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("v5e", "chip and a shape"),
        ("v5x:2x2", "not one of the chips"),
        ("h100:2x4", "a number of GPUs"),
        ("v5e:0x2", "chips along each axis"),
        ("0xv5e:2x2", "chips along each axis"),
        ("2xh100:8", "in no slices"),
        ("2xtpu:4", "not one of the chips"),
    ],
)
def test_others_are_refused_in_a_line(text, says):
    with pytest.raises(TargetError, match=says) as error:
        target(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", [name for name in CHIPS if CHIPS[name].platform == "gpu"])
def test_the_compiler_knows_each_kind_of_gpu(name, devices):
    (found,) = devices(f"{name}:1")
    number = re.search(r"\d+", name)[0]
    assert re.search(rf"(?<!\d){number}\b|{name.upper()}\b", found.device_kind)


def test_devices_of_a_chip_share_its_memory_and_rates():
    # A chip of tpu7x: 192 GB, 2,307 TFLOPs, 7.38 TB/s and a network of 100 Gbit/s.
    chip = target("tpu7x:1x1x1").chip
    shares = (chip.memory, chip.flops, chip.bandwidth, chip.network)
    assert [chip.devices * share for share in shares] == [192e9, 2307e12, 7.38e12, 12.5e9]


@pytest.mark.parametrize(
    ("text", "links"),
    [
        ("v5e:1x1", 0),
        ("v5e:1x8", 1),
        ("v5e:2x4", 2),
        ("v6e:8x8", 2),
        ("v5e:8x16", 3),  # The longer axis spans the pod.
        ("v5e:16x16", 4),
        ("v4:2x2x1", 2),
        ("v5p:2x2x4", 3),  # No whole cube.
        ("v5p:4x4x4", 6),
        ("tpu7x:4x4x8", 6),
    ],
)
def test_links_follow_from_the_shape_of_a_slice(text, links):
    assert target(text).links == links


@pytest.mark.parametrize(
    ("text", "devices", "gigabytes"),
    [
        ("v5e:4x4", 16, 2 * 45),
        ("v5e:16x16", 16, 4 * 45),
        ("tpu7x:2x2x1", 8, 2 * 100),
        ("tpu7x:1x1x1", 2, 6 * 100),  # The two devices of one chip.
        ("h100:16", 8, 450),
        ("h100:16", 16, 50),  # On two hosts.
    ],
)
def test_devices_exchange_bytes_over_the_links_that_they_have(text, devices, gigabytes):
    assert target(text).rates(devices).link == gigabytes * 1e9


def test_a_missing_compiler_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(TargetError, match=r"pip install 'rl_sync\[tpu\]'"):
        Target("v5e", (2, 2)).devices()
    with pytest.raises(TargetError, match=r"pip install 'rl_sync\[cuda\]'"):
        Target("h100", (1,)).devices()
