"""The answering side of a benchmark: the protocol of its pipe. It imports nothing but Python.

A peer is a script with an environment of its own. It reads requests from its standard input, one
JSON object a line, and answers each with the seconds that it took.
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
    """The shape of all sides' model; its fields have the order of `rl_sync.models.config`."""

    vocab: int = 512
    width: int = 256
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    mlp: int = 1024


class TowerShape(NamedTuple):
    """The shape of all sides' vision tower. Some patches are pooled to a token, as in Gemma 3.

    Attributes:
      patch: side of a patch, in pixels.
      pooled: side of the square of patches that a token stands for.
    """

    width: int = 128
    layers: int = 4
    heads: int = 4
    mlp: int = 512
    patch: int = 8
    pooled: int = 4


SHAPE, TOWER = Shape(), TowerShape()
LEARNING_RATE, CLIP = 1e-5, 0.2
# The clocks that a request may name; the second counts the CPU time of all threads.
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}

PeerRequest = Mapping[str, Any]


def prompts_of(request: PeerRequest) -> list[list[int]]:
    """Makes the prompts of a request, one for each length, of one size, without special ids."""
    rng = random.Random(request["seed"])
    size = request["prompt_tokens"]
    return [[rng.randrange(3, SHAPE.vocab) for _ in range(size)] for _ in request["lengths"]]


def serve(actions: Mapping[str, Callable[[PeerRequest], Callable[[], None]]]) -> None:
    """Prints `0.0` once the imports are done, then answers requests until the input ends.

    Args:
      actions: for each kind of request a function from a request to the call that is timed.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Libraries print, but the pipe is for answers.
    print(0.0, file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        work = actions[request["action"]](request)
        clock = CLOCKS[request["clock"]]
        start = clock()
        work()
        print(json.dumps(clock() - start), file=answers, flush=True)
    os._exit(0)
