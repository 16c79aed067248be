"""The trainer's distribution is that which explorers drew from, whatever changes it.

With the weights that drew, the log-probabilities of drawn tokens are those recorded.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.learning.forward import Forward, RowInputs
from rl_sync.learning.rows.batching import Batching
from rl_sync.models.config import ModelConfig
from rl_sync.models.sharding import Layout
from rl_sync.roles.explorer.group_rows import columns_of
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.engine_options import EngineOptions
from rl_sync.rollout.episodes.episode_engine import EpisodeEngine
from rl_sync.rollout.episodes.episode_records import Continue, EpisodeRequest
from rl_sync.rollout.request import CompletionRequest
from rl_sync.rollout.sampling import LogitsProcessors, Sampling
from rl_sync.sampling_masks import word_count
from rl_sync.types import Group
from tests.models import tiny
from tests.models.meshes import layout
from tests.roles.trainer.training import state_of, trainer_of
from tests.rollout import test_episode_records as episodes

pytestmark = pytest.mark.gate

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
OLD, NEW = tiny.params(MODEL, seed=3), tiny.params(MODEL, seed=4)
PROMPTS = ([5, 60, 5], [9], [33, 34, 35, 36, 69], [64, 64])
PLAIN = Sampling(max_new_tokens=12, stop_ids=(1, 40, 68), temperature=0.8)
CASES = {
    "nothing": {},
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.1},
    "min_new_tokens": {"min_new_tokens": 9, "stop_ids": tuple(range(0, 70, 2))},
    "repetition_penalty": {"repetition_penalty": 1.7},
    "a penalty below 1": {"repetition_penalty": 0.6},
    "top_k and top_p": {"top_k": 9, "top_p": 0.6, "temperature": 1.3},
    "all": {
        "top_k": 40,
        "top_p": 0.95,
        "min_p": 0.01,
        "repetition_penalty": 1.4,
        "min_new_tokens": 7,
        "stop_ids": tuple(range(0, 70, 3)),
        "temperature": 1.2,
    },
}
EXCLUDING = [
    name
    for name in CASES
    if LogitsProcessors.of(dataclasses.replace(PLAIN, **CASES[name])).excludes
]


def _sampling(case):
    return dataclasses.replace(PLAIN, **CASES[case])


@functools.cache
def _groups(case, keeps=True):
    """Groups that an engine drew in two goes, between which its weights change or do not."""
    sampling = _sampling(case)
    changes = LogitsProcessors.of(sampling)
    changes = changes._replace(masks=keeps and changes.excludes, whole=not keeps)
    engine = Engine(MODEL, Layout.single(), EngineOptions(slots=7, chunk_tokens=5, changes=changes))
    engine.load(OLD, 0)
    prompts = [np.array(ids, np.int32) for ids in PROMPTS]
    requests = [CompletionRequest(ids, sampling, G, seed=(i,)) for i, ids in enumerate(prompts)]
    rng, groups = np.random.default_rng(0), []
    for ids, completions in zip(prompts, engine.generate(requests), strict=True):
        columns = columns_of(completions, ids)
        rewards = rng.integers(0, 2, G).astype(np.float32)
        groups.append(Group(0, 0, 0, 1, rewards=rewards, **columns))
    return groups


def _batching(kind, updates=1, microbatch_rows=0):
    words = word_count(V)
    return Batching(kind, 16, T, updates, microbatch_rows, shared_row_tokens=32, mask_words=words)


def _forward(case, logits_bytes=1 << 20):
    sampling = _sampling(case)
    return Forward(MODEL, sampling.temperature, logits_bytes, sampling.repetition_penalty)


@functools.partial(jax.jit, static_argnums=0)
def _compiled(forward, params, rows):
    return forward.logprobs(params, {}, RowInputs.of(rows))


def _logprobs(forward, params, rows):
    return np.asarray(_compiled(forward, params, rows))


def _gap(forward, params, rows):
    mask = np.asarray(rows.completion_mask)
    assert mask.any()
    return np.abs(_logprobs(forward, params, rows) - rows.behavior_logprobs)[mask].max()


KINDS = ["padded", "bucketed", "packed", "shared"]


@pytest.mark.nightly
@pytest.mark.samples("all-packed", "all-shared")
@pytest.mark.parametrize(
    ("case", "kind"),
    [(case, "packed") for case in CASES] + [("all", kind) for kind in KINDS if kind != "packed"],
)
def test_with_the_weights_that_drew_no_gap_is_left(case, kind):
    rows = _batching(kind, updates=2).batch(_groups(case)).rows
    assert _gap(_forward(case), OLD, rows) < 2e-5


def test_nor_is_one_where_logits_are_computed_in_parts():
    rows = _batching("shared").batch(_groups("all")).rows
    assert _gap(_forward("all", 4 * V * 16 * 5), OLD, rows) < 2e-5


@pytest.mark.nightly
@pytest.mark.parametrize("case", EXCLUDING)
def test_without_the_mask_there_would_be_one(case):
    rows = _batching("packed").batch(_groups(case)).rows
    assert _gap(_forward(case), OLD, rows._replace(sampling_masks=None)) > 0.02


def test_without_the_penalty_there_would_be_one():
    rows = _batching("shared").batch(_groups("repetition_penalty")).rows
    forward = dataclasses.replace(_forward("repetition_penalty"), repetition_penalty=1.0)
    assert _gap(forward, OLD, rows) > 0.02


def _found_again(group, sampling):
    """The tokens that each token could be drawn from and those before it, by the definitions.

    They are members of sets, [N, V], found token by token from the logits of the weights that drew.
    """
    drew = np.asarray(tiny.forward(MODEL, OLD, group.tokens), np.float64)
    supports, seens = [], []
    for row, mask in enumerate(group.completion_mask):
        for generated, at in enumerate(np.nonzero(mask)[0].tolist()):
            before, logits = set(group.tokens[row, :at].tolist()), drew[row, at - 1].copy()
            for v in before:
                factor = sampling.repetition_penalty
                logits[v] = logits[v] / factor if logits[v] > 0 else logits[v] * factor
            early = generated + 1 < sampling.min_new_tokens
            excluded = set(sampling.stop_ids) if early else set()
            mass = {v: np.exp(logits[v] / sampling.temperature) for v in set(range(V)) - excluded}
            order = sorted(mass, key=lambda v: -mass[v])[: sampling.top_k or V]
            total, held, kept = sum(mass[v] for v in order), 0.0, []
            for v in order:
                if held < sampling.top_p * total:
                    kept.append(v)
                held += mass[v]
            kept = [v for v in kept if mass[v] >= sampling.min_p * mass[order[0]]]
            supports.append([v in kept for v in range(V)])
            seens.append([v in before for v in range(V)])
    return np.array(supports), np.array(seens)


def _first(group):
    """Returns a group of the first trajectory alone."""
    columns = {name: x[:1] for name, x in group.to_columns().items() if x.ndim}
    return dataclasses.replace(group, **columns)


@pytest.mark.nightly
def test_values_and_gradients_of_other_weights_are_those_of_the_definition():
    group, sampling = _first(_groups("all")[0]), _sampling("all")
    support, seen = _found_again(group, sampling)
    assert support[np.arange(len(support)), group.tokens[group.completion_mask]].all()
    weights = jnp.asarray(np.random.default_rng(2).standard_normal((2, len(support))))
    (at,) = np.nonzero(group.completion_mask[0])

    @jax.jit
    def plain(params):
        logits = tiny.forward(MODEL, params, group.tokens)[0, at - 1]
        factor = sampling.repetition_penalty
        changed = jnp.where(seen, jnp.where(logits > 0, logits / factor, logits * factor), logits)
        mass = jnp.where(support, jnp.exp(changed / sampling.temperature), 0.0)
        probs = mass / mass.sum(axis=-1, keepdims=True)
        logs = jnp.log(jnp.where(support, probs, 1.0))
        drawn = jnp.take_along_axis(logs, group.tokens[0, at][:, None], axis=-1)[:, 0]
        return (jnp.stack([drawn, -(probs * logs).sum(axis=-1)]) * weights).sum()

    rows = Batching("padded", 1, T, 1, 0, mask_words=word_count(V)).batch([group]).rows

    @functools.partial(jax.jit, static_argnums=1)
    def ours(params, forward):
        found = forward.outputs(params, None, {}, RowInputs.of(rows))
        return (jnp.stack([found.logprobs[0, at], found.entropy[0, at]]) * weights).sum()

    expected = jax.value_and_grad(plain)(NEW)
    for logits_bytes in (1 << 20, 4 * V * 3):
        found = jax.value_and_grad(ours)(NEW, _forward("all", logits_bytes))
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4), found, expected
        )


@pytest.mark.nightly
@pytest.mark.samples("packed-0", gate=())
@pytest.mark.parametrize(("kind", "microbatch_rows"), [("packed", 0), ("shared", 4)])
def test_a_step_sees_no_gap_and_no_divergence_from_an_equal_reference(kind, microbatch_rows):
    sampling = _sampling("all")
    trainer = trainer_of(
        {"kl_coefficient": 0.5},
        {"updates_per_batch": 2},
        model=MODEL,
        temperature=sampling.temperature,
        repetition_penalty=sampling.repetition_penalty,
        max_completion_tokens=12,
        microbatch_rows=microbatch_rows,
    )
    batch = trainer.place(_batching(kind, 2, microbatch_rows).batch(_groups("all")))
    _, metrics = trainer.step(state_of(trainer, OLD), batch)
    assert metrics["logprob_gap"] < 1e-5
    # The second update compares with the weights of the step's start, over the same sets.
    assert abs(metrics["kl_behavior_proximal"]) < 1e-6
    if kind == "shared":
        return  # The other one is enough, and compiles sooner.
    bare = batch._replace(rows=batch.rows._replace(sampling_masks=None))
    assert trainer.step(state_of(trainer, OLD), bare)[1]["logprob_gap"] > 0.05


@pytest.mark.parametrize(
    "on",
    [
        pytest.param(layout(fsdp=2, tensor=2), marks=pytest.mark.nightly),
        pytest.param(layout(fsdp=4), marks=pytest.mark.nightly),
        pytest.param(layout(2, 2), marks=pytest.mark.nightly),
        pytest.param(layout(fsdp=2, context=2), marks=pytest.mark.nightly),
    ],
)
def test_a_step_on_a_mesh_is_one_of_one_device(on):
    sampling, results = _sampling("all"), []
    for where in (Layout.single(), on):
        trainer = trainer_of(
            {"kl_coefficient": 0.5},
            {"name": "sgd", "b1": 0.0, "learning_rate": 0.1},
            model=MODEL,
            temperature=sampling.temperature,
            repetition_penalty=sampling.repetition_penalty,
            max_completion_tokens=12,
            layout=where,
            logits_bytes=1,
        )
        batch = trainer.place(_batching("shared", microbatch_rows=4).batch(_groups("all")))
        state, metrics = trainer.step(state_of(trainer, OLD), batch)
        assert metrics["logprob_gap"] < 2e-5
        results.append(jax.device_get(state.params))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5), *results)


@pytest.mark.nightly
def test_probabilities_of_the_whole_vocabulary_are_recorded_where_no_mask_is_kept():
    group = _groups("all", keeps=False)[0]
    assert group.sampling_masks is None
    kept = _groups("all")[0]
    np.testing.assert_array_equal(group.tokens, kept.tokens)
    rows = Batching("padded", G, T, 1, 0).batch([group]).rows
    assert _gap(_forward("all"), OLD, rows) < 2e-5
    mask = group.completion_mask
    assert (group.behavior_logprobs[mask] <= kept.behavior_logprobs[mask] + 1e-6).all()


@pytest.mark.nightly
def test_new_weights_in_flight_leave_each_token_the_set_that_it_was_drawn_from():
    sampling = dataclasses.replace(_sampling("top_p"), stop_ids=())
    changes = LogitsProcessors.of(sampling)._replace(masks=True)
    engine = Engine(
        MODEL,
        Layout.single(),
        EngineOptions(slots=4, chunk_tokens=3, changes=changes, cache="recompute"),
    )
    engine.load(OLD, 0)
    prompt = np.array(PROMPTS[0], np.int32)
    engine.submit([CompletionRequest(prompt, sampling, G, seed=(5,))])
    done = engine.step()
    assert not done
    engine.load(NEW, 1)
    completions = sorted(engine.advance(), key=lambda one: one.index)
    group = Group(
        0,
        0,
        0,
        1,
        rewards=np.zeros(G, np.float32),
        **columns_of(completions, prompt),
    )
    assert set(group.policy_versions[group.completion_mask]) == {0, 1}
    rows = Batching("padded", G, T, 1, 0, mask_words=word_count(V)).batch([group]).rows
    for params, version in ((OLD, 0), (NEW, 1)):
        drawn = rows.policy_versions == version
        gap = np.abs(_logprobs(_forward("top_p"), params, rows) - rows.behavior_logprobs)
        assert gap[drawn].max() < 2e-5


def test_a_group_with_masks_comes_back_from_its_columns():
    group = _groups("all")[0]
    again = Group.from_columns(group.to_columns())
    np.testing.assert_array_equal(again.sampling_masks, group.sampling_masks)
    assert _groups("nothing")[0].sampling_masks is None


@pytest.mark.parametrize("kind", KINDS)
def test_batches_have_few_sizes_of_masks_and_those_listed(kind):
    batching = dataclasses.replace(_batching(kind), mask_words=300)
    batch = batching.batch(_groups("all"))
    rows, row_tokens = batch.rows.tokens.shape
    entries = batch.rows.sampling_masks.shape[1]
    assert entries in {row_tokens * size for size in (1, 8, 64, 300)}
    if kind != "shared":
        listed = {one.rows.sampling_masks.shape for one in batching.shapes()}
        assert (rows, entries, 3) in listed
        assert len([*batching.shapes()]) == batching.shape_count
        assert batching.largest().rows.sampling_masks.shape[1] == 8 * T


@pytest.mark.nightly
def test_episodes_of_several_turns_and_segments_keep_the_set_of_each_token():
    sampling = Sampling(
        max_new_tokens=5,
        stop_ids=(1, 2, 3, 4, 5, 6),
        min_new_tokens=3,
        top_p=0.8,
        repetition_penalty=1.5,
    )
    changes = LogitsProcessors.of(sampling)._replace(masks=True)
    engine = Engine(
        episodes.MODEL, Layout.single(), EngineOptions(slots=8, chunk_tokens=3, changes=changes)
    )
    again = np.array([7, 8, 9, 10], np.int32)
    turns = [
        Continue(0, np.array([20, 21], np.int32), begins_segment=False),
        Continue(0, again, begins_segment=True),
        Continue(0, np.array([22], np.int32), begins_segment=False),
    ]
    playing = EpisodeEngine(engine, episodes.Script, repeats=True)
    playing.load(episodes.PARAMS, version=0)
    request = EpisodeRequest({"turns": turns}, sampling, 2, (3,))
    ((one, other),) = playing.generate([request])
    columns = columns_of((one, other), np.zeros(0, np.int32))
    assert columns["segments"].max() == 1
    group = Group(
        0,
        0,
        0,
        1,
        rewards=np.zeros(2, np.float32),
        truncated=np.zeros(2, bool),
        **columns,
    )
    for kind in ("padded", "packed"):
        batching = Batching(kind, 2, 64, 1, 0, of_episodes=True, with_segments=True, mask_words=1)
        rows = batching.batch([group]).rows
        forward = Forward(episodes.MODEL, 1.0, 1 << 20, 1.5)
        assert rows.completion_mask.sum() >= 2 * 4 * 3
        assert _gap(forward, episodes.PARAMS, rows) < 2e-5
        assert _gap(forward, episodes.PARAMS, rows._replace(sampling_masks=None)) > 0.02
