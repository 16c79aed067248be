"""The samplers of a server: its child processes, the requests of each, and their restarts.

A sampler calls the server to fetch requests and weights, and to bring results. A request counts as
unfinished until its result was brought; if its sampler ends before, it goes to another one. It
fails after `SamplerLimits.request_ends` of them: it may be what ends them.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import logging
import secrets
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import jax
import numpy as np

from rl_sync.addons.tinker.adapter_sampler import SampleOrder
from rl_sync.addons.tinker.sampler_calls import (
    AskAdapter,
    AskSampledModel,
    ExchangeSamples,
    SampledModel,
    SentRequest,
)
from rl_sync.addresses import address_of
from rl_sync.cluster.rpc import CallHandlers, RpcServer
from rl_sync.cluster.secret import SECRET
from rl_sync.isolation.process_limits import end_in_words
from rl_sync.launcher.processes.supervisor import Death, RoleProcess, Supervisor
from rl_sync.roles.exit_status import FAILED

_PROGRAM = "rl_sync.addons.tinker.sampler_process"
_LOOPBACK = "127.0.0.1"
_LOOK_SECS = 0.1
_GRACE_SECS = 1.0
_HOUR_SECS = 3600.0
_log = logging.getLogger(__name__)


class SamplersLostError(RuntimeError):
    """Raised if samplers cannot be started, or no sampler is left; the message says why."""


@dataclasses.dataclass(frozen=True)
class SamplerLimits:
    """Limits of the patience with samplers.

    Attributes:
      start_secs: maximum time until a sampler has read the base model.
      silent_secs: time without a sign after which a sampler is killed; compiling takes minutes.
      restarts: number of restarts that a sampler may have in an hour.
      request_ends: number of samplers that may end with a request, before it fails.
    """

    start_secs: float = 900.0
    silent_secs: float = 1800.0
    restarts: int = 3
    request_ends: int = 3


@dataclasses.dataclass(eq=False)
class _PooledSampler:
    """A sampler, over its restarts.

    Attributes:
      environment: additional environment variables of its process.
      life: id of its process.
      seen: time of its last sign, or of its start.
      is_ready: whether it has read the base model.
      held: names of the weights that it has.
      unfinished: its requests by their numbers.
      unsent: numbers of those that it has not fetched.
      restarts: times of its restarts.
    """

    name: str
    environment: Mapping[str, str]
    life: str = ""
    seen: float = 0.0
    is_ready: bool = False
    held: frozenset[str] = frozenset()
    unfinished: dict[int, SampleOrder] = dataclasses.field(default_factory=dict)
    unsent: list[int] = dataclasses.field(default_factory=list)
    restarts: list[float] = dataclasses.field(default_factory=list)

    def burden(self, weights: str) -> tuple[bool, int, bool]:
        """Returns reasons not to give it a request with some weights, the strongest first."""
        has = weights in self.held or any(one.weights.name == weights for one in self._orders)
        return not self.is_ready, sum(one.call.num_samples for one in self._orders), not has

    @property
    def _orders(self) -> Sequence[SampleOrder]:
        return [*self.unfinished.values()]


class SamplerPool:
    """Samples in processes of their own; see `CompletionSampler`.

    Args:
      model: the base model.
      environments: additional environment variables of each sampler, by its name.
      logs: directory of the samplers' logs.
    """

    is_apart: ClassVar[bool] = True

    def __init__(
        self,
        model: SampledModel,
        environments: Mapping[str, Mapping[str, str]],
        logs: Path,
        limits: SamplerLimits = SamplerLimits(),
    ) -> None:
        self._logs, self._limits = logs, limits
        self._samplers = [_PooledSampler(name, own) for name, own in environments.items()]
        self._changed, self._closing = threading.Condition(), threading.Event()
        self._numbers, self._supervisor = itertools.count(), Supervisor()
        self._ends: collections.Counter[int] = collections.Counter()
        self._has_begun, self._lost = False, ""
        self._secret = secrets.token_hex(32)
        desk = CallHandlers(
            AskSampledModel.answered_by(lambda _: model),
            AskAdapter.answered_by(self._adapter),
            ExchangeSamples.answered_by(self._exchange),
        )
        # Each sampler has one call in flight, and those of an ended one may be unanswered.
        threads = 2 * len(self._samplers) + 1
        self._server = RpcServer(desk, 0, _LOOPBACK, threads=threads, secret=self._secret)
        self._watcher = threading.Thread(target=self._watch, name="samplers", daemon=True)

    def start(self) -> None:
        """Starts the samplers, and waits until all have read the base model.

        Raises:
          SamplersLostError: one has ended before, or takes too long.
          OSError: a process or its log cannot be made.
        """
        for sampler in self._samplers:
            self._begin(sampler)
        self._watcher.start()
        with self._changed:
            # The watcher ends those that take too long.
            self._changed.wait_for(
                lambda: self._lost or all(one.is_ready for one in self._samplers)
            )
            self._has_begun = True
        if self._lost:
            raise SamplersLostError(self._lost)

    @property
    def is_busy(self) -> bool:
        """See `CompletionSampler`; `step` only tells that the samplers were lost."""
        return bool(self._lost)

    def add(self, order: SampleOrder) -> None:
        """See `CompletionSampler`; the sampler with the least to do gets the request."""
        self._give({next(self._numbers): order})

    def step(self) -> None:
        """Raises SamplersLostError, once no sampler is left."""
        if self._lost:
            raise SamplersLostError(self._lost)

    def close(self) -> None:
        """Ends the samplers; closing twice is fine."""
        self._closing.set()
        with self._changed:
            self._changed.notify_all()
        if self._watcher.is_alive():
            self._watcher.join()
        self._supervisor.end_all(_GRACE_SECS)
        self._server.close(_GRACE_SECS)

    # Calls of samplers.

    def _adapter(self, call: AskAdapter) -> np.ndarray:
        with self._changed:
            (order,) = (
                one.unfinished[call.number] for one in self._samplers if one.life == call.life
            )
        return np.asarray(jax.tree.leaves(order.weights.adapters)[call.index])

    def _exchange(self, call: ExchangeSamples) -> list[SentRequest]:
        with self._changed:
            sampler = next((one for one in self._samplers if one.life == call.life), None)
            if sampler is None or self._closing.is_set():
                return []
            sampler.seen, sampler.held = time.monotonic(), frozenset(call.held)
            if not sampler.is_ready:
                sampler.is_ready = True
                self._changed.notify_all()
            for result in call.results:
                asked = sampler.unfinished[result.number].weights.name
                assert result.weights == asked, f"{result.weights} in place of {asked}"
            finished = [(sampler.unfinished.pop(one.number), one.outcome) for one in call.results]
        for order, outcome in finished:
            order.done(outcome)

        def is_over() -> bool:
            return bool(sampler.unsent) or sampler.life != call.life or self._closing.is_set()

        with self._changed:
            self._changed.wait_for(is_over, call.wait_secs)
            if sampler.life != call.life:
                return []
            numbers, sampler.unsent = sampler.unsent, []
            return [_sent(number, sampler.unfinished[number]) for number in numbers]

    # Processes.

    def _begin(self, sampler: _PooledSampler) -> None:
        """Starts the process of a sampler."""
        life, address = secrets.token_hex(8), address_of(_LOOPBACK, self._server.port)
        with self._changed:
            sampler.life, sampler.seen = life, time.monotonic()
        command = [sys.executable, "-m", _PROGRAM, address, life]
        environment = {**sampler.environment, SECRET: self._secret}
        log = self._logs / f"{sampler.name}.log"
        self._supervisor.add(RoleProcess.start(sampler.name, command, log, environment))

    def _watch(self) -> None:
        while not self._closing.wait(_LOOK_SECS):
            ended = {death.name: death for death in self._supervisor.deaths()}
            for sampler in [*self._samplers]:
                death = ended.get(sampler.name) or self._hung(sampler)
                if death is not None:
                    self._replace(sampler, _described(death))

    def _hung(self, sampler: _PooledSampler) -> Death | None:
        """Kills a sampler that gives no sign; returns its death."""
        limits = self._limits
        most_secs = limits.silent_secs if sampler.is_ready else limits.start_secs
        if time.monotonic() - sampler.seen < most_secs:
            return None
        missing = "has given no sign" if sampler.is_ready else "has not read the base model"
        return self._supervisor.end_hung(
            sampler.name, f"{sampler.name} {missing} for {most_secs:g} s, and was killed"
        )

    def _replace(self, sampler: _PooledSampler, why: str) -> None:
        """Starts a sampler again that has ended, and gives its requests to those that live."""
        with self._changed:
            self._ends.update(sampler.unfinished.keys() - sampler.unsent)
            orders, sampler.unfinished, sampler.unsent = sampler.unfinished, {}, []
            sampler.life, sampler.is_ready, sampler.held = "", False, frozenset()
        now, most = time.monotonic(), self._limits.restarts
        sampler.restarts = [at for at in sampler.restarts if now - at < _HOUR_SECS]
        if not self._has_begun:
            self._give_up([*self._samplers], why)
        elif len(sampler.restarts) >= most:
            _log.warning("%s. It was started again %d times within an hour: no more.", why, most)
            self._give_up([sampler], f"No sampler is left: {why}")
        else:
            _log.warning("%s. It is started again.", why)
            sampler.restarts.append(now)
            try:
                self._begin(sampler)
            except OSError as error:
                self._give_up([sampler], f"{sampler.name} cannot be started again: {error}")
        most = self._limits.request_ends
        for number in [number for number in orders if self._ends[number] >= most]:
            told = f"{most} samplers ended with this request, the last: {why}"
            orders.pop(number).done(SamplersLostError(told))
        self._give(orders)

    def _give_up(self, samplers: Sequence[_PooledSampler], why: str) -> None:
        """Does without samplers; the reason is told if none is left."""
        with self._changed:
            self._samplers = [one for one in self._samplers if one not in samplers]
            if not self._samplers:
                self._lost = self._lost or why
            self._changed.notify_all()

    def _give(self, orders: Mapping[int, SampleOrder]) -> None:
        """Gives each request to the sampler with the least to do; fails them if none is left."""
        names = {number: order.weights.name for number, order in orders.items()}  # May compute.
        with self._changed:
            if not self._lost:
                for number, order in orders.items():
                    weights = names[number]
                    sampler = min(self._samplers, key=lambda one: one.burden(weights))
                    sampler.unfinished[number] = order
                    sampler.unsent.append(number)
                self._changed.notify_all()
                return
        for order in orders.values():
            order.done(SamplersLostError(self._lost))


def _sent(number: int, order: SampleOrder) -> SentRequest:
    weights = order.weights
    return SentRequest(number, order.call, weights.name, weights.passes.config.lora)


def _described(death: Death) -> str:
    """Describes the end of a sampler in a line, with its last words if it failed by itself."""
    how = death.hung or f"{death.name} {end_in_words(death.status)}"
    if death.status == FAILED:
        lines = death.log.read_text(errors="replace").splitlines()
        how += "".join(f": {line}" for line in lines[-1:])
    return f"{how} (log: {death.log})"
