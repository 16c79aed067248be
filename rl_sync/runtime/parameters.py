"""A run's parameters: where they start, what of them travels, what explorers generate with."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from rl_sync.models import lora
from rl_sync.models.config import ModelConfig
from rl_sync.models.huggingface.reading import load_params, locate
from rl_sync.models.transformer import init_params
from rl_sync.runtime.records import ConfigError
from rl_sync.types import Params
from rl_sync.weights.interface import Puller


@dataclasses.dataclass(frozen=True)
class Parameters:
    """The parameters of one run's policy.

    Attributes:
      model: its shape. With adapters, they alone are trained, and they alone travel.
      path: the checkpoint that they start from; None for a random start.
      seed: of a random start, and of the adapters'.
    """

    model: ModelConfig
    path: str | None
    seed: int

    def like(self) -> Params:
        """All parameters' shapes, on this process's device."""
        shapes = jax.eval_shape(lambda key: init_params(self.model, key), jax.random.key(0))
        here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), shapes)

    def initial(self) -> Params:
        """What the run starts with; the same in every process.

        Raises:
          ConfigError: the checkpoint's weights cannot be read, or are not those of its config.json.
        """
        key = jax.random.key(self.seed)
        if self.path is None:
            return jax.jit(init_params, static_argnums=0)(self.model, key)
        adapters = {}
        if self.model.lora:
            adapters = jax.jit(lambda key: lora.split(init_params(self.model, key))[0])(key)
        base_like = lora.split(self.like())[1]
        try:
            base = load_params(locate(self.path), lora.merged_config(self.model), base_like)
        except ValueError as error:
            raise ConfigError(f"config.model.path={self.path!r}: {error}") from error
        return lora.join(adapters, base)

    def travelling(self, params: Params) -> Params:
        """What of the parameters, or of their shapes, is published."""
        return lora.split(params)[0] if self.model.lora else params

    def blank(self) -> Params:
        """Zeros in the shapes of what explorers generate with, to compile with."""
        like = lora.split(self.like())[1]
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype, device=x.sharding), like)

    def receiving(self, puller: Puller) -> Puller:
        """A puller of what explorers generate with, from one of what travels."""
        if not self.model.lora:
            return puller
        return MergingPuller(puller, self.model, lora.split(self.initial())[1])


class MergingPuller:
    """Pulls adapters, and gives them merged into the parameters that do not change.

    Args:
      puller: of the adapters.
      model: with `lora`.
      base: the parameters without adapters.
    """

    def __init__(self, puller: Puller, model: ModelConfig, base: Params) -> None:
        self._puller, self._base = puller, base
        self._merge = jax.jit(lambda adapters, base: lora.merge(model, lora.join(adapters, base)))

    def pull(
        self, *, exactly: int | None = None, at_least: int | None = None, timeout_secs: float
    ) -> tuple[int, Params]:
        """See `Puller`."""
        version, adapters = self._puller.pull(
            exactly=exactly, at_least=at_least, timeout_secs=timeout_secs
        )
        return version, self._merge(adapters, self._base)

    def newest(self) -> int:
        """See `Puller`."""
        return self._puller.newest()

    def close(self) -> None:
        """See `Puller`."""
        self._puller.close()
