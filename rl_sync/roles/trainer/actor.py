"""The trainer as a functional actor: a state, and pure steps from a batch to the next state."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import cast

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from rl_sync.algorithms import aggregation, losses
from rl_sync.learning import objective, reference
from rl_sync.learning.critic import Critic
from rl_sync.learning.drawing_versions import DrawingVersions, KeptVersions
from rl_sync.learning.forward import Forward, RowInputs
from rl_sync.learning.learning_settings import CriticConfig, OptimizerConfig, SftConfig
from rl_sync.learning.loss_scale import (
    LossScale,
    first_scale,
    metrics_of,
    next_scale,
    without_overflows,
)
from rl_sync.learning.microbatches import gradient
from rl_sync.learning.objective import LossConfig, Metrics, OfTokens
from rl_sync.learning.opt_state import ShardedOptimizer, all_finite, updates_taken
from rl_sync.learning.optimizer import rl_optimizer, rl_rate, sft_optimizer, sft_rate
from rl_sync.learning.preparation import Preparation
from rl_sync.learning.state_step import StateStep
from rl_sync.learning.teachers import AnyTeacher, ServedTeacher, Teacher
from rl_sync.learning.train_state import TrainState
from rl_sync.learning.update import Common, Learned, PolicyUpdate, Share, StepValues, Update
from rl_sync.models.config import ModelConfig
from rl_sync.models.placement import (
    abstract_params,
    as_computed,
    as_computed_abstract,
    constrain_like,
    in_host_memory,
    init_sharded,
    move,
    put,
    shardings,
)
from rl_sync.models.sharding import Layout, constrain
from rl_sync.models.shards import all_as_stored
from rl_sync.types import Demonstrations, Packing, Params, RowImages, TrainBatch

Step = Callable[[TrainState, TrainBatch], tuple[TrainState, Metrics]]

_all_finite = jax.jit(all_finite)


@dataclasses.dataclass(frozen=True)
class Trainer:
    """The trainer's pure functions, for one model and one algorithm.

    Attributes:
      model: the policy's model config. With `lora`, only adapters are trained.
      loss: settings of the loss.
      optimizer: settings of the updates.
      temperature, repetition_penalty: sampling settings of the rollouts.
      steps: number of trainer steps of the run.
      sft: number and learning rate of SFT steps.
      logits_bytes: see `token_logprobs`.
      layout: sharding of states and batches.
      critic: settings of the critic; None for algorithms that need no values.
      offload_reference, offload_optimizer: whether the reference model, and the optimizer's state,
        are in host memory while they are not used.
      kept_versions: versions that score the tokens that they drew; None if the explorers'
        log-probabilities are used.
      trains_tower: whether the vision tower is trained, if there is one.
      teachers: the teachers' model configs; none without distillation, or if a teacher is served.
      offload_teachers: whether the teachers are in host memory while they are not used.
      has_served_teacher: whether batches hold a served teacher's answers.
    """

    model: ModelConfig
    loss: LossConfig
    optimizer: OptimizerConfig
    temperature: float
    steps: int
    sft: SftConfig
    logits_bytes: int
    layout: Layout
    critic: CriticConfig | None = None
    offload_reference: bool = False
    offload_optimizer: bool = False
    repetition_penalty: float = 1.0
    kept_versions: KeptVersions | None = None
    trains_tower: bool = False
    teachers: tuple[ModelConfig, ...] = ()
    offload_teachers: bool = False
    has_served_teacher: bool = False

    def __post_init__(self) -> None:
        assert (self.critic is not None) == self.loss.algorithm.needs_values
        taught = bool(self.teachers) or self.has_served_teacher
        assert taught == self.loss.algorithm.has_teacher

    def init(self, key: Array) -> TrainState:
        """Makes a random policy, ready for `sft`."""
        return self.start(init_sharded(self.model, key, self.layout))

    def start(self, params: Params) -> TrainState:
        """Makes a state, ready for `sft_step`, from a policy in the trainer's layout."""
        params = self.held(params)
        trained, _ = self.forward.split(params)
        step = put(jnp.int32(0), self.layout.repeated)
        return TrainState(
            step=step,
            params=params,
            opt_state=self._sft_optimizer.init(trained),
            ref_params=None,
            loss_scale=self._first_loss_scale,
        )

    def held(self, params: Params) -> Params:
        """Returns parameters as states hold them: frozen ones in the dtype of the computation."""
        trained, frozen = self.forward.split(params)
        return self.forward.join(trained, as_computed(self.model, frozen))

    def is_finite(self, state: TrainState) -> bool:
        """Says whether all parameters are finite."""
        return bool(_all_finite(state.params))

    def begin(self, state: TrainState) -> TrainState:
        """Makes the policy of `state` the start and the reference of RL, with a fresh optimizer."""
        trained, _ = self.forward.split(state.params)
        ref_params = None
        if self.loss.algorithm.needs_reference:
            ref_params = jax.tree.map(jnp.copy, as_computed(self.model, trained))
            if self.offload_reference:
                ref_params = move(ref_params, self._abstract_reference)
        return TrainState(
            step=state.step,
            params=state.params,
            opt_state=self._rl_optimizer.init(trained),
            ref_params=ref_params,
            critic=self._critic.begin(trained) if self.critic else None,
            kl_coefficient=reference.first_coefficient(self.loss.algorithm, self.layout),
            drawing=self._first_versions(trained),
            loss_scale=self._first_loss_scale,
        )

    def taught(self, state: TrainState, teachers: tuple[Params, ...]) -> TrainState:
        """Returns a state of `begin`, or one that was restored, with its teachers' parameters."""
        computed = tuple(map(as_computed, self.teachers, teachers))
        return state._replace(teachers=move(computed, self._abstract_teachers))

    def _first_versions(self, trained: Params) -> DrawingVersions | None:
        if self.kept_versions is None:
            return None
        kept = self.kept_versions.begin(as_computed(self.model, trained))
        return None if kept is None else move(kept, self._abstract_versions)

    def abstract_sft_state(self) -> TrainState:
        """Returns abstract states of `start` and `sft_step`: shapes, dtypes and shardings."""
        step = cast(Array, self.layout.abstract(jnp.int32(0), ()))
        return TrainState(
            step=step,
            params=self._abstract_held,
            opt_state=self._sft_optimizer.abstract_state(),
            ref_params=None,
            loss_scale=self._abstract_loss_scale,
        )

    def abstract(self) -> TrainState:
        """Returns abstract states of `begin` and `step`: shapes, dtypes and shardings."""
        trained = self._abstract_trained
        return TrainState(
            step=cast(Array, self.layout.abstract(jnp.int32(0), ())),
            params=self._abstract_held,
            opt_state=self._rl_optimizer.abstract_state(),
            ref_params=self._abstract_reference if self.loss.algorithm.needs_reference else None,
            critic=self._critic.abstract(trained) if self.critic else None,
            kl_coefficient=cast(Array, self.layout.abstract(jnp.float32(0), ()))
            if self.loss.algorithm.adapts_kl
            else None,
            drawing=self._abstract_versions,
            loss_scale=self._abstract_loss_scale,
            teachers=self._abstract_teachers or None,
        )

    def place(self, batch: TrainBatch) -> TrainBatch:
        """Puts a batch where `step` reads it: rows are sharded, rewards are replicated.

        The calling process has the whole batch, and places the shards of its own devices. An array
        that is already in place stays.
        """
        return jax.tree.map(put, batch, self.batch_shardings(batch))

    def batch_shardings(self, batch: TrainBatch) -> TrainBatch:
        """Returns the shardings in which `step` reads the arrays of a batch."""
        return shardings(self._abstract_batch(batch))

    @StateStep
    def sft_step(
        self,
        state: TrainState,
        tokens: Int[Array, "B T"],
        mask: Bool[Array, "B T"],
        packing: Packing | None = None,
        images: RowImages | None = None,
    ) -> tuple[TrainState, Metrics]:
        """Takes one supervised update on demonstrations; `mask` is true at tokens to train on.

        A non-finite update is skipped, and counted in `skipped_updates` or `loss_scale_skips`; see
        `step`.
        """
        trained, frozen = self.forward.split(state.params)
        tokens, mask = constrain(tokens, "batch"), constrain(mask, "batch")
        forward = self.forward.plain

        def loss_of(
            trained: Params, tokens: Int[Array, "B T"]
        ) -> tuple[Float[Array, ""], tuple[Float[Array, ""], None]]:
            logprobs = forward.logprobs(
                constrain_like(trained, self._abstract_trained),
                frozen,
                RowInputs(tokens, packing, images=images),
            )
            loss = aggregation.token_mean(losses.sft(logprobs), mask)
            return loss, (loss, None)

        scaling = state.loss_scale
        scale = None if scaling is None else scaling.scale
        gradients, (loss, _) = gradient(loss_of, trained, tokens, 0, scale)
        metrics = {"loss": loss, "gradient_norm": optax.tree.norm(gradients)}
        finite = all_finite(metrics)
        trained, opt_state = self._sft_optimizer.update(trained, state.opt_state, gradients, finite)
        skipped = ~finite
        if scaling is not None:
            has_gradient = all_finite([metrics["gradient_norm"]])
            scaling, overflows = next_scale(scaling, all_finite([loss]), has_gradient)
            skipped &= ~overflows
        metrics["skipped_updates"] = skipped.astype(jnp.float32)
        metrics |= metrics_of(scaling)
        rate = sft_rate(self.optimizer, self.sft)
        metrics["learning_rate"] = self._rate(rate, state.opt_state)
        params = self.forward.join(trained, frozen)
        return state._replace(params=params, opt_state=opt_state, loss_scale=scaling), metrics

    @StateStep
    def step(self, state: TrainState, batch: TrainBatch) -> tuple[TrainState, Metrics]:
        """Takes one trainer step: `updates_per_batch` updates, each on an equal share of groups.

        Advantages are computed over whole groups. The loss is a mean over the tokens of an update.

        An update whose loss or gradient is not finite is skipped: it changes nothing, and
        `skipped_updates` counts it. `skipped_at_end` counts the skipped updates in a row at the
        step's end. An update without any scored completion is skipped too; `unjudged_updates`
        counts it. If only the gradient overflowed, because of the loss scale of float16, the update
        is skipped too, but only `loss_scale_skips` counts it. Metrics are scalars, except the
        `advantages` of trajectories, and per-token values in the batch's rows: `token_ratios` and
        `token_entropies`, and `token_advantages` if each token has its own advantage. Values
        outside the completion mask are undefined.
        """
        trained, frozen = self.forward.split(state.params)
        kept = state.ref_params
        if self.offload_reference and kept is not None:
            state = state._replace(ref_params=move(kept, self._abstract_trained))
        learned, of_updates, of_tokens, of_batch = self._learned(state, trained, frozen, batch)
        trained, opt_state, critic, loss_scale = learned
        learns = state.step >= self._critic_steps
        params = self.forward.join(trained, frozen)
        skipped = of_updates.pop("skipped").astype(jnp.float32)
        unjudged = of_updates.pop("unjudged").astype(jnp.float32)
        if loss_scale is not None:
            of_updates = without_overflows(of_updates)
        metrics = self._summary(of_updates) | of_batch | jax.tree.map(whole_batch, of_tokens)
        metrics |= metrics_of(loss_scale)
        metrics["skipped_updates"] = skipped.sum()
        metrics["unjudged_updates"] = unjudged.sum()
        metrics["skipped_at_end"] = jnp.cumprod(skipped[::-1]).sum()
        rate = rl_rate(self.optimizer, self._policy_updates)
        metrics["learning_rate"] = self._rate(rate, state.opt_state)
        if self.loss.algorithm.refresh_reference_steps:
            kept = reference.refreshed(self.loss.algorithm, state, trained)
            kept = move(kept, self._abstract_reference) if self.offload_reference else kept
        learns &= ~unjudged.astype(bool).all()
        kept_versions = None
        if self.kept_versions is not None:
            before = as_computed(self.model, self.forward.split(state.params)[0])
            kept_versions = self.kept_versions.after(state.drawing, state.step, before)
        coefficient = reference.next_coefficient(self.loss.algorithm, state, metrics, learns)
        after = TrainState(
            step=state.step + 1,
            params=params,
            opt_state=opt_state,
            ref_params=kept,
            critic=critic,
            kl_coefficient=coefficient,
            drawing=kept_versions,
            loss_scale=loss_scale,
            teachers=state.teachers,
        )
        return after, metrics

    def compile_step(self, state: TrainState, batch: TrainBatch) -> Step:
        """Compiles `step` for batches of one shape, without taking a step.

        Args:
          state, batch: arguments of the same shapes; may be results of `abstract` and
            `jax.eval_shape`.

        Returns:
          The step, which also places its batch.
        """
        compiled = self.lower_step(state, batch).compile()
        return lambda state, batch: Trainer.step.by(compiled, self, state, self.place(batch))

    def lower_step(self, state: TrainState, batch: TrainBatch) -> jax.stages.Lowered:
        """Lowers `step` for batches of one shape; see `compile_step`."""
        return Trainer.step.lower(self, state, self._abstract_batch(batch))

    def lower_sft(self, drawn: Demonstrations) -> jax.stages.Lowered:
        """Lowers `sft_step` for demonstrations of one shape."""
        return Trainer.sft_step.lower(self, self.abstract_sft_state(), *drawn)

    def _abstract_batch(self, batch: TrainBatch) -> TrainBatch:
        cut = jax.tree.map(lambda x: self.layout.abstract(x, ("batch", "length")), batch)
        whole = jax.tree.map(lambda x: self.layout.abstract(x, ()), batch)
        whole_fields = ("rewards", "baselines", "parts", "roles")
        return cut._replace(**{name: getattr(whole, name) for name in whole_fields})

    @functools.cached_property
    def _abstract_trained(self) -> Params:
        return self.forward.split(abstract_params(self.model, self.layout))[0]

    @functools.cached_property
    def _critic(self) -> Critic:
        assert self.critic is not None
        updates = self.optimizer.updates(self.steps)
        return Critic(
            self.critic,
            self.model,
            self.optimizer,
            updates=updates,
            layout=self.layout,
            offloaded=self.offload_optimizer,
        )

    @property
    def _critic_steps(self) -> int:
        """Number of steps at the start in which only the critic is trained."""
        return self.critic.warmup_steps if self.critic else 0

    @property
    def _policy_updates(self) -> int:
        """Number of policy updates after which the learning-rate schedule ends."""
        critic_alone = self._critic_steps * self.optimizer.updates_per_batch
        return max(1, self.optimizer.updates(self.steps) - critic_alone)

    def _rate(self, schedule: optax.Schedule, opt_state: optax.OptState) -> Float[Array, ""]:
        """Returns the learning rate of the next update."""
        taken = updates_taken(opt_state)
        if self.offload_optimizer:
            taken = move(taken, self.layout.abstract(taken, ()))
        return jnp.float32(schedule(taken))

    @functools.cached_property
    def _abstract_held(self) -> Params:
        trained, frozen = self.forward.split(abstract_params(self.model, self.layout))
        return self.forward.join(trained, as_computed_abstract(self.model, frozen))

    @property
    def _abstract_loss_scale(self) -> LossScale | None:
        first = first_scale(self.model.dtype)
        return jax.tree.map(lambda x: self.layout.abstract(x, ()), first)

    @property
    def _first_loss_scale(self) -> LossScale | None:
        first = first_scale(self.model.dtype)
        return jax.tree.map(lambda x: put(x, self.layout.repeated), first)

    @functools.cached_property
    def _abstract_reference(self) -> Params:
        computed = as_computed_abstract(self.model, self._abstract_trained)
        return in_host_memory(computed) if self.offload_reference else computed

    @functools.cached_property
    def _abstract_teachers(self) -> tuple[Params, ...]:
        there = self._abstract_used_teachers
        return in_host_memory(there) if self.offload_teachers else there

    @property
    def _abstract_used_teachers(self) -> tuple[Params, ...]:
        """Shapes, dtypes and shardings of the teachers' parameters while they are used."""
        return tuple(
            as_computed_abstract(one, abstract_params(one, self.layout)) for one in self.teachers
        )

    def _taught_by(self, state: TrainState) -> tuple[AnyTeacher, ...]:
        if self.has_served_teacher:
            return (ServedTeacher(self.forward.settings),)
        params = state.teachers or ()
        if self.offload_teachers:
            params = move(params, self._abstract_used_teachers)
        return tuple(
            Teacher(self.loss.algorithm, dataclasses.replace(self.forward, model=model), one)
            for model, one in zip(self.teachers, params, strict=True)
        )

    @functools.cached_property
    def _abstract_versions(self) -> DrawingVersions | None:
        """Shapes, dtypes and shardings of the earlier versions that the trainer keeps."""
        if self.kept_versions is None or not self.kept_versions.count:
            return None
        count = self.kept_versions.count
        computed = as_computed_abstract(self.model, self._abstract_trained)
        numbers = self.layout.abstract(jnp.zeros(count, jnp.int32), ())
        return DrawingVersions(cast(Array, numbers), (computed,) * count)

    @functools.cached_property
    def _sft_optimizer(self) -> ShardedOptimizer:
        """Optimizer of SFT."""
        transformation = sft_optimizer(self.optimizer, self.sft)
        return ShardedOptimizer(
            transformation, self._abstract_trained, self.layout, self.offload_optimizer
        )

    @functools.cached_property
    def _rl_optimizer(self) -> ShardedOptimizer:
        """Optimizer of RL."""
        transformation = rl_optimizer(self.optimizer, self._policy_updates)
        return ShardedOptimizer(
            transformation, self._abstract_trained, self.layout, self.offload_optimizer
        )

    def _share(self, rows: Array) -> Array:
        shared = rows.reshape(self.optimizer.updates_per_batch, -1, *rows.shape[1:])
        return constrain(shared, None, "batch")

    def _learned(
        self, state: TrainState, trained: Params, frozen: Params, batch: TrainBatch
    ) -> tuple[Learned, Metrics, OfTokens, Metrics]:
        """Prepares a batch for the losses of a step, and computes its updates.

        Returns:
          The learned state; metrics and per-token figures with a leading axis of updates;
          and metrics of the batch.
        """
        teachers = self._taught_by(state)
        known, of_batch = self._preparation.experience(state, trained, frozen, batch, teachers)
        update = PolicyUpdate(
            self.loss,
            self.forward,
            policy=self._rl_optimizer,
            critic=self._critic if self.critic else None,
            scores=self._preparation.scores_in_update,
            compare=()
            if known.teacher_logprobs is not None
            else tuple(one.divergence for one in teachers),
        )
        return *self._taken(update, known, state, trained, frozen, batch), of_batch

    def _taken(
        self,
        update: Update[Share, Common],
        known: Share,
        state: TrainState,
        trained: Params,
        frozen: Params,
        batch: TrainBatch,
    ) -> tuple[Learned, Metrics, OfTokens]:
        """Computes the updates of a step, each on its share of the prepared batch."""
        shares = jax.tree.map(self._share, (known, batch.demonstrations))
        step = StepValues(
            frozen,
            batch.rewards.size // self.optimizer.updates_per_batch,
            state.kl_coefficient,
            learns=state.step >= self._critic_steps,
        )

        def take(
            learned: Learned, shares: tuple[Share, Demonstrations | None]
        ) -> tuple[Learned, tuple[Metrics, OfTokens]]:
            learned, metrics, of_tokens = update.take(self._as_stored(learned), *shares, step)
            return self._as_stored(learned), (metrics, of_tokens)

        before = Learned(trained, state.opt_state, state.critic, state.loss_scale)
        learned, (metrics, of_tokens) = jax.lax.scan(take, before, shares)
        return learned, metrics, of_tokens

    def _as_stored(self, learned: Learned) -> Learned:
        """Makes the loop over updates hold its arrays in the order in which the state holds them.

        A TPU's compiler would choose other orders for the loop, and copy the arrays before and
        after it.
        """
        if self.optimizer.updates_per_batch == 1:
            return learned
        abstract = self.abstract()
        held = Learned(
            self._abstract_trained, abstract.opt_state, abstract.critic, abstract.loss_scale
        )
        return all_as_stored(learned, held)

    def _summary(self, of_updates: dict[str, Array]) -> Metrics:
        """Combines the metrics of a step's updates into the metrics of the step."""
        return objective.summary(of_updates)

    @functools.cached_property
    def forward(self) -> Forward:
        """Forward passes of the policy."""
        return Forward(
            self.model,
            self.temperature,
            self.logits_bytes,
            self.repetition_penalty,
            self.trains_tower,
            self.loss.algorithm.centers,
        )

    @functools.cached_property
    def _preparation(self) -> Preparation:
        return Preparation(
            self.loss,
            self.forward,
            updates=self.optimizer.updates_per_batch,
            kept=self.kept_versions,
        )


def whole_batch(of_updates: Float[Array, "updates rows T"]) -> Float[Array, "B T"]:
    """Concatenates the rows of updates, with their sharding."""
    return constrain(of_updates.reshape(-1, *of_updates.shape[2:]), "batch", "length")
