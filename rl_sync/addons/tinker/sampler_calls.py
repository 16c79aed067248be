"""Calls of samplers to the server that has started them: they fetch requests, and send results."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rl_sync.addons.tinker.service_bounds import ServiceBounds
from rl_sync.addons.tinker.tinker_calls import SampleCall
from rl_sync.isolation.codec import record
from rl_sync.messages.call import Call
from rl_sync.models.config import Lora

record(Lora)


@record
class SampledModel(NamedTuple):
    """The base model of a server.

    Attributes:
      base: directory of its checkpoint.
      dtype: dtype of its parameters; None for the usual one.
      digest: digest of its parameters.
    """

    base: str
    dtype: str | None
    digest: str
    bounds: ServiceBounds


@record
class SentRequest(NamedTuple):
    """A request for completions.

    Attributes:
      number: number of the request, which no other has.
      weights: name of the weights; see `AdapterWeights`.
      shape: shape of the adapters; None for the base model.
    """

    number: int
    call: SampleCall
    weights: str
    shape: Lora | None


@record
class SentResult(NamedTuple):
    """The result of a request.

    Attributes:
      number: number of the request.
      weights: name of the weights that the completions were drawn with.
      outcome: the encoded result, or the error.
    """

    number: int
    weights: str
    outcome: bytes | Exception


@dataclasses.dataclass(frozen=True)
class AskSampledModel(Call[SampledModel]):
    """Asks for the base model."""


@dataclasses.dataclass(frozen=True)
class AskAdapter(Call[np.ndarray]):
    """Asks for an array of the adapters of a request.

    Attributes:
      life: id of the sampler's process.
      number: number of the request.
      index: index of the array, in the order of JAX.
    """

    life: str
    number: int
    index: int


@dataclasses.dataclass(frozen=True)
class ExchangeSamples(Call[list[SentRequest]]):
    """Brings results, and asks for requests.

    Attributes:
      life: id of the sampler's process.
      held: names of the weights that it has.
      wait_secs: maximum wait for a request.
    """

    life: str
    held: Sequence[str]
    results: Sequence[SentResult]
    wait_secs: float
