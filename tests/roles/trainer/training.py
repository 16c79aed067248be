"""A small trainer, its states and its batches."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from rl_sync.algorithms.algorithm import ALGORITHMS
from rl_sync.learning.optimizer import sft_optimizer
from rl_sync.learning.rows.batching import Batching
from rl_sync.models.config import ModelConfig
from rl_sync.models.logprobs import token_logprobs
from rl_sync.models.placement import move
from rl_sync.models.sharding import Layout
from rl_sync.roles.trainer.actor import Trainer, TrainState
from rl_sync.types import Group
from tests.models import tiny
from tests.roles.trainer.tiny import OPTIMIZER, sft, with_loss

MODEL = ModelConfig(
    vocab_size=7,
    embed_dim=8,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=4,
    mlp_dim=8,
    max_length=8,
)
ALGORITHM = dataclasses.replace(
    ALGORITHMS["dr_grpo"], clip_high=0.28, aggregation="token_mean", allow_unsafe=True
)
GROUP_SIZE = 4
PARAMS = tiny.params(MODEL)
STEPS = 3
UNEVEN = (1, 6, 2, 3, 1, 5, 1, 1) * 2
TWICE = {"updates_per_batch": 2}
HELD = {"kl_coefficient": 0.5}
_TRAINERS: dict[Trainer, Trainer] = {}
"""Those that were made: equal ones share what they have traced."""
logprobs_of = jax.jit(token_logprobs, static_argnums=0)


def trainer_of(algorithm=None, optimizer=None, **fields):
    of = {
        "model": MODEL,
        "algorithm": dataclasses.replace(ALGORITHM, **(algorithm or {})),
        "optimizer": dataclasses.replace(OPTIMIZER, **(optimizer or {})),
        "group_size": GROUP_SIZE,
        "max_completion_tokens": 6,
        "end_ids": (1,),
        "temperature": 0.8,
        "steps": STEPS,
        "sft": sft(STEPS),
        "microbatch_rows": 0,
        "logits_bytes": 1 << 20,
        "layout": Layout.single(),
    }
    trainer = Trainer(**with_loss({**of, **fields}))
    return _TRAINERS.setdefault(trainer, trainer)


def state_of(trainer, params=PARAMS):
    """Makes a trainer state after its SFT; a new one each time, since a step donates it."""
    abstract = trainer.abstract_sft_state()._replace(opt_state=None, loss_scale=None)
    return trainer.begin(move(TrainState(jnp.int32(0), params, None, None), abstract))


def fresh_state_of(trainer):
    """Makes a trainer state before its SFT; numpy draws it, which compiles nothing."""
    opt_state = sft_optimizer(trainer.optimizer, trainer.sft).init(PARAMS)
    return move(TrainState(jnp.int32(0), PARAMS, opt_state, None), trainer.abstract_sft_state())


def group_of(lengths, row_tokens=8, version=0, params=PARAMS, model=MODEL):
    """Makes trajectories that the policy of `state_of` could have drawn; prompts have 2 tokens."""
    random, rows = np.random.default_rng(1), len(lengths)
    tokens = random.integers(2, 7, (rows, row_tokens))
    end = 2 + np.asarray(lengths)[:, None]
    position = np.arange(row_tokens)
    mask = (position >= 2) & (position < end)
    tokens = np.where(position < end, tokens, 0).astype(np.int32)
    logprobs, _ = logprobs_of(model, params, tokens, 0.8)
    return Group(
        lease_id=0,
        ordinal=0,
        prompt_id=0,
        explorer=1,
        tokens=tokens,
        completion_mask=mask,
        behavior_logprobs=np.where(mask, logprobs, 0),
        policy_versions=np.where(mask, version, -1).astype(np.int32),
        rewards=random.integers(0, 2, rows).astype(np.float32),
    )


def batch_of(lengths=(3, 4, 4) * 5 + (3,), kind="padded", updates=1, microbatch_rows=0, **fields):
    batching = Batching(kind, len(lengths), 8, updates, microbatch_rows)
    return batching.batch([group_of(lengths, **fields)])


def comparable(metrics, batch):
    """Makes figures of tokens those of the learned ones, in one order for all layouts."""
    rows = batch.rows
    mask = np.asarray(rows.completion_mask)
    row, at = np.indices(mask.shape)
    if rows.packing is not None:
        row, at = rows.packing.trajectories, rows.packing.positions
    order = np.lexsort((np.asarray(at)[mask], np.asarray(row)[mask]))
    return {
        name: np.asarray(value)[mask][order] if np.ndim(value) == 2 else value
        for name, value in metrics.items()
    }


def with_rows(batch, **changes):
    return batch._replace(rows=batch.rows._replace(**changes))


def assert_close(a, b, atol=1e-6):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=atol), a, b)


def drift_of(before, after, batch):
    """Returns the increase of each trajectory's log-probability."""
    old, new = (logprobs_of(MODEL, p, batch.rows.tokens, 0.8)[0] for p in (before, after))
    return np.where(batch.rows.completion_mask, new - old, 0).sum(axis=1)
