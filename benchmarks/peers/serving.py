"""How a peer answers: what both sides of a benchmark's pipe agree on. Imports nothing but Python.

A peer is a script with an environment of its own. It reads one request a line from its standard
input, a JSON object, and answers with the seconds that it took.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Shape(NamedTuple):
    """The model that all sides have; the fields in the order of `rl_sync.models.config`."""

    vocab: int = 512
    width: int = 256
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    mlp: int = 1024


SHAPE = Shape()
LEARNING_RATE, CLIP = 1e-5, 0.2
# What a request's `clock` names; the second counts what all threads of the process compute.
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}

Request = Mapping[str, Any]


def prompts_of(request: Request) -> list[list[int]]:
    """The prompts of a request: as many as it has lengths, all of one size, none of special ids."""
    rng = random.Random(request["seed"])
    size = request["prompt_tokens"]
    return [[rng.randrange(3, SHAPE.vocab) for _ in range(size)] for _ in request["lengths"]]


def serve(actions: Mapping[str, Callable[[Request], Callable[[], None]]]) -> None:
    """Says `0.0` when it is called, its imports being over; then answers until the input ends.

    Args:
      actions: from a request to what is timed.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Libraries print; the pipe is for answers.
    print(0.0, file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        work = actions[request["action"]](request)
        clock = CLOCKS[request["clock"]]
        start = clock()
        work()
        print(json.dumps(clock() - start), file=answers, flush=True)
    os._exit(0)
