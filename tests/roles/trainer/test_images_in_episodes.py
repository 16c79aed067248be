"""Episodes with images at several turns: the trainer sees what the explorer saw, and learns."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from rl_sync.algorithms.algorithm import ALGORITHMS
from rl_sync.environments.dialogue.bridge import Bridge
from rl_sync.environments.dialogue.reader import ReplyReader
from rl_sync.environments.dialogue.sight import Sight
from rl_sync.environments.environment_settings import EnvironmentSettings
from rl_sync.environments.hosts.inline_host import InlineHost
from rl_sync.environments.interface import ANEW, Message, Outcome, Turn
from rl_sync.images import Image
from rl_sync.learning.forward import Forward, RowInputs
from rl_sync.learning.objective import LossConfig
from rl_sync.learning.rows.batching import Batching
from rl_sync.models.placement import move
from rl_sync.models.sharding import Layout
from rl_sync.roles.explorer.director import Director
from rl_sync.roles.explorer.group_rows import columns_of
from rl_sync.roles.trainer.actor import Trainer
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.engine_options import EngineOptions
from rl_sync.rollout.episodes.episode_engine import EpisodeEngine
from rl_sync.rollout.episodes.episode_records import EpisodeRequest
from rl_sync.rollout.request import Handle
from rl_sync.rollout.sampling import Sampling
from rl_sync.tasks.pictures.tile_processor import SquareTiles
from rl_sync.tasks.tokenizers.tokenizer import CharacterTokenizer
from rl_sync.types import Group
from tests.models import tiny
from tests.roles.trainer.tiny import OPTIMIZER, sft
from tests.rollout.pictures import CONFIG, VISION, tile

TOKENIZER = CharacterTokenizer("abcdefg:.", shows_images=True)
MODEL = dataclasses.replace(
    CONFIG,
    vocab_size=TOKENIZER.vocab_size,
    vision=dataclasses.replace(VISION, token_id=TOKENIZER.image_id()),
)
SIGHT = Sight(SquareTiles(VISION.image_size, VISION.tile_tokens), TOKENIZER.image_id())
PARAMS = tiny.params(MODEL, spread=0.2)
G, T = 4, 96
LIMITS = EnvironmentSettings(name="x:Y", max_tokens=T, max_turns=9)


def image(number):
    return Image.of_array(tile(number))


class Slides:
    """Shows an image, then one that the reply chooses, and at last both in a new conversation."""

    inline = True

    def reset(self, task, seed):
        self.said, self.task = 0, task
        return Turn((Message("user", ["ab", image(task["slide"]), "c:"]),))

    def step(self, reply):
        self.said += 1
        self.second = sum(map(ord, reply.text)) % 3 if self.said == 1 else self.second
        if self.said == 1:
            return Turn((Message("user", ".:", images=(image(self.second),)),), reward=0.5)
        if self.said == 2 and self.task.get("again"):
            parts = [image(self.second), image(self.task["slide"]), ":"]
            return Turn((Message("user", parts),), after=ANEW)
        return Outcome({"said": float(self.said)})

    def close(self):
        pass


def director(limits=LIMITS):
    host = InlineHost(f"{__file__}:Slides")
    return Director(host, Bridge(TOKENIZER, SIGHT), ReplyReader(TOKENIZER), limits)


def episodes(**options):
    engine = Engine(MODEL, Layout.single(), EngineOptions(slots=8, chunk_tokens=3, **options))
    made = EpisodeEngine(engine, director, repeats=True)
    made.load(PARAMS, version=0)
    return made


@functools.cache
def groups(again=True, **options):
    sampling = Sampling(max_new_tokens=5, stop_ids=(TOKENIZER.eos_id,), min_new_tokens=2)
    requests = [
        EpisodeRequest({"slide": 5 + i, "again": again}, sampling, G, (3, i)) for i in range(2)
    ]
    made = episodes(**options)
    return [
        Group(
            i,
            i,
            i,
            1,
            rewards=np.arange(G, dtype=np.float32),
            truncated=np.zeros(G, bool),
            **columns_of(played, np.zeros(0, np.int32)),
        )
        for i, played in enumerate(made.generate(requests))
    ]


def batching(kind, segments=True):
    return Batching(
        kind, 2 * G, T, 1, 0, of_episodes=True, with_segments=segments, vision=MODEL.vision
    )


def gap(params, rows):
    forward = Forward(MODEL, temperature=1.0, logits_bytes=1 << 20)
    found = forward.logprobs(params, {}, RowInputs(rows.tokens, rows.packing, images=rows.images))
    return np.abs(np.asarray(found) - rows.behavior_logprobs)[np.asarray(rows.completion_mask)]


@pytest.mark.gate
def test_an_episode_with_images_goes_on_in_another_engine():
    """Told replies are prefilled with the images of their turns."""
    sampling = Sampling(max_new_tokens=5, stop_ids=(TOKENIZER.eos_id,), min_new_tokens=2)
    request = EpisodeRequest({"slide": 5, "again": True}, sampling, G, (3, 0))
    (whole,) = episodes().generate([request])
    for steps in (2, 4, 6):
        first = episodes()
        first.submit([request])
        played = [one for _ in range(steps) for one in first.step()]
        told = {
            at.index: one for at, one in first.progress([Handle(0, i) for i in range(G)]).items()
        }
        told |= {one.index: one.progress() for one in played}
        other = episodes()
        (found,) = other.generate([dataclasses.replace(request, begun=told)])
        assert other.stats.differing_tokens == 0
        for one, known in zip(found, whole, strict=True):
            for part, same in zip(one.trajectory.segments, known.trajectory.segments, strict=True):
                assert part.tokens.tolist() == same.tokens.tolist()
                logprobs = part.behavior_logprobs, same.behavior_logprobs
                np.testing.assert_allclose(*logprobs, atol=1e-4)


@pytest.mark.nightly
def test_a_group_has_each_tile_once_and_the_tokens_of_each_episode():
    for number, group in enumerate(groups()):
        first = np.array(SIGHT.processor.tiles(image(5 + number)))
        assert np.array_equal(group.tiles[:1], first)
        assert len(group.tiles) == len({one.tobytes() for one in group.tile_digests})
        assert 2 <= len(group.tiles) <= 1 + 3
        shown = group.image_at >= 0
        assert np.array_equal(shown, group.tokens == TOKENIZER.image_id())
        assert group.segments.max() == 1
        assert (shown.sum(axis=1) == 4 * VISION.tile_tokens).all()
        for row in range(G):
            # The second conversation shows the same two tiles, in the other order.
            tiles = group.image_at[row][shown[row]][:: VISION.tile_tokens] // VISION.tile_tokens
            assert tiles.tolist() == [0, tiles[1], tiles[1], 0]
    again = Group.from_columns(groups()[0].to_columns())
    assert np.array_equal(again.image_at, groups()[0].image_at)


@pytest.mark.nightly
@pytest.mark.samples(gate=("packed",))
@pytest.mark.parametrize(
    ("kind", "options"),
    [("packed", {}), ("padded", {}), ("padded", {"cache_bytes": 1 << 20})],
    ids=["packed", "padded", "pages"],
)
def test_the_trainer_has_the_explorers_logprobs(kind, options):
    rows = batching(kind).batch(groups(**options)).rows
    assert rows.completion_mask.sum() > 2 * G * 3 * 2
    assert gap(PARAMS, rows).max() < 2e-5
    blind = rows.images._replace(tiles=rows.images.tiles[::-1])
    assert gap(PARAMS, rows._replace(images=blind)).max() > 1e-3


@pytest.mark.nightly
def test_a_step_of_training_raises_what_was_rewarded():
    trainer = Trainer(
        model=MODEL,
        loss=LossConfig(
            ALGORITHMS["grpo"],
            group_size=G,
            max_completion_tokens=T,
            end_ids=(TOKENIZER.eos_id,),
            microbatch_rows=0,
        ),
        optimizer=dataclasses.replace(OPTIMIZER, learning_rate=1e-3),
        temperature=1.0,
        steps=4,
        sft=sft(1),
        logits_bytes=1 << 20,
        layout=Layout.single(),
        trains_tower=True,
    )
    state = trainer.begin(trainer.start(move(PARAMS, trainer.abstract().params)))
    batch, losses = batching("padded").batch(groups()), []
    for _ in range(4):
        state, metrics = trainer.step(state, batch)
        losses.append(float(metrics["loss"]))
    assert losses[-1] < losses[0] - 1e-3
    tower = state.params["vision"]["tower"], PARAMS["vision"]["tower"]
    assert any(
        not np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, tower), strict=True)
    ), "gradients reach the tower"
