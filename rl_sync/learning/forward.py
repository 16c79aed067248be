"""Forward passes of a model over the rows of a batch, and the split of its parameters.

Letters in shapes: B rows, T positions, C tokens of a row that are learned, D embed, L layers, K
recorded tokens of a sampler. In routes, C is the experts of a token.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped, UInt, UInt32

from rl_sync.models import lora
from rl_sync.models.config import ModelConfig
from rl_sync.models.heads import HEAD, hidden_scalars
from rl_sync.models.logprobs import (
    hidden_distribution,
    hidden_logprobs,
    next_distribution,
    next_logprobs,
)
from rl_sync.models.sharding import constrain, cuts_positions
from rl_sync.models.transformer import hidden_states, output_projection
from rl_sync.models.vision.projector import Seen
from rl_sync.models.vision.tower import image_features
from rl_sync.models.vocabulary.teacher_blocks import Scored
from rl_sync.models.vocabulary.token_sets import LogprobSettings, TokenSets, kept_at, seen_at
from rl_sync.types import Packing, Params, RowImages, Rows, SharedPrompts


class RowInputs(NamedTuple):
    """The parts of rows that a model reads.

    Attributes:
      tokens: token ids.
      packing: layout of packed rows; None where each row is one segment.
      masks: sampling masks of the rows; None if all tokens could be sampled.
      routes: experts to which the policy sends the tokens again (see `rl_sync.token_records`); None
        if it chooses. A critic's own model always chooses.
      images: images of the rows; None for text alone.
      sampler_ids: tokens of `Outputs.distribution`; None for the whole vocabulary.
      served_logprobs, served_ids: answers of a served teacher; see `rl_sync.types.Group`.
    """

    tokens: Int[Array, "B T"]
    packing: Packing | None = None
    masks: UInt32[Array, "B E 3"] | None = None
    routes: UInt[Array, "B T L C"] | None = None
    images: RowImages | None = None
    sampler_ids: Int[Array, "B T K"] | None = None
    served_logprobs: Float[Array, "B T K"] | None = None
    served_ids: Int[Array, "B T K"] | None = None

    @classmethod
    def of(cls, rows: Rows) -> RowInputs:
        """Returns the parts of a batch's rows."""
        return cls(
            rows.tokens,
            rows.packing,
            rows.sampling_masks,
            rows.routes,
            rows.images,
            rows.sampler_ids,
            rows.served_logprobs,
            rows.served_ids,
        )


class Outputs(NamedTuple):
    """Log-probability, entropy and value of each token, and log-probabilities of others there.

    If prompts are shared, they are 0 at tokens that are not learned.

    Attributes:
      logprobs, entropy: see `token_logprobs`.
      values: values of the states before each token; None without a critic. The value at a
        sequence's first token has no meaning.
      distribution: log-probabilities of other tokens at each token, in the order of
        `RowInputs.sampler_ids`; None without `Forward.centers`.
      divergences: divergence from each teacher.
    """

    logprobs: Float[Array, "B T"]
    entropy: Float[Array, "B T"]
    values: Float[Array, "B T"] | None
    distribution: Float[Array, "B T K"] | None = None
    divergences: tuple[Float[Array, "B T"], ...] = ()


Compare = Callable[[Scored, RowInputs, TokenSets], Float[Array, "B C"]]
"""A function of the inputs of a policy's logits, before each target, to a figure of each target."""


@dataclasses.dataclass(frozen=True)
class Forward:
    """Forward passes of a model over rows, each of one or several trajectories.

    Attributes:
      model: the model config. With `lora`, only adapters are trained.
      temperature, logits_bytes, repetition_penalty: see `LogprobSettings`.
      trains_tower: whether gradients reach the vision tower.
      centers: whether `Outputs.distribution` is computed.
    """

    model: ModelConfig
    temperature: float
    logits_bytes: int
    repetition_penalty: float = 1.0
    trains_tower: bool = True
    centers: bool = False

    @property
    def plain(self) -> Forward:
        """Returns the passes for tokens that were not sampled, such as demonstrations."""
        return dataclasses.replace(self, temperature=1.0, repetition_penalty=1.0, centers=False)

    def split(self, params: Params) -> tuple[Params, Params]:
        """Splits parameters into trained and frozen ones."""
        return lora.split(params) if self.model.lora else (params, {})

    def join(self, trained: Params, frozen: Params) -> Params:
        """Inverts `split`; trained parameters may have a scalar head."""
        return lora.join(trained, frozen) if self.model.lora else trained

    def logprobs(self, trained: Params, frozen: Params, rows: RowInputs) -> Float[Array, "B T"]:
        """Computes the log-probability of each token; see `outputs`."""
        return self.outputs(trained, None, frozen, rows).logprobs

    def values(
        self, trained: Params, critic: Params, frozen: Params, rows: RowInputs
    ) -> Float[Array, "B T"]:
        """Computes the values of `Outputs`; for the arguments see `outputs`."""
        if not _is_head(critic):
            trained, rows = critic, rows._replace(routes=None)
        return _values(critic, self._hidden(self.join(trained, frozen), rows), rows.packing)

    def scalars(self, trained: Params, frozen: Params, rows: RowInputs) -> Float[Array, "B T"]:
        """Computes a reward model's score of each prefix; see `token_scalars`."""
        params = self.join(trained, frozen)
        return hidden_scalars(params, self._hidden(params, rows._replace(routes=None)))

    def outputs(
        self,
        trained: Params,
        critic: Params | None,
        frozen: Params,
        rows: RowInputs,
        compare: Sequence[Compare] = (),
    ) -> Outputs:
        """Computes log-probability, entropy and value of each token.

        Log-probabilities and entropies belong to the distribution that explorers sample from: with
        the temperature and the repetition penalty, over the tokens that could be sampled.

        Args:
          trained: the policy's trained parameters.
          critic: either a scalar head alone, which is applied to the policy's trunk in the same
            pass; or a head with the trained parameters of its own model, for a second pass.
          frozen: parameters that both models share.
          compare: compute the divergence from each teacher.
        """
        params = self.join(trained, frozen)
        hidden = self._hidden(params, rows)
        found = self._logprobs(params, hidden, rows)
        if compare:
            policy, sets = self._scored(params, hidden, rows.packing), self.sets_before(rows)
            width, compared = rows.tokens.shape[1], [one(policy, rows, sets) for one in compare]
            divergences = tuple(from_targets(one, rows.packing, width) for one in compared)
            found = found._replace(divergences=divergences)
        if critic is None:
            return found
        if not _is_head(critic):
            hidden = self._hidden(self.join(critic, frozen), rows._replace(routes=None))
        return found._replace(values=_values(critic, hidden, rows.packing))

    def scored(self, params: Params, rows: RowInputs) -> Scored:
        """Computes the inputs of the logits of each target; see `Compare`."""
        return self._scored(params, self._hidden(params, rows), rows.packing)

    def _scored(
        self, params: Params, hidden: Float[Array, "B T D"], packing: Packing | None
    ) -> Scored:
        if (prompts := _shared(packing)) is not None:
            hidden = constrain(_taken(hidden, prompts.before), "batch", "length", "embed")
        elif not cuts_positions():
            hidden = hidden[:, :-1]
        return Scored(output_projection(self.model, params), hidden)

    def sets_before(self, rows: RowInputs) -> TokenSets:
        """Returns the sampling sets of the targets of `scored`."""
        sets = self._sets(constrain(rows.tokens, "batch"), rows.packing, rows.masks)
        if _shared(rows.packing) is not None or not cuts_positions():
            return sets
        return jax.tree.map(lambda x: jnp.pad(x, ((0, 0), (0, 1), (0, 0))), sets)

    @property
    def settings(self) -> LogprobSettings:
        """The distribution of log-probabilities, and the memory for computing them."""
        return LogprobSettings(
            self.temperature,
            self.logits_bytes,
            self.repetition_penalty,
            self.model.batch_invariant,
        )

    def _logprobs(self, params: Params, hidden: Float[Array, "B T D"], rows: RowInputs) -> Outputs:
        """Computes outputs without values."""
        tokens, prompts = constrain(rows.tokens, "batch"), _shared(rows.packing)
        sets = self._sets(tokens, rows.packing, rows.masks)
        kernel = output_projection(self.model, params)
        settings = self.settings
        ids, distribution = rows.sampler_ids, None
        if prompts is None:
            logprobs, entropy = hidden_logprobs(kernel, hidden, tokens, settings, sets)
            if self.centers:
                distribution = hidden_distribution(
                    kernel, hidden, tokens, logprobs, ids, settings, sets
                )
            return Outputs(logprobs, entropy, None, distribution)
        states = constrain(_taken(hidden, prompts.before), "batch", "length", "embed")
        targets = _taken(tokens, prompts.learned)
        logprobs, entropy = next_logprobs(kernel, states, targets, settings, sets)
        if self.centers:
            ids = None if ids is None else _taken(ids, prompts.learned)
            distribution = next_distribution(kernel, states, targets, logprobs, ids, settings, sets)
            distribution = _put(distribution, prompts, tokens.shape[1])
        logprobs, entropy = (_put(of, prompts, tokens.shape[1]) for of in (logprobs, entropy))
        return Outputs(logprobs, entropy, None, distribution)

    def _sets(
        self,
        tokens: Int[Array, "B T"],
        packing: Packing | None,
        masks: UInt32[Array, "B E 3"] | None,
    ) -> TokenSets:
        """Returns the sampling sets of the targets.

        The targets are the learned tokens if prompts are shared, otherwise all tokens from the
        second on.
        """
        vocab_size, prompts = self.model.vocab_size, _shared(packing)
        kept = seen = None
        if masks is not None:
            kept = kept_at(masks, tokens.shape[1], vocab_size)
            kept = kept[:, 1:] if prompts is None else _taken(kept, prompts.learned)
        if self.repetition_penalty != 1:
            seen = seen_at(tokens, packing, vocab_size)
            seen = seen[:, :-1] if prompts is None else _taken(seen, prompts.before)
        return TokenSets(kept, seen)

    def _hidden(self, params: Params, rows: RowInputs) -> Float[Array, "B T D"]:
        trunk = {name: value for name, value in params.items() if name != HEAD}
        tokens, packing, routes = constrain(rows.tokens, "batch"), rows.packing, rows.routes
        seen = None if rows.images is None else self._seen(trunk, rows.images)
        if packing is None:
            return hidden_states(self.model, trunk, tokens, routes=routes, images=seen)
        return hidden_states(
            self.model,
            trunk,
            tokens,
            positions=packing.positions,
            segments=packing.attending,
            prompts=None if packing.prompts is None else packing.prompts.copies,
            routes=routes,
            images=seen,
        )

    def _seen(self, params: Params, images: RowImages) -> Seen:
        if images.tiles.ndim == 3:  # Features, which the explorer computed with the same tower.
            return Seen(images.tiles, constrain(images.at, "batch"))
        features = image_features(self.model, params, images.tiles)
        if not self.trains_tower:
            features = jax.lax.stop_gradient(features)
        return Seen(features, constrain(images.at, "batch"))


def _is_head(critic: Params) -> bool:
    return critic.keys() == {HEAD}


def _values(
    critic: Params, hidden: Float[Array, "B T D"], packing: Packing | None
) -> Float[Array, "B T"]:
    # From a token's hidden state the head reads the value of the state after the token.
    scalars = hidden_scalars(critic, hidden)
    if (prompts := _shared(packing)) is not None:
        return _put(_taken(scalars, prompts.before), prompts, scalars.shape[1])
    return jnp.pad(scalars[:, :-1], ((0, 0), (1, 0)))


def _shared(packing: Packing | None) -> SharedPrompts | None:
    return None if packing is None else packing.prompts


def _taken(values: Shaped[Array, "B T ..."], where: Int[Array, "B C"]) -> Shaped[Array, "B C ..."]:
    """Gathers values of each row at given positions."""
    return jax.vmap(lambda row, at: row.at[at].get(mode="clip"))(values, where)


def from_targets(
    found: Shaped[Array, "B C ..."], packing: Packing | None, row_tokens: int
) -> Shaped[Array, "B T ..."]:
    """Aligns figures of targets, as `Forward.scored` has them, with the tokens; 0 elsewhere."""
    if (prompts := _shared(packing)) is not None:
        return _put(found, prompts, row_tokens)
    return jnp.pad(found[:, : row_tokens - 1], ((0, 0), (1, 0)) + ((0, 0),) * (found.ndim - 2))


def to_targets(
    values: Shaped[Array, "B T ..."], packing: Packing | None
) -> Shaped[Array, "B C ..."]:
    """Takes the figures of targets from those of all tokens; inverts `from_targets`."""
    if (prompts := _shared(packing)) is not None:
        return _taken(values, prompts.learned)
    if cuts_positions():
        return jnp.roll(values, -1, axis=1)  # The last target has no token.
    return values[:, 1:]


def _put(values: Float[Array, "B C ..."], prompts: SharedPrompts, row_tokens: int) -> Array:
    """Scatters the values of learned tokens to their positions in the rows, with 0 elsewhere."""
    nothing = jnp.zeros((values.shape[0], row_tokens, *values.shape[2:]), values.dtype)
    return jax.vmap(lambda row, at, of: row.at[at].set(of, mode="drop"))(
        nothing, prompts.learned, values
    )
