"""Pieces of a run's work, each with a fixed reference that the same thing limits.

The CPU seconds of a piece are divided by those of its reference, which is measured just before and
just after. So a slow or busy machine changes both. A reference uses nothing of `rl_sync`.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import rewards
import rollout
import train
import weights_role
from peers.serving import SHAPE
from weights import Plain

from rl_sync.replay import embedded_server
from rl_sync.replay.client import ReplayClient
from rl_sync.replay.tables import TableSpec
from rl_sync.rewards.judgement import Completion
from rl_sync.rewards.rubric import ScoringRequest
from rl_sync.scoring.local_scorer import LocalScorer
from rl_sync.types import Group
from rl_sync.weights.ends_interface import Publisher, Puller

WAIT_SECS = 60.0
DECODED_ROWS, DECODED_TOKENS, TRAINED_ROWS = rollout.ROWS, 6, train.GROUP_SIZE
GROUPS, JUDGED, MEGABYTES, LEAVES = 200, 4000, 20, 10
_TABLE, _PRODUCT_ROWS = "groups", 160
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


class RepeatedWork(NamedTuple):
    """A piece of work, and its reference.

    Attributes:
      work: makes the piece once, and returns its CPU seconds; it takes the number of the round.
      reference: name of the reference, a key of `FigureReferences.all`.
    """

    work: Callable[[int], float]
    reference: str


def cpu_secs(function: Callable[[], object]) -> float:
    """Returns the CPU seconds of a call, in all threads."""
    start = time.process_time()
    function()
    return time.process_time() - start


@dataclasses.dataclass(frozen=True)
class _FoundNumbers:
    numbers: int
    text: str


class FigureReferences:
    """Fixed work of one kind each.

    Attributes:
      all: for each name a function that makes the work once, and returns its CPU seconds.
    """

    def __init__(self, directory: Path) -> None:
        V, D, L, N, K, H, F = SHAPE
        shapes = [(D, (N + 2 * K) * H), (N * H, D), (D, 2 * F), (F, D)] * L + [(D, V)]
        self._kernels = [jnp.full(shape, 0.01) for shape in shapes]
        self._inputs = [jnp.ones((_PRODUCT_ROWS, shape[0])) for shape in shapes]
        self._plain = Plain(MEGABYTES * 10**6, directory)
        self.all: dict[str, Callable[[], float]] = {
            "products": lambda: cpu_secs(self._multiply),
            "memory": lambda: cpu_secs(self._move),
            "interpreter": lambda: cpu_secs(_interpret),
        }

    def _multiply(self) -> None:
        jax.block_until_ready(_multiplied(self._kernels, self._inputs))

    def _move(self) -> None:
        self._plain.over_socket()
        for _ in range(3):
            self._plain.in_memory()


@jax.jit
def _multiplied(kernels: list[jax.Array], inputs: list[jax.Array]) -> list[jax.Array]:
    """Computes each product of a trainer step, and the two of its backward pass."""
    results = []
    for kernel, x in zip(kernels, inputs, strict=True):
        y = x @ kernel
        results += [y @ kernel.T, x.T @ y]
    return results


def _interpret() -> None:
    counts: dict[str, int] = {}
    for i in range(8000):
        text = f"{i % 997} is {i}"
        found = _NUMBER.findall(text)
        made = _FoundNumbers(len(found), text.strip().lower())
        counts[made.text] = counts.get(made.text, 0) + made.numbers
        sum(map(int, found))


def _decode(number: int) -> float:
    lengths = [DECODED_TOKENS] * DECODED_ROWS
    return rollout.ours({"seed": number, "lengths": lengths, "prompt_tokens": 16, "clock": "cpu"})


def _step(number: int) -> float:
    return train.ours({"seed": number, "rows": TRAINED_ROWS, "clock": "cpu"})


def _transfer(
    publisher: Publisher, puller: Puller, like: Mapping[str, jax.ShapeDtypeStruct]
) -> Callable[[int], float]:
    """Makes the piece that publishes a version of arrays like these, and pulls it."""
    params = {
        name: jnp.arange(one.size, dtype=one.dtype).reshape(one.shape) for name, one in like.items()
    }

    def transfer(version: int) -> None:
        publisher.publish(version, params)
        _, pulled = puller.pull(exactly=version, timeout_secs=WAIT_SECS)
        jax.block_until_ready(pulled)

    return lambda number: cpu_secs(lambda: transfer(number))


def _delivery(client: ReplayClient) -> Callable[[int], float]:
    groups = [rewards.group_of(lease) for lease in range(GROUPS)]

    def deliver() -> None:
        columns = [group.to_columns() for group in groups]
        client.insert_many(_TABLE, columns, timeout_secs=WAIT_SECS)
        samples = client.sample(_TABLE, GROUPS, timeout_secs=WAIT_SECS)
        assert len([Group.from_columns(sample.columns) for sample in samples]) == GROUPS

    return lambda number: cpu_secs(deliver)


def _judging() -> Callable[[int], float]:
    prompts = rewards.TASK.train
    requests = [
        ScoringRequest(prompt.fields, Completion(prompt.answer, [3] * rewards.TOKENS))
        for prompt in (prompts[i % len(prompts)] for i in range(JUDGED))
    ]
    scorer = LocalScorer("exact")
    return lambda number: cpu_secs(lambda: scorer.judge(requests))


@contextmanager
def workloads(directory: Path) -> Iterator[dict[str, RepeatedWork]]:
    """Yields the pieces of work by name.

    Args:
      directory: an empty folder for their files.
    """
    case = weights_role.Case("server", MEGABYTES, LEAVES, "float32", "one", 1)
    trainer, explorer = (weights_role.Endpoints(str(directory), 0, 0, end) for end in (0, 1))
    server, port = embedded_server.start(
        [TableSpec(_TABLE, GROUPS, max_times_sampled=1)], 0, weights_role.HOST
    )
    with (
        closing(weights_role.publisher_of(case, trainer)) as publisher,
        closing(weights_role.puller_of(case, explorer)) as puller,
        ReplayClient(f"{weights_role.HOST}:{port}") as client,
    ):
        transfer = _transfer(publisher, puller, weights_role.like_of(case, 0))
        yield {
            "decode": RepeatedWork(_decode, "products"),
            "step": RepeatedWork(_step, "products"),
            "transfer": RepeatedWork(transfer, "memory"),
            "delivery": RepeatedWork(_delivery(client), "interpreter"),
            "judging": RepeatedWork(_judging(), "interpreter"),
        }
    server.stop(grace=None).wait()
