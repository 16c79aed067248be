"""A run's parameters: their start, their published part, and the form that explorers use."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Literal

import jax
from jaxtyping import Array

from rl_sync.models import lora
from rl_sync.models.config import DTYPES, HEAD, ModelConfig, Quantization
from rl_sync.models.huggingface.adapters import load_adapters, read_adapters
from rl_sync.models.huggingface.loading import load_params
from rl_sync.models.huggingface.reading import load_config, locate
from rl_sync.models.placement import (
    abstract_params,
    as_computed_abstract,
    cast_abstract,
    init_sharded,
    shardings,
    zeros,
)
from rl_sync.models.quantization import held_dtypes, quantized
from rl_sync.models.sharding import Layout
from rl_sync.models.transformer import init_params
from rl_sync.roles.assembly import wiring
from rl_sync.settings.records import ConfigError
from rl_sync.settings.run_settings import RunSettings
from rl_sync.tasks.task import Task
from rl_sync.types import Params
from rl_sync.weights.digest import digest
from rl_sync.weights.ends_interface import Puller


@dataclasses.dataclass(frozen=True)
class Parameters:
    """The parameters of one run's policy.

    Attributes:
      model: model config. With adapters, only these are trained and published.
      path: checkpoint that the parameters start from; None for a random start.
      seed: seed of a random start, and of the adapters.
      layout: sharding in this process.
      dtype: dtype of explorers' parameters and of published ones. Adapters are published in
        float32, and merged in it.
      quantization: dtype of explorers' kernels; None for `dtype`. Without adapters the trainer
        quantizes what it publishes; with adapters each explorer quantizes the merged kernels.
      adapters: PEFT directory of the adapters that the parameters start from; None for new ones.
      base_dtype: dtype of what adapters adapt, if not all of it is used in float32: that in which
        the trainer computes with it.
    """

    model: ModelConfig
    path: str | None
    seed: int
    layout: Layout
    dtype: str
    quantization: Quantization | None = None
    adapters: str | None = None
    base_dtype: str = "float32"

    @functools.cached_property
    def abstract(self) -> Params:
        """Shapes and shardings of all parameters, as they are trained."""
        return abstract_params(self.model, self.layout)

    def initial(self) -> Params:
        """Makes the run's initial parameters, the same in every process.

        Raises:
          ConfigError: the checkpoint's weights cannot be read, or do not match its config.json;
            or the adapters do not fit the checkpoint.
        """
        if self.path is None:
            return init_sharded(self.model, jax.random.key(self.seed), self.layout)
        drawn = self._drawn(0) if self.model.lora or self.model.scalar_head else {}
        return lora.join(drawn | self._stored_adapters() | self._stored_head(), self.base())

    def base(self) -> Params:
        """The initial parameters without adapters and scalar head.

        With adapters, they are in `base_dtype`; see `Trainer.held`.

        Raises:
          ConfigError: see `initial`.
        """
        if self.path is None:
            return self._drawn(1)
        abstract = self.abstract_base
        try:
            return load_params(locate(self.path), lora.merged_config(self.model), abstract)
        except ValueError as error:
            raise ConfigError(f"config.model.path={self.path!r}: {error}") from error

    def kept(self, params: Params) -> Params:
        """Returns the part of the parameters that snapshots hold: the adapters, or else all."""
        return lora.split(params)[0] if self.model.lora else params

    def base_digest(self, params: Params) -> str | None:
        """Returns the digest of the part that snapshots omit; None if they hold everything."""
        return digest(lora.split(params)[1]) if self.model.lora else None

    def completed(self, kept: Params, base_digest: str | None) -> Params:
        """Inverts `kept`.

        Args:
          base_digest: digest of the omitted part at the time of the snapshot.

        Raises:
          ConfigError: the omitted part is unavailable, or has changed.
        """
        if not self.model.lora:
            return kept
        base = self.base()
        found = digest(base)
        # The run's trainer may have held it in another dtype.
        others = (
            dataclasses.replace(self, base_dtype=one) for one in DTYPES if one != self.base_dtype
        )
        if found != base_digest and all(digest(one.base()) != base_digest for one in others):
            start = f"seed={self.seed}" if self.path is None else f"model.path={self.path!r}"
            raise ConfigError(
                f"The snapshot's adapters were trained on a base model with digest {base_digest},"
                f" but the one of config.{start} now has {found}, so it has changed. Restore it, or"
                " start again with another --config.workdir."
            )
        return lora.join(kept, base)

    def digest(self, params: Params) -> str:
        """Returns the digest of all parameters."""
        return digest(params)

    def published(self, params: Params) -> Params:
        """Returns the part of the parameters that is published."""
        if self.model.lora:
            return lora.split(params)[0]
        if self.quantization is None and self.dtype == "float32":
            return params
        return _held(self._held_model, self.dtype, params)

    def abstract_published(self) -> Params:
        """Shapes and shardings of the published parameters."""
        return lora.split(self.abstract)[0] if self.model.lora else self.abstract_held

    def blank(self) -> Params:
        """Makes zeros in the shapes of explorers' parameters, to compile with."""
        return zeros(self.abstract_held)

    def receiving(self, puller: Puller, lent: Callable[[], Params] | None = None) -> Puller:
        """Turns a puller of published parameters into a puller of explorers' parameters.

        Args:
          lent: returns the base of a trainer in this process, once a version is there; None to make
            it anew. On the trainer's devices it is not copied.
        """
        if not self.model.lora:
            return puller
        held = self._held_model
        one_layer = dataclasses.replace(held, num_layers=1, sliding_layers=held.sliding_layers[:1])
        as_held = functools.partial(_as_held, one_layer, self.dtype)
        base = BorrowedBase(lent, self.abstract_base) if lent else _given(self.base())
        return MergingPuller(puller, self.model, base, self.abstract_held, as_held)

    def _stored_adapters(self) -> Params:
        """Returns the adapters of a PEFT directory, which replace new ones."""
        if self.adapters is None:
            return {}
        abstract = lora.split(self.abstract)[0]["blocks"]
        try:
            stored = read_adapters(locate(self.adapters))
            return {"blocks": load_adapters(stored, self.model, abstract)}
        except ValueError as error:
            raise ConfigError(f"config.model.lora.path={self.adapters!r}: {error}") from error

    def _stored_head(self) -> Params:
        """Returns a checkpoint's scalar head, if it has one, which replaces a random one."""
        if self.path is None or not self.model.scalar_head:
            return {}
        directory = locate(self.path)
        if not load_config(directory).scalar_head:
            return {}
        return load_params(directory, lora.merged_config(self.model), {HEAD: self.abstract[HEAD]})

    def _drawn(self, part: Literal[0, 1]) -> Params:
        """Makes adapters and scalar head (0), or the rest (1), of a random start."""

        abstract = self.abstract_base if part else lora.split(self.abstract)[0]

        def draw(key: Array) -> Params:
            drawn = lora.split(init_params(self.model, key))[part]
            return jax.tree.map(lambda x, own: x.astype(own.dtype), drawn, abstract)

        return jax.jit(draw, out_shardings=shardings(abstract))(jax.random.key(self.seed))

    @property
    def abstract_base(self) -> Params:
        """Shapes, dtypes and shardings of `base`."""
        base = lora.split(self.abstract)[1]
        if not self.model.lora:
            return base
        return as_computed_abstract(dataclasses.replace(self.model, dtype=self.base_dtype), base)

    @property
    def abstract_held(self) -> Params:
        """Shapes, dtypes and shardings of explorers' parameters."""
        if self.quantization is None:
            return cast_abstract(lora.split(self.abstract)[1], self.dtype)
        return cast_abstract(abstract_params(self._held_model, self.layout), self.dtype)

    @property
    def _held_model(self) -> ModelConfig:
        """The model config of explorers' parameters."""
        merged = lora.merged_config(self.model)
        return dataclasses.replace(merged, quantization=self.quantization)


def parameters_of(settings: RunSettings, task: Task, layout: Layout) -> Parameters:
    """Returns the parameters of a run's policy."""
    return Parameters(
        model=wiring.model_config(settings, task),
        path=settings.model.path,
        seed=settings.seed,
        layout=layout,
        dtype=settings.explorer_dtype,
        quantization=settings.quantization,
        adapters=settings.model.lora.path,
        base_dtype=settings.compute_dtype,
    )


def _as_held(model: ModelConfig, dtype: str, params: Params) -> Params:
    """Quantizes parameters where the model says so, and casts the others."""
    held = params if model.quantization is None else quantized(model, params)
    return jax.tree.map(lambda x, own: x.astype(own), held, held_dtypes(held, dtype))


_held = jax.jit(_as_held, static_argnums=(0, 1))


def _given(base: Params) -> Callable[[], Params]:
    return lambda: base


class BorrowedBase:
    """Parameters without adapters that a trainer of this process lends.

    Args:
      lent: returns them, the same object as long as they are the same.
      abstract: shardings in which they are needed.
    """

    def __init__(self, lent: Callable[[], Params], abstract: Params) -> None:
        self._lent, self._there = lent, shardings(abstract)
        self._last: Params | None = None
        self._placed: Params | None = None

    def __call__(self) -> Params:
        """Returns them in place: where the trainer holds them, or copied once."""
        lent = self._lent()
        if self._placed is None or lent is not self._last:
            self._last, self._placed = lent, jax.device_put(lent, self._there)
        return self._placed


class MergingPuller:
    """Pulls adapters, and merges them into the fixed parameters.

    Args:
      puller: puller of the adapters.
      model: model config with `lora`.
      base: returns parameters without adapters, once a version was pulled.
      abstract: dtypes and shardings of the result.
      as_held: turns merged parameters, of one layer or of none, into those of explorers.
    """

    def __init__(
        self,
        puller: Puller,
        model: ModelConfig,
        base: Callable[[], Params],
        abstract: Params,
        as_held: Callable[[Params], Params],
    ) -> None:
        self._puller, self._base = puller, base

        def merge(adapters: Params, base: Params) -> Params:
            return lora.merge(model, lora.join(adapters, base), as_held)

        self._merge = jax.jit(merge, out_shardings=shardings(abstract))

    def pull(
        self, *, exactly: int | None = None, at_least: int | None = None, timeout_secs: float
    ) -> tuple[int, Params]:
        """See `Puller`."""
        version, adapters = self._puller.pull(
            exactly=exactly, at_least=at_least, timeout_secs=timeout_secs
        )
        return version, self._merge(adapters, self._base())

    def newest(self, at_least: int = -1, timeout_secs: float = 0.0) -> int:
        """See `Puller`."""
        return self._puller.newest(at_least, timeout_secs)

    def close(self) -> None:
        """See `Puller`."""
        self._puller.close()
