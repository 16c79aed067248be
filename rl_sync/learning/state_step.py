"""Compiled steps of a trainer, which keep frozen parameters where they are."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

import jax

from rl_sync.learning.forward import Forward
from rl_sync.learning.objective import Metrics
from rl_sync.learning.train_state import TrainState
from rl_sync.models.sharding import Layout, using
from rl_sync.types import Params, TrainBatch

_After = tuple[TrainState, Metrics]


class Stepping(Protocol):
    """Owner of compiled steps, such as a trainer; hashable, as its programs depend on it."""

    @property
    def layout(self) -> Layout:
        """Sharding of its states."""

    @property
    def forward(self) -> Forward:
        """Forward passes, which tell trained from frozen parameters."""


Of = ParamSpec("Of")
Owner = TypeVar("Owner", bound=Stepping)


class StateStep(Generic[Owner, Of]):
    """A compiled method from a state and a batch to the next state and metrics.

    The next state may have the memory of all that is trained (donation). Frozen parameters stay
    where they are, so that explorers on the same devices may read them meanwhile.
    """

    def __init__(self, step: Callable[Concatenate[Owner, TrainState, Of], _After]) -> None:
        """Compiles a method, once for each of its owners and for arguments of each shape."""
        functools.update_wrapper(self, step)

        @functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
        @functools.wraps(step)
        def compiled(
            owner: Owner, state: TrainState, frozen: Params, *args: Of.args, **kwargs: Of.kwargs
        ) -> _After:
            with using(owner.layout):
                after, metrics = step(owner, _joined(owner, state, frozen), *args, **kwargs)
            return _split(owner, after)[0], metrics

        self._compiled = compiled

    @overload
    def __get__(self, owner: None, kind: type[Owner]) -> StateStep[Owner, Of]: ...
    @overload
    def __get__(
        self, owner: Owner, kind: type[Owner]
    ) -> Callable[Concatenate[TrainState, Of], _After]: ...
    def __get__(self, owner: Owner | None, kind: type[Owner]) -> Any:
        """Binds it to its owner."""
        return self if owner is None else functools.partial(self, owner)

    def __call__(
        self, owner: Owner, state: TrainState, *args: Of.args, **kwargs: Of.kwargs
    ) -> _After:
        """Takes the step."""
        trained, frozen = _split(owner, state)
        after, metrics = self._compiled(owner, trained, frozen, *args, **kwargs)
        return _joined(owner, after, frozen), metrics

    def lower(
        self, owner: Owner, state: TrainState, *args: Of.args, **kwargs: Of.kwargs
    ) -> jax.stages.Lowered:
        """Lowers it for arguments of one shape."""
        return self._compiled.lower(owner, *_split(owner, state), *args, **kwargs)

    def by(
        self, compiled: jax.stages.Compiled, owner: Owner, state: TrainState, batch: TrainBatch
    ) -> _After:
        """Takes the step by a program that was lowered by `lower`."""
        trained, frozen = _split(owner, state)
        after, metrics = compiled(trained, frozen, batch)
        return _joined(owner, after, frozen), metrics


def _split(owner: Stepping, state: TrainState) -> tuple[TrainState, Params]:
    """Splits a state into one of trained parameters alone, and the frozen ones."""
    trained, frozen = owner.forward.split(state.params)
    return state._replace(params=trained), frozen


def _joined(owner: Stepping, state: TrainState, frozen: Params) -> TrainState:
    return state._replace(params=owner.forward.join(state.params, frozen))
