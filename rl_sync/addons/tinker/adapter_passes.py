"""Forward and backward passes over the data of a call, and steps of AdamW, on adapters alone.

Gradients of several calls add up in float32 until a step takes them. Data are computed in batches
of padded rows, whose shapes are powers of 2, so that few programs are compiled. Padding has no
part in a loss.

Letters in shapes: B rows, T positions, K targets of a position.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

from rl_sync.addons.tinker.loss_data import LossDatum
from rl_sync.addons.tinker.tinker_losses import LOSSES, Options
from rl_sync.api.loaded_policy import Policy
from rl_sync.learning.forward import Forward, RowInputs
from rl_sync.models import lora
from rl_sync.models.config import Lora, ModelConfig
from rl_sync.models.logprobs import next_distribution, next_logprobs
from rl_sync.models.placement import abstract_params, shardings
from rl_sync.models.sharding import Layout
from rl_sync.models.transformer import init_params
from rl_sync.models.vocabulary.token_sets import LOGITS_BYTES
from rl_sync.types import Params

_LEAST_WIDTH = 32


class PaddedRows(NamedTuple):
    """A batch of rows.

    Attributes:
      tokens: token ids; the last position has no target.
      targets: ids of targets of each token.
      inputs: other inputs of the loss by name; 0 at padding.
    """

    tokens: Int[Array, "B T"]
    targets: Int[Array, "B T K"]
    inputs: dict[str, Float[Array, "B T K"]]


class AdamRates(NamedTuple):
    """The numbers of one step; see `rl_sync.addons.tinker.tinker_calls.AdamChoice`."""

    learning_rate: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    grad_clip_norm: float


@dataclasses.dataclass(frozen=True, eq=False)
class AdapterState:
    """State of a model that training changes.

    Attributes:
      adapters: the trained parameters.
      opt_state: state of AdamW.
      steps: number of steps taken.
    """

    adapters: Params
    opt_state: optax.OptState
    steps: int = 0

    @classmethod
    def begun(cls, adapters: Params, steps: int = 0) -> AdapterState:
        """Returns the state with these adapters and a new optimizer."""
        opt_state = _adamw(AdamRates(*(0.0,) * 6)).init(adapters)
        return cls(adapters, placed_like(opt_state, adapters), steps)


class Computed(NamedTuple):
    """The result of a pass.

    Attributes:
      loss: sum of the loss.
      logprobs: log-probabilities of the targets of each datum.
      gradient: the gradient, added to the one given; None without one.
    """

    loss: float
    logprobs: list[Float[np.ndarray, "N K"]]
    gradient: Params | None


def new_adapters(config: ModelConfig, layout: Layout, seed: int) -> Params:
    """Makes adapters that change nothing: A is random, B is 0 (LoRA, arXiv:2106.09685, 4.1).

    Args:
      config: a config with `lora`.
    """
    out = shardings(lora.split(abstract_params(config, layout))[0])
    # Only the adapters are results, so the compiler leaves the rest of the model out.
    made = jax.jit(lambda key: lora.split(init_params(config, key))[0], out_shardings=out)
    return made(jax.random.key(seed))


def placed_like(opt_state: optax.OptState, adapters: Params) -> optax.OptState:
    """Places an optimizer's state where the adapters are, as a step leaves it.

    Otherwise the second step would compile everything again.
    """
    devices = jax.tree.leaves(adapters)[0].sharding
    return jax.tree.map(lambda x: x if x.ndim else jax.device_put(x, devices), opt_state)


@dataclasses.dataclass(frozen=True)
class AdapterPasses:
    """Passes of one model with adapters of any values.

    Attributes:
      config: the model, with the adapters' shape in `lora`; None there for the base model, which
        only has forward passes.
      base: its other parameters.
      batch_tokens: maximum number of tokens of a batch, unless one row has more.
      logits_bytes: see `LogprobSettings`.
    """

    config: ModelConfig
    base: Params = dataclasses.field(compare=False)
    batch_tokens: int
    logits_bytes: int

    @classmethod
    def of_policy(cls, policy: Policy, shape: Lora | None, batch_tokens: int) -> AdapterPasses:
        """Makes the passes of a policy with adapters of a shape; None for the policy itself."""
        config = dataclasses.replace(policy.model, lora=shape)
        return cls(config, policy.params, batch_tokens, LOGITS_BYTES)

    @property
    def _forward(self) -> Forward:
        return Forward(self.config, 1.0, self.logits_bytes)

    def run(
        self,
        adapters: Params,
        data: Sequence[LossDatum],
        loss: str,
        options: Mapping[str, float],
        gradient: Params | None = None,
        *,
        backward: bool,
    ) -> Computed:
        """Computes loss and log-probabilities of data, and with `backward` the gradient.

        Args:
          loss: name of the loss, one of `LOSSES`.
          gradient: gradient to add to, whose arrays must not be used again.
        """
        total, found = 0.0, dict[int, Float[np.ndarray, "N K"]]()
        if backward and gradient is None:
            gradient = _zeros_like(adapters)
        for indices, rows in self._batches(data):
            if backward:
                gradient, part, logprobs = _accumulated(
                    gradient, adapters, self.base, rows, options, forward=self._forward, loss=loss
                )
            else:
                part, logprobs = _summed(
                    adapters, self.base, rows, options, forward=self._forward, loss=loss
                )
            total += float(part)
            values = np.asarray(logprobs)
            for row, index in enumerate(indices):
                found[index] = values[row, : len(data[index].tokens)]
        return Computed(total, [found[index] for index in range(len(data))], gradient)

    def logprobs(self, adapters: Params, tokens: Int[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
        """Computes the log-probability of each token after those before it; NaN for the first."""
        none = np.full(1, np.nan, np.float32)
        if len(tokens) < 2:
            return none
        datum = LossDatum(tokens[:-1], tokens[1:, None], _weights(len(tokens) - 1), True)
        computed = self.run(adapters, [datum], "cross_entropy", {}, backward=False)
        return np.concatenate([none, computed.logprobs[0][:, 0]])

    def _batches(self, data: Sequence[LossDatum]) -> Iterator[tuple[list[int], PaddedRows]]:
        """Cuts data into batches of rows of like lengths and numbers of targets."""
        kinds: dict[tuple[int, int], list[int]] = {}
        for index, datum in enumerate(data):
            # One position more, since the last has no target.
            width = max(_LEAST_WIDTH, _power_of_2(len(datum.tokens) + 1))
            width = min(width, max(len(datum.tokens), self.config.max_length) + 1)
            kinds.setdefault((width, datum.targets.shape[1]), []).append(index)
        for (width, count), indices in sorted(kinds.items()):
            size = max(1, self.batch_tokens // width)
            size = 1 << (size.bit_length() - 1)
            for first in range(0, len(indices), size):
                chosen = indices[first : first + size]
                yield chosen, _padded([data[index] for index in chosen], width, count)


def _weights(count: int) -> dict[str, Float[np.ndarray, "N 1"]]:
    return {"weights": np.ones((count, 1), np.float32)}


def _power_of_2(least: int) -> int:
    return 1 << math.ceil(math.log2(least))


def _padded(data: Sequence[LossDatum], width: int, count: int) -> PaddedRows:
    rows = _power_of_2(len(data))
    tokens = np.zeros((rows, width), np.int32)
    targets = np.zeros((rows, width - 1, count), np.int32)
    inputs = {name: np.zeros(targets.shape, np.float32) for name in data[0].inputs}
    for row, datum in enumerate(data):
        tokens[row, : len(datum.tokens)] = datum.tokens
        targets[row, : len(datum.tokens)] = datum.targets
        for name, values in datum.inputs.items():
            inputs[name][row, : len(datum.tokens)] = values
    return jax.tree.map(jnp.asarray, PaddedRows(tokens, targets, inputs))  # type: ignore[arg-type]


def _loss(
    adapters: Params,
    base: Params,
    rows: PaddedRows,
    options: Options,
    forward: Forward,
    loss: str,
) -> tuple[Float[Array, ""], Float[Array, "B T K"]]:
    params = forward.join(adapters, base) if forward.model.lora else base
    scored = forward.scored(params, RowInputs(rows.tokens))
    first = rows.targets[..., 0]
    logprobs, _ = next_logprobs(scored.kernel, scored.hidden, first, forward.settings)
    if rows.targets.shape[-1] == 1:
        logprobs = logprobs[..., None]
    else:
        logprobs = next_distribution(
            scored.kernel, scored.hidden, first, logprobs, rows.targets, forward.settings
        )
    return jnp.sum(LOSSES[loss].per_target(logprobs, rows.inputs, options)), logprobs


@jax.jit
def _zeros_like(adapters: Params) -> Params:
    return jax.tree.map(jnp.zeros_like, adapters)


_summed = jax.jit(_loss, static_argnames=("forward", "loss"))


@functools.partial(jax.jit, static_argnames=("forward", "loss"), donate_argnums=0)
def _accumulated(
    gradient: Params,
    adapters: Params,
    base: Params,
    rows: PaddedRows,
    options: Options,
    forward: Forward,
    loss: str,
) -> tuple[Params, Float[Array, ""], Float[Array, "B T K"]]:
    """Adds a batch's gradient; returns the sum, the loss and the log-probabilities."""
    (total, logprobs), own = jax.value_and_grad(_loss, has_aux=True)(
        adapters, base, rows, options, forward, loss
    )
    return jax.tree.map(jnp.add, gradient, own), total, logprobs


def _adamw(rates: AdamRates) -> optax.GradientTransformation:
    return optax.adamw(
        rates.learning_rate,
        b1=rates.beta1,
        b2=rates.beta2,
        eps=rates.eps,
        weight_decay=rates.weight_decay,
    )


def stepped(state: AdapterState, gradient: Params, rates: AdamRates) -> tuple[AdapterState, float]:
    """Takes a step of AdamW.

    Returns:
      The state after it, and the norm of the gradient before it was clipped. If the norm is not
      finite, the state is the one given.
    """
    adapters, opt_state, norm = _step(state.adapters, state.opt_state, gradient, rates)
    if not math.isfinite(float(norm)):
        return state, float(norm)
    return AdapterState(adapters, opt_state, state.steps + 1), float(norm)


@jax.jit
def _step(
    adapters: Params, opt_state: optax.OptState, gradient: Params, rates: AdamRates
) -> tuple[Params, optax.OptState, Float[Array, ""]]:
    norm = optax.tree.norm(gradient)
    is_long: Bool[Array, ""] = (rates.grad_clip_norm > 0) & (norm > rates.grad_clip_norm)
    factor = jnp.where(is_long, rates.grad_clip_norm / norm, 1.0)
    clipped = jax.tree.map(lambda x: x * factor, gradient)
    changes, opt_state = _adamw(rates).update(clipped, opt_state, adapters)
    return optax.apply_updates(adapters, changes), opt_state, norm
