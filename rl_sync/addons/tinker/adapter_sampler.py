"""Sampling with the weights of any sampling session, by the engine.

An engine has one set of weights at a time. Requests are served in the order in which they came:
those that follow each other and have the same weights are decoded together, and the weights change
when no sequence is in flight.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable
from typing import ClassVar, Protocol

import numpy as np
from jaxtyping import Float, Int

from rl_sync.addons.tinker import tinker_wire_pb2 as wire
from rl_sync.addons.tinker.adapter_passes import AdapterPasses
from rl_sync.addons.tinker.service_bounds import ServiceBounds
from rl_sync.addons.tinker.tinker_calls import CallRefusedError, SampleCall, SamplingChoice
from rl_sync.api.loaded_policy import Policy
from rl_sync.models import lora
from rl_sync.models.config import ModelConfig
from rl_sync.models.sharding import Layout
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.engine_options import EngineOptions
from rl_sync.rollout.request import CompletionRequest, FinishedCompletion
from rl_sync.rollout.sampling import Sampling
from rl_sync.types import Params
from rl_sync.weights.digest import digest

_MOST_ENGINES = 2
"""Maximum number of engines, each with a cache of its own: one for the base model, and one for
adapters of a rank."""


@dataclasses.dataclass(frozen=True, eq=False)
class AdapterWeights:
    """Weights to sample with.

    Attributes:
      passes: forward passes of the model with these adapters' shape.
      adapters: the adapters; empty for the base model.
    """

    passes: AdapterPasses
    adapters: Params

    @property
    def params(self) -> Params:
        """All parameters."""
        return lora.join(self.adapters, self.passes.base)

    @functools.cached_property
    def name(self) -> str:
        """Name that other weights of the same base model do not have: a digest, and the shape."""
        return f"{digest(self.adapters)} {self.passes.config.lora}"


@dataclasses.dataclass(eq=False)
class SampleOrder:
    """A request for completions.

    Attributes:
      call: the request.
      weights: the weights.
      done: called once, with the encoded result or with the error.
      finished: the completions so far.
    """

    call: SampleCall
    weights: AdapterWeights
    done: Callable[[bytes | Exception], None]
    finished: list[FinishedCompletion] = dataclasses.field(default_factory=list)

    @property
    def prompt(self) -> Int[np.ndarray, " P"]:
        """Token ids of the prompt."""
        parts = [token for chunk in self.call.prompt.chunks for token in chunk.tokens]
        return np.array(parts, np.int32)


class CompletionSampler(Protocol):
    """Serves requests for completions: here (`AdapterSampler`), or in other processes.

    Attributes:
      is_apart: whether it samples while this process computes something else.
    """

    is_apart: ClassVar[bool]

    @property
    def is_busy(self) -> bool:
        """Says whether `step` has something to do."""

    def add(self, order: SampleOrder) -> None:
        """Adds a request."""

    def step(self) -> None:
        """Does a part of what there is to do in this process."""

    def close(self) -> None:
        """Ends what it has started; requests that are unfinished stay so."""


class AdapterSampler:
    """Serves requests for completions, one chunk of tokens at a time.

    Args:
      layout: sharding of the weights.
      options: options of each engine; `decode` is needed for texts that end completions.
      eos_ids: ends of sequence.
    """

    is_apart: ClassVar[bool] = False

    def __init__(self, layout: Layout, options: EngineOptions, eos_ids: tuple[int, ...]) -> None:
        self._layout, self._options, self._eos_ids = layout, options, eos_ids
        self._waiting: collections.deque[SampleOrder] = collections.deque()
        self._engines: collections.OrderedDict[ModelConfig, Engine] = collections.OrderedDict()
        self._engine: Engine | None = None
        self._loaded: AdapterWeights | None = None
        self._in_flight: dict[int, SampleOrder] = {}
        self._versions = 0

    @classmethod
    def of_policy(cls, policy: Policy, bounds: ServiceBounds, seed: int = 0) -> AdapterSampler:
        """Makes the sampler of a policy.

        Args:
          seed: seed of requests that have none.
        """
        options = EngineOptions(
            slots=bounds.slots,
            max_length=bounds.length_in(policy.model),
            decode=policy.tokenizer.decode,
            seed=seed,
        )
        return cls(policy.layout, options, policy.tokenizer.eos_ids)

    @property
    def is_busy(self) -> bool:
        """Says whether a request is unfinished."""
        return bool(self._waiting or self._in_flight)

    def add(self, order: SampleOrder) -> None:
        """Adds a request, behind those that wait."""
        self._waiting.append(order)

    def step(self) -> None:
        """Starts requests for which there is room, and decodes a chunk of tokens."""
        self._start()
        if (engine := self._engine) is None or not engine.unfinished:
            return
        try:
            finished = engine.step()
        except Exception as error:
            # What the engine holds is of no use any more; the next request gets a new one.
            broken = [*self._in_flight.values()]
            self._in_flight.clear()
            self._engines.clear()
            self._engine = self._loaded = None
            for order in broken:
                order.done(error)
            return
        for one in finished:
            order = self._in_flight[one.ticket]
            order.finished.append(one)
            if len(order.finished) == order.call.num_samples:
                del self._in_flight[one.ticket]
                order.done(_outcome(order))

    def close(self) -> None:
        """See `CompletionSampler`; nothing was started."""

    def _start(self) -> None:
        while self._waiting:
            order = self._waiting[0]
            if not self._in_flight and order.weights is not self._loaded:
                self._load(order.weights)
            engine = self._engine
            if order.weights is not self._loaded or engine is None:
                return
            if engine.occupied and engine.occupied >= engine.slots:
                return
            self._waiting.popleft()
            try:
                (ticket,) = engine.submit([self._request(order, engine)])
            except ValueError as error:
                order.done(CallRefusedError(str(error)))
                continue
            self._in_flight[ticket] = order

    def _load(self, weights: AdapterWeights) -> None:
        config = weights.passes.config
        if config not in self._engines:
            if len(self._engines) == _MOST_ENGINES:
                self._engines.popitem(last=False)
            self._engines[config] = Engine(config, self._layout, self._options)
        self._engines.move_to_end(config)
        self._engine, self._loaded = self._engines[config], weights
        self._versions += 1
        self._engine.load(weights.params, self._versions)

    def _request(self, order: SampleOrder, engine: Engine) -> CompletionRequest:
        choice, prompt = order.call.sampling_params, order.prompt
        length = self._options.max_length or order.weights.passes.config.max_length
        room = max(1, length - len(prompt))
        sampling = sampling_of(choice, room, self._eos_ids)
        seed = None if choice.seed is None else _words(choice.seed)
        return CompletionRequest(prompt, sampling, completions=order.call.num_samples, seed=seed)


def _words(seed: int) -> tuple[int, ...]:
    """Returns a seed of 64 bits as two words."""
    return (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF)


def sampling_of(choice: SamplingChoice, room: int, eos_ids: tuple[int, ...]) -> Sampling:
    """Returns our sampling choices for those of a client.

    Args:
      room: number of tokens of a completion for which there is room.
      eos_ids: ends of sequence.
    """
    ids, texts = eos_ids, tuple[str, ...]()
    if choice.stop is not None:
        stops = (choice.stop,) if isinstance(choice.stop, str) else choice.stop
        ids = tuple(stop for stop in stops if isinstance(stop, int))
        texts = tuple(stop for stop in stops if isinstance(stop, str))
    is_greedy = choice.temperature == 0
    return Sampling(
        max_new_tokens=room if choice.max_tokens is None else choice.max_tokens,
        stop_ids=ids,
        stop_strings=texts,
        temperature=1.0 if is_greedy else choice.temperature,
        top_k=max(0, choice.top_k),
        top_p=choice.top_p,
        greedy=is_greedy,
    )


def _outcome(order: SampleOrder) -> bytes | Exception:
    try:
        return sample_result(order)
    except Exception as error:
        return error


def sample_result(order: SampleOrder) -> bytes:
    """Writes the result of a request whose completions are finished."""
    call, prompt = order.call, order.prompt
    result = wire.SampleResult()
    for one in sorted(order.finished, key=lambda one: one.index):
        logprobs = one.logprobs
        if call.sampling_params.temperature == 0:
            # Of the likeliest token, the model's own log-probability is more than the 0 of a choice
            # that was certain.
            whole = np.concatenate([prompt, one.tokens])
            logprobs = _scored(order, whole)[len(prompt) :]
        result.sequences.append(
            wire.SampledSequence(
                stop_reason=(
                    wire.STOP_REASON_STOP if one.finish == "stop" else wire.STOP_REASON_LENGTH
                ),
                tokens=np.asarray(one.tokens, np.dtype("<i4")).tobytes(),
                logprobs=np.asarray(logprobs, np.dtype("<f4")).tobytes(),
            )
        )
    if call.prompt_logprobs:
        found = _scored(order, prompt)
        if (last := call.prompt_logprobs_last_n) is not None:
            found[: max(0, len(found) - last)] = np.nan
        result.prompt_logprobs = found.astype(np.dtype("<f4")).tobytes()
    return result.SerializeToString()


def _scored(order: SampleOrder, tokens: Int[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
    return order.weights.passes.logprobs(order.weights.adapters, tokens)
