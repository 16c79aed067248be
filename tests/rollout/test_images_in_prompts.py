"""An engine completes prompts with images as the whole model does, and encodes each image once."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from rl_sync.models.placement import abstract_params, shardings
from rl_sync.models.transformer import hidden_states, logits
from rl_sync.models.vision.projector import Seen
from rl_sync.models.vision.tower import image_features
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.engine_options import EngineOptions
from rl_sync.rollout.request import CompletionRequest
from rl_sync.rollout.sampling import Sampling
from rl_sync.sequence_images import TEXT, after
from tests.models import tiny
from tests.models.meshes import engine_layout
from tests.rollout.pictures import CONFIG, IMAGE, pictured

PROMPTS = [
    pictured(1, [3, 4]),
    pictured([5, 2], 2, [7], 1, [8]),
    pictured([9, 3, 3]),
    pictured(3, 3, [2], 4, [10]),
    pictured([4] * 30, 2, [6] * 3),
]
MOST_TILES = 4
GREEDY = Sampling(max_new_tokens=8, stop_ids=(), greedy=True)
DRAWN = Sampling(max_new_tokens=8, stop_ids=())


def weights(config=CONFIG, on=None, seed=0):
    params = tiny.params(config, seed, spread=0.2)
    on = engine_layout() if on is None else on
    return jax.device_put(params, shardings(abstract_params(config, on)))


def engine(config=CONFIG, seed=0, slots=8, **options):
    on = options.pop("layout", engine_layout()).grouped(config.num_kv_heads)
    made = Engine(config, on, EngineOptions(slots=slots, chunk_tokens=4, **options))
    made.load(weights(config, on, seed), version=0)
    return made


def requests(sampling=GREEDY, completions=1, prompts=PROMPTS, **more):
    return [
        CompletionRequest(ids, sampling, completions, (7, i), images=images, **more)
        for i, (ids, images) in enumerate(prompts)
    ]


@functools.partial(jax.jit, static_argnums=0)
def row_logits(config, params, row, tiles, at):
    seen = Seen(image_features(config, params, tiles), at[None])
    return logits(config, params, hidden_states(config, params, row[None], images=seen))[0]


def whole_logits(ids, images, completion, config=CONFIG, params=None, seed=0):
    """Computes the logits of a completion's tokens in one pass over the whole row.

    Rows of all lengths and numbers of images have the same shapes, so this compiles once.
    """
    params = tiny.params(config, seed, spread=0.2) if params is None else params
    row, at = np.zeros(config.max_length, np.int32), np.full(config.max_length, TEXT, np.int32)
    tokens = len(ids) + len(completion)
    row[:tokens] = np.concatenate([ids, completion])
    tiles = np.zeros((MOST_TILES, 8, 8, 3), np.uint8)
    if images is not None:
        at[:tokens] = images.over(tokens)
        tiles[: len(images.tiles)] = images.tiles
    return np.array(row_logits(config, params, row, tiles, at))[len(ids) - 1 : tokens - 1]


def assert_drawn_by_the_whole_model(found, prompts=PROMPTS, **options):
    for (ids, images), (completion,) in zip(prompts, found, strict=True):
        scores = whole_logits(ids, images, completion.tokens, **options)
        scores[:, IMAGE] = -np.inf
        assert completion.tokens.tolist() == scores.argmax(axis=-1).tolist()


def assert_alike(found, wanted):
    for some, others in zip(found, wanted, strict=True):
        for one, other in zip(some, others, strict=True):
            assert one.tokens.tolist() == other.tokens.tolist()
            np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)


@pytest.mark.samples(gate=("pages",))
@pytest.mark.parametrize("options", [{}, {"cache_bytes": 1 << 20}], ids=["rows", "pages"])
def test_greedy_completions_are_those_of_the_whole_model(options):
    assert_drawn_by_the_whole_model(engine(**options).generate(requests()))


@pytest.mark.nightly
def test_logprobs_are_those_of_the_whole_vocabulary_and_no_image_token_is_drawn():
    params = tiny.params(CONFIG, spread=0.2)
    # The image's token is the likeliest by far.
    params["embedding"] = params["embedding"].at[IMAGE].mul(40)
    made = Engine(CONFIG, engine_layout(), EngineOptions(slots=8, chunk_tokens=4))
    made.load(params, 0)
    (ids, images), taken = PROMPTS[1], 0
    for sampling in (DRAWN, GREEDY):
        (found,) = made.generate([CompletionRequest(ids, sampling, 8, (3,), images=images)])
        for one in found:
            assert IMAGE not in one.tokens
        taken += len(found)
        if sampling is GREEDY:
            continue
        scores = jax.nn.log_softmax(whole_logits(ids, images, found[0].tokens, params=params))
        wanted = np.take_along_axis(np.array(scores), found[0].tokens[:, None], 1)[:, 0]
        np.testing.assert_allclose(found[0].logprobs, wanted, atol=1e-4)
    assert taken == 16


@pytest.mark.nightly
def test_each_image_is_encoded_once_for_all_completions_and_prompts():
    made = engine()
    made.generate(requests(DRAWN, completions=3))
    assert made._batch.features.encoded == 4
    made.generate(requests(GREEDY))
    assert made._batch.features.encoded == 4


@pytest.mark.nightly
def test_new_weights_encode_images_again_unless_the_tower_is_frozen():
    for frozen, wanted in ((False, 8), (True, 4)):
        made = engine(frozen_vision=frozen)
        made.generate(requests())
        made.load(weights(), version=1)
        made.generate(requests())
        assert made._batch.features.encoded == wanted


@pytest.mark.gate
def test_features_by_weights_that_only_compiled_programs_are_forgotten():
    made = engine(seed=3, frozen_vision=True)
    made.load(weights(seed=3), version=-1)
    made.generate(requests())
    made.load(weights(), version=5)
    assert_drawn_by_the_whole_model(made.generate(requests()))


@pytest.mark.gate
def test_features_beyond_the_bound_are_encoded_again():
    made = engine(image_cache_bytes=1)
    assert_drawn_by_the_whole_model(made.generate(requests()))
    assert made._batch.features.encoded >= 4


@pytest.mark.nightly
@pytest.mark.samples("pages", gate=())
@pytest.mark.parametrize("options", [{}, {"cache_bytes": 1 << 20}], ids=["rows", "pages"])
def test_prompts_that_differ_in_their_images_alone_share_nothing(options):
    made = engine(**options)
    prompts = [pictured(n, [3] * 60) for n in (1, 2, 1, 5)]
    found = made.generate(requests(prompts=prompts))
    again = made.generate(requests(prompts=prompts[::-1]))[::-1]
    assert_drawn_by_the_whole_model(found, prompts)
    assert_alike(again, found)
    if options:
        assert made.stats.reused_tokens > 0, "equal images share pages"


@pytest.mark.nightly
@pytest.mark.samples("given1-pages", "given0-rows", gate=())
@pytest.mark.parametrize("options", [{}, {"cache_bytes": 1 << 20}], ids=["rows", "pages"])
@pytest.mark.parametrize("given", [pictured([4, 2]), pictured([4], 2, [2]), pictured(1, [2])])
def test_extensions_continue_with_their_images(options, given):
    made = engine(**options)
    firsts = [one for (one,) in made.generate(requests(held=True))]
    tokens, images = given
    for first in firsts:
        made.extend(first.handle, tokens, GREEDY, seed=(8,), images=images)
    seconds = sorted(made.advance(), key=lambda one: one.ticket)
    prompts = []
    for (ids, shown), first in zip(PROMPTS, firsts, strict=True):
        whole = np.concatenate([ids, first.tokens, tokens])
        before = len(ids) + len(first.tokens)
        prompts.append((whole, after(shown, before, images)))
    assert_drawn_by_the_whole_model([[one] for one in seconds], prompts)


@pytest.mark.gate
@pytest.mark.samples("pages", gate=())
@pytest.mark.parametrize("options", [{}, {"cache_bytes": 1 << 20}], ids=["rows", "pages"])
def test_new_weights_recompute_caches_with_images(options):
    made = engine(cache="recompute", **options)
    made.submit(requests(dataclasses.replace(GREEDY, max_new_tokens=10)))
    assert not made.step()
    made.load(weights(seed=1), version=1)
    found = sorted(made.advance(), key=lambda one: one.ticket)
    for (ids, images), one in zip(PROMPTS, found, strict=True):
        new = one.versions == 1
        scores = whole_logits(ids, images, one.tokens, seed=1)
        scores[:, IMAGE] = -np.inf
        assert new.sum() > 4
        assert one.tokens[new].tolist() == scores.argmax(axis=-1)[new].tolist()


@pytest.mark.nightly
@pytest.mark.samples(gate=("mesh1",))
@pytest.mark.parametrize(
    "mesh", [{"tensor": 2}, {"data": 2, "tensor": 2}, {"context": 4}, {"context": 2, "tensor": 2}]
)
def test_completions_on_meshes_are_those_of_one_device(mesh):
    found = engine(layout=engine_layout(**mesh)).generate(requests(DRAWN, completions=2))
    assert_alike(found, engine().generate(requests(DRAWN, completions=2)))


def test_images_that_a_model_cannot_read_are_refused():
    ids, images = PROMPTS[0]
    blind = dataclasses.replace(CONFIG, vision=None)
    with pytest.raises(ValueError, match="the model has no vision"):
        engine(blind).submit(requests())
    small = dataclasses.replace(images, tiles=images.tiles[:, :4])
    with pytest.raises(ValueError, match="8x8x3"):
        engine().submit([CompletionRequest(ids, GREEDY, images=small)])
    with pytest.raises(ValueError, match="ends with an image"):
        engine().submit(requests(prompts=[pictured([3], 2)]))
    short = dataclasses.replace(images, at=images.at[1:])
    with pytest.raises(ValueError, match="takes 4"):
        engine().submit([CompletionRequest(ids, GREEDY, images=short)])
