"""Names of accelerators to compile for."""

import pytest

from rl_sync.aot.targets import Target, TargetError, target


@pytest.mark.parametrize(
    ("text", "shape", "count"),
    [("v5e:4x4", (4, 4), 16), ("v5p:2x2x1", (2, 2, 1), 4), ("h100:8", (8,), 8)],
)
def test_a_target_is_a_chip_and_a_shape(text, shape, count):
    found = target(text)
    assert (found.shape, found.count, str(found)) == (shape, count, text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("v5e", "chip and a shape"),
        ("v5x:2x2", "no kind of chip"),
        ("h100:2x4", "a number of GPUs"),
        ("v5e:0x2", "chips along each axis"),
    ],
)
def test_others_are_refused_in_a_line(text, says):
    with pytest.raises(TargetError, match=says) as error:
        target(text)
    assert "\n" not in str(error.value)


def test_a_missing_compiler_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(TargetError, match=r"pip install 'jax\[tpu\]=="):
        Target("v5e", (2, 2)).devices()
