"""Greedy completions in float32 on the device, beside those of the CPU."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from device_parts.finding import CheckFailedError, Finding, PartOptions
from device_parts.model_shape import random_weights, shape_directory
from rl_sync.learning.forward import Forward, RowInputs
from rl_sync.models.config import ModelConfig
from rl_sync.models.huggingface.loading import load_params
from rl_sync.models.huggingface.reading import load_config
from rl_sync.models.placement import abstract_params
from rl_sync.models.sharding import Layout
from rl_sync.models.vocabulary.token_sets import LOGITS_BYTES
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.engine_options import EngineOptions
from rl_sync.rollout.request import CompletionRequest
from rl_sync.rollout.sampling import Sampling
from rl_sync.types import Params
from rl_sync.weights.digest import digest

_FOLDER = Path(__file__).resolve().parents[1]
CLOSE = 1e-3
"""Greatest difference of log-probabilities, in nats, between the device and the CPU."""
_PRECISIONS = ("highest", None)


class GreedyJob(NamedTuple):
    """Completions to compute on two devices.

    Attributes:
      path: directory of a checkpoint, or one with a config.json alone, for random weights.
      prompts: token ids.
      tokens: number of tokens of each completion.
    """

    path: str
    prompts: list[list[int]]
    tokens: int


def compare(options: PartOptions) -> Iterator[Finding]:
    """Compares completions of a model with random weights, of a few layers of Qwen2.5-0.5B."""
    changes = {} if options.small else {"num_hidden_layers": 4, "max_window_layers": 4}
    path = shape_directory("qwen2.5-0.5b", options.small, **changes)
    count, tokens = (8, 16) if options.small else (32, 64)
    rng = np.random.default_rng(0)
    prompts = rng.integers(2, load_config(Path(path)).vocab_size, (count, 24)).tolist()
    return compared(GreedyJob(path, prompts, tokens))


def compared(job: GreedyJob) -> Iterator[Finding]:
    """Computes a job on the device and on the CPU, at once, and compares.

    Raises:
      CheckFailedError: with the highest precision of products, tokens differ that are no ties.
    """
    with tempfile.TemporaryDirectory() as folder:
        task, answer = Path(folder, "job.json"), Path(folder, "answer.json")
        task.write_text(json.dumps(job))
        path = os.pathsep.join([str(_FOLDER), os.environ.get("PYTHONPATH", "")])
        cpu = subprocess.Popen(
            [sys.executable, "-m", __name__, str(task), str(answer)],
            env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
        )
        here = {name: completed(job, name) for name in _PRECISIONS}
        if cpu.wait():
            raise RuntimeError(f"the CPU's process ended with code {cpu.returncode}")
        expected = json.loads(answer.read_text())
    is_exact = here["highest"]["digest"] == expected["digest"]
    yield Finding("weights", "same bits" if is_exact else "OTHER BITS", beside=expected["digest"])
    count, wrong = len(job.prompts), ""
    for name, found in here.items():
        said = f"precision {name or 'default'}"
        compare = difference(expected, found)
        ties = f"{compare.ties} of the others differ first at a tie" * bool(compare.ties)
        yield Finding(f"{said}: equal completions", f"{compare.same} of {count}", beside=ties)
        yield Finding(
            f"{said}: greatest gap of logprobs", compare.gap, "nats", "up to the first difference"
        )
        if name == "highest" and (compare.gap > CLOSE or compare.same + compare.ties < count):
            wrong = (
                f"{count - compare.same} of {count} completions differ, logprobs by up to"
                f" {compare.gap:.1e} nats"
            )
    if wrong or not is_exact:
        raise CheckFailedError(wrong or "the weights have other bits than on the CPU")


def completed(job: GreedyJob, precision: str | None) -> dict[str, Any]:
    """Completes a job's prompts on this process's device, and scores the completions.

    Args:
      precision: JAX's precision of products of float32; None for the default.
    """
    config = _config(job)
    params = _weights(job, config)
    with jax.default_matmul_precision(precision):
        engine = Engine(config, Layout.single(), EngineOptions(slots=len(job.prompts)))
        engine.load(params, 0)
        sampling = Sampling(job.tokens, (), greedy=True)
        requests = [CompletionRequest(np.array(one, np.int32), sampling) for one in job.prompts]
        found = [one.tokens.tolist() for (one,) in engine.generate(requests)]
        rows = np.zeros((len(found), config.max_length), np.int32)
        for row, prompt, tokens in zip(rows, job.prompts, found, strict=True):
            row[: len(prompt) + job.tokens] = [*prompt, *tokens]
        score = jax.jit(Forward(config, 1.0, LOGITS_BYTES).logprobs)
        scores = np.asarray(score(params, {}, RowInputs(jnp.asarray(rows))))
    starts = map(len, job.prompts)
    return {
        "tokens": found,
        "logprobs": [
            row[start : start + job.tokens].tolist()
            for row, start in zip(scores, starts, strict=True)
        ],
        "digest": digest(params),
    }


def _config(job: GreedyJob) -> ModelConfig:
    longest = max(map(len, job.prompts)) + job.tokens
    return dataclasses.replace(load_config(Path(job.path)), dtype="float32", max_length=longest)


def _weights(job: GreedyJob, config: ModelConfig) -> Params:
    abstract = abstract_params(config, Layout.single())
    if any(Path(job.path).glob("*.safetensors")):
        return load_params(Path(job.path), config, abstract)
    return random_weights(abstract)


class Difference(NamedTuple):
    """Differences of two answers.

    Attributes:
      same: number of equal completions.
      ties: number of other completions whose first other tokens are equally likely, up to `CLOSE`.
      gap: greatest difference of log-probabilities before the first other token.
    """

    same: int
    ties: int
    gap: float


def difference(expected: dict[str, Any], found: dict[str, Any]) -> Difference:
    """Compares two answers of `completed`."""
    same, ties, gap = 0, 0, 0.0
    given = (one[name] for name in ("tokens", "logprobs") for one in (expected, found))
    for a, b, x, y in zip(*given, strict=True):
        first = next((i for i, (s, t) in enumerate(zip(a, b, strict=True)) if s != t), len(a))
        gap = max(gap, float(np.abs(np.subtract(x[:first], y[:first])).max(initial=0.0)))
        if first == len(a):
            same += 1
        else:
            ties += abs(x[first] - y[first]) <= CLOSE
    return Difference(same, ties, gap)


def main(task: str, answer: str) -> None:
    """Computes the job of a file, and writes the answer to another."""
    path, prompts, tokens = json.loads(Path(task).read_text())
    found = completed(GreedyJob(path, prompts, tokens), "highest")
    Path(answer).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
