"""Several tokens a row and step, in every layout of caches, on meshes, and to the bit."""

import dataclasses

import numpy as np
import pytest

from rl_sync.models.paging.paged_cache import page_bytes
from rl_sync.models.platform import compiling_for
from rl_sync.models.sharding import Layout
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.engine_options import EngineOptions
from rl_sync.rollout.request import CompletionRequest
from rl_sync.rollout.sampling import Sampling
from tests.models import tiny
from tests.models.meshes import layout
from tests.models.test_invariant import SAME_BITS, VARIANTS, as_in_runs, decoded
from tests.rollout.test_divided_caches import CASES, prompt, weights

ALONE = {
    "pages of a row": (dataclasses.replace(tiny.VARIANTS["sliding"], max_length=96), {}, "cpu"),
    "experts": (dataclasses.replace(tiny.VARIANTS["experts"], max_length=96), {}, "cpu"),
    "experts on devices": (
        dataclasses.replace(tiny.VARIANTS["experts"], max_length=96),
        {"data": 2, "tensor": 2},
        "cpu",
    ),
}
EVERY = {**ALONE, **CASES}
__all__ = ["as_in_runs"]


def completed(config, on, speculation, **options):
    """Returns two turns of each sequence, and the engine."""
    on = on.grouped(config.num_kv_heads)
    made = Engine(
        config,
        on,
        EngineOptions(slots=4, chunk_tokens=8, speculation=speculation, draft_tokens=3, **options),
    )
    made.load(weights(config, on, 0), version=0)
    drawn = Sampling(max_new_tokens=10, stop_ids=())
    greedy = dataclasses.replace(drawn, greedy=True)
    asked = [
        CompletionRequest(prompt(tokens), (drawn, greedy)[i % 2], 1, (7, i), held=True)
        for i, tokens in enumerate((40, 5, 33, 30, 1, 28))
    ]
    firsts = [one for (one,) in made.generate(asked)]
    for number, one in enumerate(firsts):
        made.extend(one.handle, prompt(number + 2), greedy, seed=(8, number))
    return [*firsts, *sorted(made.advance(), key=lambda one: one.ticket)], made


@pytest.mark.samples(gate=("1 head on 4 devices-rows", "lines of a TPU-pages"))
@pytest.mark.parametrize("paged", [False, True], ids=["rows", "pages"])
@pytest.mark.parametrize("case", EVERY)
def test_completions_are_those_without_drafts_in_every_layout(case, paged):
    config, mesh, platform = EVERY[case]
    on = layout(**mesh) if mesh else Layout.single()
    with compiling_for(platform):
        options = {"cache_bytes": 8 * page_bytes(config, on)} if paged else {}
        found, made = completed(config, on, "always", **options)
        expected, _ = completed(config, on, "off", **options)
    assert made.stats.accepted_tokens > 0
    for one, other in zip(found, expected, strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=2e-5)


@SAME_BITS
@pytest.mark.samples(gate=("plain",))
@pytest.mark.parametrize("name", VARIANTS)
def test_batch_invariant_models_have_the_same_bits(as_in_runs, name):
    options = {"speculation": "always", "draft_tokens": 3, "chunk_tokens": 16}
    found, expected = decoded(VARIANTS[name], **options), decoded(VARIANTS[name])
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_array_equal(one.logprobs, other.logprobs)
