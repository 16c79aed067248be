"""The Linen module of a mixture of experts, and where its parts run on a mesh.

Letters in shapes: B rows, T positions, Z tokens, D embed, F mlp, E experts, C experts of a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import flax.linen as nn
import jax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, UInt

from rl_sync.models.config import Experts, ModelConfig
from rl_sync.models.layers import fan_in, kernel, param, whole
from rl_sync.models.mixture.products import (
    ExpertKernels,
    Routes,
    mixed,
    mixed_between,
    routes_of,
)
from rl_sync.models.sharding import in_use, laid_out

_GATE_UP = ("experts", None, None, "mlp")
_TOKENS = ("batch", "length", None)


class MixtureMLP(nn.Module):
    """A mixture of experts: sums a token's likeliest experts, weighted by the router's softmax.

    No token is dropped, however unbalanced the routing is.
    """

    config: ModelConfig

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], recorded: UInt[Array, "B T C"] | None = None
    ) -> tuple[Float[Array, "B T D"], UInt[Array, "B T C"]]:
        """Returns the sum, and the experts of each token.

        Args:
          recorded: experts to which tokens go again; see `rl_sync.token_records`.
        """
        config, experts = self.config, cast(Experts, self.config.experts)
        D, F, E = config.embed_dim, experts.mlp_dim, experts.count
        router = param(self, "router", fan_in(D), (D, E), ("embed", None))
        gate_up = kernel(
            self,
            config,
            "gate_up",
            fan_in(D),
            shape=(E, D, 2, F),
            axes=("experts", "embed", None, "mlp"),
            inputs=(1,),
        )
        down = kernel(
            self,
            config,
            "down",
            fan_in(F, config.num_layers),
            shape=(E, F, D),
            axes=("experts", "mlp", "embed"),
            inputs=(1,),
        )
        kernels = ExpertKernels(whole(gate_up, x.dtype), whole(down, x.dtype))
        if laid_out():
            return _on_mesh(config, x, router, kernels, recorded)
        flat = x.reshape(-1, D)
        routes = routes_of(experts, flat, router, _flat(recorded))
        return mixed(config, flat, routes, kernels).reshape(x.shape), _recorded(config, routes, x)


def _flat(recorded: UInt[Array, "B T C"] | None) -> UInt[Array, "Z C"] | None:
    return None if recorded is None else recorded.reshape(-1, recorded.shape[-1])


def _recorded(
    config: ModelConfig, routes: Routes, x: Float[Array, "B T D"]
) -> UInt[Array, "B T C"]:
    """Returns the experts of tokens x in the form of a record."""
    assert config.routes is not None
    return routes.experts.astype(config.routes.dtype).reshape(*x.shape[:2], -1)


def _on_mesh(
    config: ModelConfig,
    x: Float[Array, "B T D"],
    router: Float[Array, "D E"],
    kernels: ExpertKernels,
    recorded: UInt[Array, "B T C"] | None,
) -> tuple[Float[Array, "B T D"], UInt[Array, "B T C"]]:
    """Runs the mixture on each device's tokens; the width of the kernels is gathered before.

    Experts on devices that have different tokens get their tokens from there. Devices with the same
    tokens, or with parts of the same expert, sum what they have.
    """
    layout, settings = in_use(), cast(Experts, config.experts)
    tokens = layout.cuts(_TOKENS, x.shape)
    of_tokens = {name for cut in tokens for name in cut}
    by_experts, _, _, by_width = layout.cuts(_GATE_UP, kernels.gate_up.shape)
    by_width = tuple(name for name in by_width if name not in of_tokens)
    between = tuple(name for name in by_experts if name in of_tokens)
    by_experts = between or by_experts  # With some between devices, kernels of others are gathered.

    def run(
        x: Array, router: Array, gate_up: Array, down: Array, recorded: Array | None
    ) -> tuple[Array, Array]:
        flat, held = x.reshape(-1, x.shape[-1]), ExpertKernels(gate_up, down)
        routes = routes_of(settings, flat, router, _flat(recorded))
        if between:
            out = mixed_between(config, flat, routes, held, between)
        else:
            first = jax.lax.axis_index(by_experts) * down.shape[0] if by_experts else 0
            out = mixed(config, flat, routes, held, first)
        if parts := (*by_width, *(() if between else by_experts)):
            out = jax.lax.psum(out, parts)
        return out.reshape(x.shape), _recorded(config, routes, x)

    own = PartitionSpec(*map(_or_none, tokens))
    mapped = jax.shard_map(
        run,
        mesh=layout.mesh,
        in_specs=(
            own,
            PartitionSpec(),
            PartitionSpec(_or_none(by_experts), None, None, _or_none(by_width)),
            PartitionSpec(_or_none(by_experts), _or_none(by_width)),
            own,
        ),
        out_specs=(own, own),
        check_vma=False,
    )
    return mapped(x, router, *kernels, recorded)


def _or_none(names: Sequence[str]) -> tuple[str, ...] | None:
    return tuple(names) or None
