"""The trainer as a functional actor: a state, and pure steps from a batch to the next state."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from rl_sync.algorithms import losses, masking
from rl_sync.algorithms.advantages import ADVANTAGES
from rl_sync.algorithms.kl import KL_ESTIMATORS
from rl_sync.models.config import ModelConfig
from rl_sync.models.logprobs import token_logprobs
from rl_sync.models.transformer import init_params
from rl_sync.types import Params, TrainBatch

Metrics = dict[str, Float[Array, ""]]
Step = Callable[["TrainState", TrainBatch], tuple["TrainState", Metrics]]


@dataclasses.dataclass(frozen=True)
class AlgorithmConfig:
    """`config.algorithm`: what a trainer step minimizes.

    Attributes:
      advantage: a key of `ADVANTAGES`.
      clip_low, clip_high: ε of the clipped ratio, below and above 1.
      kl_coefficient: weight of the KL divergence from the reference model; 0 for no reference.
      kl_estimator: a key of `KL_ESTIMATORS`.

    Raises:
      ValueError: a value outside its range.
    """

    advantage: str
    clip_low: float
    clip_high: float
    kl_coefficient: float
    kl_estimator: str

    def __post_init__(self) -> None:
        for name, value, table in (
            ("advantage", self.advantage, ADVANTAGES),
            ("kl_estimator", self.kl_estimator, KL_ESTIMATORS),
        ):
            if value not in table:
                raise ValueError(f"algorithm.{name}={value!r} is not one of {', '.join(table)}.")
        if not 0 < self.clip_low <= 1 or self.clip_high <= 0:
            raise ValueError(
                f"algorithm.clip_low={self.clip_low} must be in (0, 1] and algorithm.clip_high="
                f"{self.clip_high} above 0."
            )
        if self.kl_coefficient < 0:
            raise ValueError(
                f"algorithm.kl_coefficient={self.kl_coefficient} must not be negative."
            )


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """`config.optimizer`: AdamW with a clipped gradient and a linear ramp.

    Attributes:
      learning_rate, warm_up_learning_rate: of the RL steps, and of the supervised ones before.
      ramp_updates: the update that is the first to have the full learning rate; those before it
        have their even share of it. 0 or 1 for no ramp.
      b1, b2, weight_decay: AdamW's.
      max_gradient_norm: longer gradients are scaled down to it.
      updates_per_batch: optimizer updates a trainer step, each on an equal share of the groups.

    Raises:
      ValueError: a value outside its range.
    """

    learning_rate: float
    warm_up_learning_rate: float
    ramp_updates: int
    b1: float
    b2: float
    weight_decay: float
    max_gradient_norm: float
    updates_per_batch: int

    def __post_init__(self) -> None:
        for name in ("warm_up_learning_rate", "max_gradient_norm", "updates_per_batch"):
            if getattr(self, name) <= 0:
                raise ValueError(f"optimizer.{name} must be above 0, not {getattr(self, name)}.")
        for name in ("learning_rate", "ramp_updates", "weight_decay"):
            if getattr(self, name) < 0:
                raise ValueError(f"optimizer.{name} must be at least 0, not {getattr(self, name)}.")

    def transformation(self, learning_rate: float) -> optax.GradientTransformation:
        """The optimizer with one of the learning rates."""
        first = learning_rate / max(1, self.ramp_updates)
        ramp = optax.linear_schedule(first, learning_rate, max(0, self.ramp_updates - 1))
        return optax.chain(
            optax.clip_by_global_norm(self.max_gradient_norm),
            optax.adamw(ramp, b1=self.b1, b2=self.b2, weight_decay=self.weight_decay),
        )


class TrainState(NamedTuple):
    """All that a trainer carries from step to step.

    Attributes:
      step: finished trainer steps; supervised ones do not count.
      params: the policy's.
      opt_state: the optimizer's.
      ref_params: the reference model's; None without one.
    """

    step: Int[Array, ""]
    params: Params
    opt_state: Any
    ref_params: Params | None


@dataclasses.dataclass(frozen=True)
class Trainer:
    """The trainer's pure functions, for one model and one way to learn.

    Attributes:
      model: the policy's shape.
      algorithm: the loss.
      optimizer: the updates.
      group_size: rows of a group, G.
      temperature: of the rollouts.
    """

    model: ModelConfig
    algorithm: AlgorithmConfig
    optimizer: OptimizerConfig
    group_size: int
    temperature: float

    def init(self, key: Array) -> TrainState:
        """A random policy that is ready for `warm_up_step`."""
        return self.start(jax.jit(init_params, static_argnums=0)(self.model, key))

    def start(self, params: Params) -> TrainState:
        """A given policy that is ready for `warm_up_step`."""
        transformation = self.optimizer.transformation(self.optimizer.warm_up_learning_rate)
        return TrainState(jnp.int32(0), params, transformation.init(params), None)

    def begin(self, state: TrainState) -> TrainState:
        """Makes the policy of `state` the start of RL: a fresh optimizer, itself the reference."""
        transformation = self.optimizer.transformation(self.optimizer.learning_rate)
        reference = None
        if self.algorithm.kl_coefficient > 0:
            reference = jax.tree.map(jnp.copy, state.params)
        return TrainState(state.step, state.params, transformation.init(state.params), reference)

    @functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
    def warm_up_step(
        self, state: TrainState, tokens: Int[Array, "B T"], mask: Bool[Array, "B T"]
    ) -> tuple[TrainState, Metrics]:
        """One supervised update on demonstrations; `mask` is true where the model is to learn."""

        def loss_of(params: Params) -> Float[Array, ""]:
            logprobs, _ = token_logprobs(self.model, params, tokens)
            return masking.token_mean(losses.sft(logprobs), mask)

        loss, gradient = jax.value_and_grad(loss_of)(state.params)
        transformation = self.optimizer.transformation(self.optimizer.warm_up_learning_rate)
        updates, opt_state = transformation.update(gradient, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        metrics = {"loss": loss, "gradient_norm": optax.global_norm(gradient)}
        return state._replace(params=params, opt_state=opt_state), metrics

    @functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
    def step(self, state: TrainState, batch: TrainBatch) -> tuple[TrainState, Metrics]:
        """One trainer step: `updates_per_batch` updates, each on an equal share of the groups.

        Advantages come from whole groups, and the loss is a mean over the tokens of an update.
        """
        advantages = ADVANTAGES[self.algorithm.advantage](batch.rewards, self.group_size)
        rows = _Rows(batch, advantages, self._ref_logprobs(state, batch))
        shares = jax.tree.map(self._share, rows)
        transformation = self.optimizer.transformation(self.optimizer.learning_rate)

        def update(carry: tuple[Params, Any], share: _Rows) -> tuple[tuple[Params, Any], Metrics]:
            params, opt_state = carry
            grad = jax.grad(self._loss, has_aux=True)
            gradient, metrics = grad(params, share)
            updates, opt_state = transformation.update(gradient, opt_state, params)
            metrics["gradient_norm"] = optax.global_norm(gradient)
            return (optax.apply_updates(params, updates), opt_state), metrics

        (params, opt_state), metrics = jax.lax.scan(update, (state.params, state.opt_state), shares)
        metrics = jax.tree.map(jnp.mean, metrics) | self._batch_metrics(state, batch)
        return TrainState(state.step + 1, params, opt_state, state.ref_params), metrics

    def compile_step(self, state: TrainState, rows: int, row_tokens: int) -> Step:
        """Compiles `step` for batches of [rows, row_tokens], without taking one.

        Args:
          state: of the shapes of the states to come; may be what `jax.eval_shape` returns.
        """
        batch = jax.eval_shape(lambda: TrainBatch.zeros(rows, row_tokens))
        return Trainer.step.lower(self, state, batch).compile()

    def _share(self, rows: Array) -> Array:
        return rows.reshape(self.optimizer.updates_per_batch, -1, *rows.shape[1:])

    def _ref_logprobs(self, state: TrainState, batch: TrainBatch) -> Float[Array, "B T"] | None:
        if state.ref_params is None:
            return None
        logprobs, _ = token_logprobs(self.model, state.ref_params, batch.tokens, self.temperature)
        return logprobs

    def _loss(self, params: Params, rows: _Rows) -> tuple[Float[Array, ""], Metrics]:
        batch, config = rows.batch, self.algorithm
        mask, behavior = batch.completion_mask, batch.behavior_logprobs
        logprobs, entropy = token_logprobs(self.model, params, batch.tokens, self.temperature)
        clipping = (rows.advantages[:, None], config.clip_low, config.clip_high)
        policy = masking.token_mean(losses.ppo_clip(logprobs, behavior, *clipping), mask)
        loss, metrics = policy, {}
        if rows.ref_logprobs is not None:
            kl = KL_ESTIMATORS[config.kl_estimator](logprobs, rows.ref_logprobs)
            metrics["kl_reference"] = masking.token_mean(kl, mask)
            loss = loss + config.kl_coefficient * metrics["kl_reference"]
        kl_behavior = KL_ESTIMATORS["k3"](logprobs, behavior)
        metrics |= {
            "loss": loss,
            "policy_loss": policy,
            "entropy": masking.token_mean(entropy, mask),
            "kl_behavior": masking.token_mean(kl_behavior, mask),
            "clip_fraction": masking.token_mean(
                losses.is_clipped(logprobs, behavior, *clipping), mask
            ),
        }
        return loss, metrics

    def _batch_metrics(self, state: TrainState, batch: TrainBatch) -> Metrics:
        by_group = batch.rewards.reshape(-1, self.group_size)
        lengths = batch.completion_mask.sum(axis=1)
        age = jnp.where(batch.completion_mask, state.step - batch.policy_versions, 0)
        return {
            "reward_mean": batch.rewards.mean(),
            "reward_std": batch.rewards.std(),
            "groups_without_spread": jnp.mean(by_group.std(axis=1) == 0),
            "completion_tokens_mean": lengths.mean(),
            "staleness_mean": age.sum() / jnp.maximum(lengths.sum(), 1),
            "staleness_max": age.max().astype(jnp.float32),
        }


class _Rows(NamedTuple):
    """A batch with what is computed from it before the first update."""

    batch: TrainBatch
    advantages: Float[Array, " B"]
    ref_logprobs: Float[Array, "B T"] | None
