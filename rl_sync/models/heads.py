"""Adds a scalar head to any model, for a critic's values or a reward model's scores."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rl_sync.models.config import HEAD, ModelConfig
from rl_sync.models.transformer import hidden_states
from rl_sync.types import Params


def with_scalar_head(config: ModelConfig, params: Params, key: Array) -> Params:
    """Returns the parameters with a new head: normal with variance 1/(D + 1), and no bias.

    (Learning to summarize from human feedback, arXiv:2009.01325, appendix B.)
    """
    kernel = jax.random.normal(key, (config.embed_dim,)) * (config.embed_dim + 1) ** -0.5
    return {**params, HEAD: {"kernel": kernel, "bias": jnp.zeros(())}}


def blank_scalar_head(config: ModelConfig) -> Params:
    """Makes an initial head whose output is 0 everywhere."""
    return {"kernel": jnp.zeros(config.embed_dim), "bias": jnp.zeros(())}


def token_scalars(
    config: ModelConfig,
    params: Params,
    tokens: Int[Array, "B T"],
    positions: Int[Array, "B T"] | None = None,
    segments: Int[Array, "B T"] | None = None,
) -> Float[Array, "B T"]:
    """Computes the head's output for each prefix, in float32; entry t is for tokens 0 … t.

    For a critic, entry t − 1 is the value of the state in which token t is sampled. For a reward
    model, the entry of the last token is the score of the sequence.

    Args:
      tokens, positions, segments: see `hidden_states`.

    Raises:
      KeyError: the parameters have no head; see `with_scalar_head`.
    """
    trunk = {k: v for k, v in params.items() if k != HEAD}
    return hidden_scalars(params, hidden_states(config, trunk, tokens, positions, segments))


def hidden_scalars(params: Params, hidden: Float[Array, "B T D"]) -> Float[Array, "B T"]:
    """Computes `token_scalars` from known hidden states.

    A reward model's head has no bias.
    """
    head = params[HEAD]
    kernel = head["kernel"].astype(hidden.dtype)
    scalars = jnp.einsum("BTD,D->BT", hidden, kernel, preferred_element_type=jnp.float32)
    return scalars + head["bias"] if "bias" in head else scalars


def last_scalars(scalars: Float[Array, "B T"], lengths: Int[Array, " B"]) -> Float[Array, " B"]:
    """Returns the entry of each row's last token, for rows that are padded on the right."""
    return jnp.take_along_axis(scalars, lengths[:, None] - 1, axis=1)[:, 0]
