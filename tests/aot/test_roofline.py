"""The bytes that devices exchange in a trainer step, counted from shapes."""

import pytest

from rl_sync.aot.roofline import Passes, step_links
from rl_sync.models.config import ModelConfig
from rl_sync.models.sharding import Layout, MeshShape
from rl_sync.settings.meshes import ShardingSettings

MODEL = ModelConfig(64, 32, 2, 4, 2, 8, 64, 16, dtype="bfloat16")
ROWS = (8, 16)
"""Rows of a batch, and their tokens."""
# With a reference model: its pass, and the policy's forward and backward passes.
PASSES = Passes(learned=1.0, forward=1.0, recomputed=0.0)


def links(**mesh):
    layout = Layout(MeshShape(**mesh).abstract(), ShardingSettings().rules)
    return step_links(MODEL, layout, ROWS, 2, PASSES)


def test_one_device_sends_nothing():
    assert links() == (0, 0)


def test_kernels_are_gathered_and_gradients_scattered_once_a_microbatch_and_hidden():
    alone, hidden = links(fsdp=2)
    # V·D, and L layers of D·(N + 2K)·H + N·H·D + 3·D·F and two norms of D, and a norm.
    count = 64 * 32 + 2 * (32 * 8 * 8 + 4 * 8 * 32 + 3 * 32 * 64 + 2 * 32) + 32
    # Half of each comes from the other device: three gathers in bfloat16, one scatter in float32.
    assert hidden == 2 * (3 * 2 + 4) * count / 2
    assert alone == 0


def test_sums_of_activations_are_waited_for():
    alone, hidden = links(tensor=2)
    # Two sums a block and pass, each way of a ring of two: 8 · 16 tokens of 32 bfloat16 numbers.
    assert alone == pytest.approx(3 * 2 * 2 * 8 * 16 * 32 * 2)
    assert hidden == 0
