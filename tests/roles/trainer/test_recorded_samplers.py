"""Explorers record the distribution of each token; the trainer computes the same one."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from rl_sync.environments.dialogue.trajectory import (
    Trajectory,
    append_reply,
    append_turn,
    begin_segment,
)
from rl_sync.learning.forward import Forward, RowInputs
from rl_sync.learning.rows.batching import Batching
from rl_sync.models.config import ModelConfig
from rl_sync.models.sharding import Layout, using
from rl_sync.roles.explorer.group_rows import columns_of
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.engine_options import EngineOptions
from rl_sync.rollout.request import CompletionRequest
from rl_sync.rollout.sampling import LogitsProcessors, Sampling
from rl_sync.sampling_masks import word_count
from rl_sync.token_records import NEVER, PlacedRecord, SamplerRecord, SamplerShape, TokenRecords
from rl_sync.types import Group
from tests.models import tiny
from tests.models.meshes import layout

V, T, G = 70, 24, 4
MODEL = ModelConfig(
    vocab_size=V,
    embed_dim=16,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    mlp_dim=16,
    max_length=T,
)
PARAMS = tiny.params(MODEL, seed=3)
PROMPTS = ([5, 60, 5], [9], [33, 34, 35, 36, 69], [64, 64])
PLAIN = Sampling(max_new_tokens=12, stop_ids=(1, 40, 68), temperature=0.8)
NUCLEUS = dataclasses.replace(PLAIN, top_k=9, top_p=0.8, min_new_tokens=4)
SAMPLINGS = {
    "plain": PLAIN,
    "nucleus": NUCLEUS,
    "min_p": dataclasses.replace(PLAIN, min_p=0.3),
    "penalty": dataclasses.replace(PLAIN, repetition_penalty=1.7, top_k=9),
}
WHOLE, BEST = SamplerShape(V), SamplerShape(V, 16)


@functools.cache
def groups(name, shape):
    """Makes the groups that an engine draws, with the records of their tokens."""
    sampling = SAMPLINGS[name]
    changes = LogitsProcessors.of(sampling)
    changes = changes._replace(masks=changes.excludes)
    options = EngineOptions(slots=7, chunk_tokens=5, changes=changes, sampler=shape)
    engine = Engine(MODEL, Layout.single(), options)
    engine.load(PARAMS, 0)
    prompts = [np.array(ids, np.int32) for ids in PROMPTS]
    requests = [CompletionRequest(ids, sampling, G, seed=(i,)) for i, ids in enumerate(prompts)]
    rewards = np.zeros(G, np.float32)
    made = []
    for ids, completions in zip(prompts, engine.generate(requests), strict=True):
        columns = columns_of(completions, ids, TokenRecords(sampler=shape))
        made.append(Group(0, 0, 0, 1, rewards=rewards, **columns))
    return made


def rows_of(name, shape, kind="padded", updates=1):
    batching = Batching(
        kind,
        16,
        T,
        updates,
        0,
        shared_row_tokens=32,
        mask_words=word_count(V),
        records=TokenRecords(sampler=shape),
    )
    return batching.batch(groups(name, shape)).rows


@functools.partial(jax.jit, static_argnums=(0, 1))
def _distribution(on, forward, params, rows):
    with using(on):
        return forward.outputs(params, None, {}, RowInputs.of(rows))


def computed(name, rows, on=None):
    """Returns the trainer's outputs for some rows."""
    sampling = SAMPLINGS[name]
    penalty = sampling.repetition_penalty
    forward = Forward(MODEL, sampling.temperature, 1 << 20, penalty, centers=True)
    on = Layout.single() if on is None else on
    return jax.device_get(_distribution(on, forward, PARAMS, rows))


def assert_recorded(rows, found):
    mask, known = rows.completion_mask, found.distribution.shape[-1]
    recorded = rows.sampler_logprobs[mask][:, :known]
    there = recorded > NEVER
    found = found.distribution[mask]
    np.testing.assert_allclose(found[there], recorded[there], atol=2e-5)
    assert (found[~there] <= NEVER).all()


@pytest.mark.gate
def test_the_trainer_computes_the_recorded_distributions():
    rows = rows_of("nucleus", BEST)
    assert_recorded(rows, computed("nucleus", rows))
    recorded = rows.sampler_logprobs[rows.completion_mask]
    np.testing.assert_allclose(np.exp(recorded).sum(axis=-1), 1, rtol=1e-5)
    assert (recorded[:, :16] > NEVER).sum(axis=-1).max() <= 9  # Of top_k.


@pytest.mark.gate
@pytest.mark.parametrize("kind", ["padded", "bucketed", "packed", "shared"])
@pytest.mark.parametrize("shape", [WHOLE, BEST], ids=["whole", "best"])
@pytest.mark.parametrize("name", [*SAMPLINGS])
def test_every_layout_keeps_the_records_of_each_token(name, shape, kind):
    rows = rows_of(name, shape, kind, updates=2)
    assert (rows.sampler_ids is None) == (shape is WHOLE)
    found = computed(name, rows)
    assert_recorded(rows, found)
    mask = rows.completion_mask
    if shape is WHOLE:
        drawn = np.take_along_axis(rows.sampler_logprobs[mask], rows.tokens[mask][:, None], -1)
        np.testing.assert_allclose(drawn[:, 0], rows.behavior_logprobs[mask], atol=1e-5)


@pytest.mark.gate
@pytest.mark.parametrize("shape", [WHOLE, BEST], ids=["whole", "best"])
@pytest.mark.parametrize("axes", [(2, 2), (2, 1), (1, 2)])
def test_meshes_compute_the_recorded_distributions(shape, axes):
    rows = rows_of("nucleus", shape)
    assert_recorded(rows, computed("nucleus", rows, layout(*axes)))


def test_records_of_an_episode_stand_at_its_replies():
    shape = SamplerShape(vocab_size=50, best=2)
    first, second = (
        SamplerRecord(np.full((n, 3), -n, np.float32), np.full((n, 2), n, np.int32)) for n in (1, 2)
    )
    found = begin_segment(Trajectory(), [7, 8])
    found = append_reply(found, [3], [-0.5], [0], sampler=first)
    found = append_turn(found, [9])
    found = append_reply(found, [4, 1], [-0.5, -0.5], [0, 0], sampler=second)
    (segment,) = found.segments
    assert segment.samplers == (PlacedRecord(2, first), PlacedRecord(4, second))
    blank = shape.blank(6)
    assert blank.logprobs.shape == (6, 3)
