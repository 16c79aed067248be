"""What of a run's parameters travels, and what explorers make of it."""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest

from rl_sync.models import lora
from rl_sync.models.config import Lora
from rl_sync.models.huggingface.reading import load_config
from rl_sync.runtime.parameters import Parameters
from tests.models import tiny

CHECKPOINT = Path(__file__).resolve().parents[1] / "data" / "models" / "qwen2"
ADAPTED = dataclasses.replace(load_config(CHECKPOINT), lora=Lora(2, 4.0, ("q", "down")))


class Pulled:
    """A puller that has one version."""

    def __init__(self, params):
        self.params = params

    def pull(self, *, exactly=None, at_least=None, timeout_secs):
        return 7, self.params

    def newest(self):
        return 7


def same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)
    return True


@pytest.fixture(scope="module")
def adapted():
    return Parameters(ADAPTED, str(CHECKPOINT), seed=3)


def test_without_adapters_everything_travels_as_it_is():
    params = tiny.params()
    parameters = Parameters(tiny.CONFIG, None, seed=0)
    assert parameters.travelling(params) is params
    puller = Pulled(params)
    assert parameters.receiving(puller) is puller
    assert jax.tree.structure(parameters.blank()) == jax.tree.structure(params)


def test_adapters_alone_travel_and_arrive_merged_into_the_base(adapted):
    initial = adapted.initial()
    moved = jax.tree.map(lambda x: x + 0.1, adapted.travelling(initial))
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(moved)]
    assert all("_lora" in name for name in names)
    version, received = adapted.receiving(Pulled(moved)).pull(timeout_secs=1.0)
    assert version == 7
    expected = lora.merge(ADAPTED, lora.join(moved, lora.split(initial)[1]))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), received, expected)
    assert jax.tree.map(np.shape, received) == jax.tree.map(np.shape, adapted.blank())


def test_a_checkpoint_starts_with_fresh_adapters_that_change_nothing(adapted):
    initial = adapted.initial()
    assert same(initial, adapted.initial())
    plain = Parameters(load_config(CHECKPOINT), str(CHECKPOINT), seed=9).initial()
    assert same(lora.split(initial)[1], plain)
    assert same(lora.merge(ADAPTED, initial), plain)
