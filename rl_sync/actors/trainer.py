"""The trainer as a functional actor: a state, and pure steps from a batch to the next state."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar, cast

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from rl_sync.actors import credit, objective
from rl_sync.actors.forward import Forward
from rl_sync.actors.microbatches import gradient, map_rows
from rl_sync.actors.objective import Experience, Metrics, Totals, policy_loss
from rl_sync.actors.opt_state import init_opt_state, opt_state_like
from rl_sync.actors.optimizer import OptimizerConfig
from rl_sync.algorithms import aggregation, losses
from rl_sync.algorithms.algorithm import Algorithm
from rl_sync.models import lora
from rl_sync.models.config import ModelConfig
from rl_sync.models.placement import constrain_like, init_sharded, param_like
from rl_sync.models.sharding import Layout, constrain, using
from rl_sync.models.transformer import init_params
from rl_sync.types import Packing, Params, TrainBatch

Step = Callable[["TrainState", TrainBatch], tuple["TrainState", Metrics]]


class TrainState(NamedTuple):
    """All that a trainer carries from step to step.

    Attributes:
      step: finished trainer steps; supervised ones do not count.
      params: the policy's.
      opt_state: the optimizer's, for what is trained: everything, or the adapters alone.
      ref_params: what is trained, as it was when RL began or the reference was last refreshed: with
        what is not, the reference model. None without one.
    """

    step: Int[Array, ""]
    params: Params
    opt_state: Any
    ref_params: Params | None


Of = ParamSpec("Of")
Result = TypeVar("Result")


def _in_layout(
    step: Callable[Concatenate[Trainer, Of], Result],
) -> Callable[Concatenate[Trainer, Of], Result]:
    """Traces a method in the trainer's layout."""

    @functools.wraps(step)
    def within(self: Trainer, *args: Of.args, **kwargs: Of.kwargs) -> Result:
        with using(self.layout):
            return step(self, *args, **kwargs)

    return within


@dataclasses.dataclass(frozen=True)
class Trainer:
    """The trainer's pure functions, for one model and one way to learn.

    Attributes:
      model: the policy's shape. With `lora`, adapters are trained and nothing else.
      algorithm: the loss.
      optimizer: the updates.
      group_size: trajectories of a group, G.
      max_completion_tokens: the most tokens of a completion, at which it is cut.
      end_ids: tokens that a completion ends with which was not cut.
      temperature: of the rollouts.
      steps: of the run.
      microbatch_rows: rows whose activations are in memory at once, a divisor of an update's rows;
        0 for all of them.
      logits_bytes: see `token_logprobs`; on a mesh, of each device.
      layout: where states and batches lie; None for one device, wherever arrays are.
    """

    model: ModelConfig
    algorithm: Algorithm
    optimizer: OptimizerConfig
    group_size: int
    max_completion_tokens: int
    end_ids: tuple[int, ...]
    temperature: float
    steps: int
    microbatch_rows: int
    logits_bytes: int
    layout: Layout | None = None

    def init(self, key: Array) -> TrainState:
        """A random policy that is ready for `warm_up_step`."""
        if self.layout is None:
            return self.start(jax.jit(init_params, static_argnums=0)(self.model, key))
        return self.start(init_sharded(self.model, key, self.layout))

    def start(self, params: Params) -> TrainState:
        """A given policy, in the trainer's layout, that is ready for `warm_up_step`."""
        trained, _ = self._split(params)
        opt_state = init_opt_state(self.optimizer.warm_up(), trained, self.layout)
        step = jnp.int32(0)
        if self.layout is not None:
            step = jax.device_put(step, self.layout.repeated)
        return TrainState(step, params, opt_state, None)

    def begin(self, state: TrainState) -> TrainState:
        """Makes the policy of `state` the start of RL: a fresh optimizer, itself the reference."""
        trained, _ = self._split(state.params)
        reference = None
        if self.algorithm.kl_coefficient > 0:
            reference = jax.tree.map(jnp.copy, trained)
        opt_state = init_opt_state(self._reinforcement(), trained, self.layout)
        return TrainState(state.step, state.params, opt_state, reference)

    def like(self) -> TrainState:
        """Shapes, dtypes and shardings of the states that `begin` and `step` return."""
        if self.layout is None:
            return jax.eval_shape(lambda key: self.begin(self.init(key)), jax.random.key(0))
        params = param_like(self.model, self.layout)
        trained, _ = self._split(params)
        return TrainState(
            step=cast(Array, self.layout.like(jnp.int32(0), ())),
            params=params,
            opt_state=opt_state_like(self._reinforcement(), trained, self.layout),
            ref_params=trained if self.algorithm.kl_coefficient > 0 else None,
        )

    def place(self, batch: TrainBatch) -> TrainBatch:
        """Puts a batch where `step` reads it: each device gets its rows, and all rewards."""
        if self.layout is None:
            return batch
        return jax.device_put(batch, jax.tree.map(lambda x: x.sharding, self._batch_like(batch)))

    @functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
    @_in_layout
    def warm_up_step(
        self, state: TrainState, tokens: Int[Array, "B T"], mask: Bool[Array, "B T"]
    ) -> tuple[TrainState, Metrics]:
        """One supervised update on demonstrations; `mask` is true where the model is to learn."""
        trained, frozen = self._split(state.params)
        tokens, mask = constrain(tokens, "batch"), constrain(mask, "batch")
        forward = dataclasses.replace(self._forward, temperature=1.0)

        def loss_of(trained: Params) -> Float[Array, ""]:
            params = self._join(self._held(trained), frozen)
            logprobs, _ = forward.logprobs(params, tokens)
            return aggregation.token_mean(losses.sft(logprobs), mask)

        loss, descent = jax.value_and_grad(loss_of)(trained)
        trained, opt_state = self._descend(
            self.optimizer.warm_up(), trained, state.opt_state, descent
        )
        params = self._join(trained, frozen)
        metrics = {"loss": loss, "gradient_norm": optax.tree.norm(descent)}
        return state._replace(params=params, opt_state=opt_state), metrics

    @functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
    @_in_layout
    def step(self, state: TrainState, batch: TrainBatch) -> tuple[TrainState, Metrics]:
        """One trainer step: `updates_per_batch` updates, each on an equal share of the groups.

        Advantages come from whole groups, and the loss is a mean over the tokens of an update.
        """
        transformation = self._reinforcement()
        trained, frozen = self._split(state.params)
        reference = None
        if state.ref_params is not None:
            reference = self._join(state.ref_params, frozen)
        rows, of_batch = self._rows(state, batch, reference)
        shares = jax.tree.map(self._share, rows)
        sequence_count = batch.rewards.size // self.optimizer.updates_per_batch

        def update(carry: tuple[Params, Any], share: _Rows) -> tuple[tuple[Params, Any], Metrics]:
            trained, opt_state = carry
            totals = objective.totals(
                self.algorithm, share.experience, sequence_count, self.max_completion_tokens
            )

            def loss(trained: Params, rows: _Rows) -> tuple[Float[Array, ""], Metrics]:
                return self._loss(self._join(self._held(trained), frozen), rows, totals)

            descent, metrics = gradient(loss, trained, share, self.microbatch_rows)
            metrics["gradient_norm"] = optax.tree.norm(descent)
            return self._descend(transformation, trained, opt_state, descent), metrics

        (trained, opt_state), metrics = jax.lax.scan(update, (trained, state.opt_state), shares)
        params = self._join(trained, frozen)
        gradient_norm = metrics.pop("gradient_norm").mean()
        metrics = objective.summary(metrics) | of_batch | {"gradient_norm": gradient_norm}
        ref_params = self._reference(state, trained)
        return TrainState(state.step + 1, params, opt_state, ref_params), metrics

    def compile_step(self, state: TrainState, batch: TrainBatch) -> Step:
        """Compiles `step` for batches of one shape, without taking one.

        Args:
          state, batch: of the shapes to come; may be what `like` and `jax.eval_shape` return.

        Returns:
          The step, which places its batch.
        """
        compiled = Trainer.step.lower(self, state, self._batch_like(batch)).compile()
        return lambda state, batch: compiled(state, self.place(batch))

    def _batch_like(self, batch: TrainBatch) -> TrainBatch:
        if self.layout is None:
            return batch
        layout = self.layout
        by_row = jax.tree.map(lambda x: layout.like(x, ("batch", "length")), batch)
        return by_row._replace(rewards=layout.like(batch.rewards, ()))

    @functools.cached_property
    def _trained_like(self) -> Params:
        assert self.layout is not None
        return self._split(param_like(self.model, self.layout))[0]

    def _held(self, trained: Params) -> Params:
        """What is trained, or its gradient, kept in its place."""
        return trained if self.layout is None else constrain_like(trained, self._trained_like)

    def _descend(
        self,
        transformation: optax.GradientTransformation,
        trained: Params,
        opt_state: Any,
        descent: Params,
    ) -> tuple[Params, Any]:
        """One update of what is trained; each device updates its own shards."""
        updates, opt_state = transformation.update(descent, opt_state, trained)
        if self.layout is not None:
            like = opt_state_like(transformation, self._trained_like, self.layout)
            opt_state = constrain_like(opt_state, like)
        return self._held(optax.apply_updates(trained, updates)), opt_state

    def _reinforcement(self) -> optax.GradientTransformation:
        return self.optimizer.reinforcement(self.steps * self.optimizer.updates_per_batch)

    def _split(self, params: Params) -> tuple[Params, Params]:
        """What is trained, and what is not."""
        return lora.split(params) if self.model.lora else (params, {})

    def _join(self, trained: Params, frozen: Params) -> Params:
        return lora.join(trained, frozen) if self.model.lora else trained

    def _share(self, rows: Array) -> Array:
        shared = rows.reshape(self.optimizer.updates_per_batch, -1, *rows.shape[1:])
        return constrain(shared, None, "batch")

    def _reference(self, before: TrainState, trained: Params) -> Params | None:
        """What of the reference model is not the policy's anyway, after a step."""
        every_steps = self.algorithm.refresh_reference_steps
        if not every_steps or before.ref_params is None:
            return before.ref_params
        due = (before.step + 1) % every_steps == 0
        return jax.tree.map(lambda new, old: jnp.where(due, new, old), trained, before.ref_params)

    def _rows(
        self, state: TrainState, batch: TrainBatch, reference: Params | None
    ) -> tuple[_Rows, Metrics]:
        """What is computed of a batch before its first update, row by row, and of all of it."""
        mask = batch.completion_mask
        staleness = jnp.where(mask, state.step - batch.policy_versions, 0)
        sequences = None if batch.packing is None else batch.packing.trajectories

        def logprobs_of(params: Params) -> Float[Array, "B T"]:
            def of_rows(rows: tuple[Array, Packing | None]) -> Float[Array, "B T"]:
                return self._forward.logprobs(params, *rows)[0]

            return map_rows(of_rows, (batch.tokens, batch.packing), self.microbatch_rows)

        ref_logprobs = None if reference is None else logprobs_of(reference)
        proximal_logprobs = None
        if objective.needs_proximal(self.algorithm, self.optimizer.updates_per_batch):
            proximal_logprobs = logprobs_of(state.params)
        truncated = credit.is_truncated(
            batch.tokens,
            mask,
            sequences,
            batch.rewards.size,
            self.max_completion_tokens,
            self.end_ids,
        )
        trajectories = credit.Trajectories(
            batch.rewards,
            mask,
            sequences,
            truncated,
            batch.behavior_logprobs,
            ref_logprobs,
        )
        given, metrics = credit.give(
            self.algorithm, trajectories, self.group_size, self.max_completion_tokens
        )
        experience = Experience(
            mask,
            batch.behavior_logprobs,
            proximal_logprobs,
            ref_logprobs,
            given.advantages,
            given.weights,
            staleness,
            sequences,
        )
        metrics["staleness_mean"] = staleness.sum() / jnp.maximum(mask.sum(), 1)
        metrics["staleness_max"] = staleness.max().astype(jnp.float32)
        return _Rows(batch.tokens, batch.packing, experience), metrics

    def _loss(
        self, params: Params, rows: _Rows, totals: Totals
    ) -> tuple[Float[Array, ""], Metrics]:
        logprobs, entropy = self._forward.logprobs(params, rows.tokens, rows.packing)
        return policy_loss(self.algorithm, logprobs, entropy, rows.experience, totals)

    @functools.cached_property
    def _forward(self) -> Forward:
        logits_bytes = self.logits_bytes * (self.layout.mesh.size if self.layout else 1)
        return Forward(self.model, self.temperature, logits_bytes)


class _Rows(NamedTuple):
    """What the loss reads of a batch, or of some rows of it."""

    tokens: Int[Array, "B T"]
    packing: Packing | None
    experience: Experience
