"""A sampler: a process that holds the base model, and does nothing but sample for its server.

The server starts it with a pipe as standard input, and gives it the secret in the environment.
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import logging
import os
import secrets
import signal
import threading
from typing import Any, TypeVar

import jax

from rl_sync.addons.tinker.adapter_passes import AdapterPasses
from rl_sync.addons.tinker.adapter_sampler import AdapterSampler, AdapterWeights, SampleOrder
from rl_sync.addons.tinker.sampler_calls import (
    AskAdapter,
    AskSampledModel,
    ExchangeSamples,
    SentRequest,
    SentResult,
)
from rl_sync.api import loaded_policy
from rl_sync.cluster import compilation_cache
from rl_sync.cluster.rpc import RpcClient
from rl_sync.cluster.secret import given_secret
from rl_sync.isolation.machine_limits import end_when_exhausted, limit_met
from rl_sync.messages.call import Call
from rl_sync.models import lora
from rl_sync.models.placement import abstract_params
from rl_sync.roles.exit_status import FAILED
from rl_sync.roles.process import end_when_orphaned, leave, log_to_stderr
from rl_sync.weights.digest import digest

_CALL_SECS = 600.0
_WAIT_SECS = 1.0
_log = logging.getLogger(__name__)

R = TypeVar("R")


class SamplerProcess:
    """Samples for a server.

    Args:
      client: client of the server.
      life: id of this process.

    Raises:
      ConfigError: there is no such checkpoint.
      ValueError: the checkpoint has other parameters than when the server read it.
    """

    def __init__(self, client: RpcClient, life: str) -> None:
        self._client, self._life = client, life
        model = self._call(AskSampledModel())
        self._bounds = model.bounds
        self._policy = loaded_policy.load(model.base, dtype=model.dtype)
        if (found := digest(self._policy.params)) != model.digest:
            raise ValueError(
                f"{model.base} has changed: the digest of its parameters is {found}, and was"
                f" {model.digest} when the server read it. Start the server again."
            )
        # Samplers must not draw the same completions for requests without a seed.
        seed = secrets.randbits(31)
        self._sampler = AdapterSampler.of_policy(self._policy, self._bounds, seed)
        self._held: collections.OrderedDict[str, AdapterWeights] = collections.OrderedDict()
        self._results: list[SentResult] = []

    def step(self) -> None:
        """Sends results, fetches requests, and decodes a chunk of tokens."""
        results, self._results = self._results, []
        wait_secs = 0.0 if self._sampler.is_busy else _WAIT_SECS
        exchange = ExchangeSamples(self._life, [*self._held], results, wait_secs)
        for request in self._call(exchange):
            self._begin(request)
        self._sampler.step()

    def _begin(self, request: SentRequest) -> None:
        weights = self._weights(request)

        def done(outcome: bytes | Exception) -> None:
            self._results.append(SentResult(request.number, weights.name, outcome))

        self._sampler.add(SampleOrder(request.call, weights, done))

    def _weights(self, request: SentRequest) -> AdapterWeights:
        """Returns the weights of a request; fetches them if they are not among the latest."""
        if request.weights not in self._held:
            while len(self._held) >= self._bounds.snapshots:
                self._held.popitem(last=False)
            self._held[request.weights] = self._fetched(request)
        self._held.move_to_end(request.weights)
        return self._held[request.weights]

    def _fetched(self, request: SentRequest) -> AdapterWeights:
        passes = AdapterPasses.of_policy(self._policy, request.shape, self._bounds.batch_tokens)
        abstract, _ = lora.split(abstract_params(passes.config, self._policy.layout))
        leaves, tree = jax.tree.flatten(abstract)
        arrays: list[Any] = []
        for index, leaf in enumerate(leaves):
            values = self._call(AskAdapter(self._life, request.number, index))
            arrays.append(jax.device_put(values, leaf.sharding))
        weights = AdapterWeights(passes, jax.tree.unflatten(tree, arrays))
        if weights.name != request.weights:
            raise ValueError(f"The weights {weights.name} arrived in place of {request.weights}.")
        return weights

    def _call(self, call: Call[R]) -> R:
        return self._client.call(call, _CALL_SECS)


def main() -> int:
    """Samples until the server ends or kills this process; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("server", help="host:port of the server")
    parser.add_argument("life", help="id of this process")
    arguments = parser.parse_args()
    log_to_stderr()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    threading.Thread(target=end_when_orphaned, name="lifeline", daemon=True).start()
    end_when_exhausted()
    compilation_cache.use(None, os.environ)
    try:
        client = RpcClient(arguments.server, "server", given_secret() or "")
        process = SamplerProcess(client, arguments.life)
        while True:
            process.step()
    except Exception as error:
        _log.exception("The sampler failed")
        _log.error("%s", (limit_met(error) or f"{type(error).__name__}: {error}").splitlines()[0])
        return FAILED


if __name__ == "__main__":
    leave(main())
