"""A vLLM server as an explorer's engine, beside our own: log-probabilities, installs and speed.

    python benchmarks/served_engine.py --engine=http://127.0.0.1:8000 --model=DIRECTORY
        [--transfer=checkpoint|delta] [--prompts=64] [--tokens=32] [--installs=20] [--slots=16]
        [--rounds=3] [--seed=0]

The server must have been started as docs/served-engines.md says, with the checkpoint DIRECTORY. The
tables have:

1. The differences of its log-probabilities from ours, over the same tokens of the same weights
   (percentiles of the absolute values, in nats), and how many prompts came back as they were sent.
2. Installs of changed weights under load, while completions are in flight: seconds of each from
   the parameters to the check, and of these without a token (minimum / median / maximum), megabytes
   that the engine fetched, completions whose tokens are of one version and of several, and those
   with a token whose log-probability is not that by the version that it names.
3. Tokens a second of both engines, in turns, and their ratio (minimum / median / maximum).
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from rl_sync.models.config import ModelConfig
from rl_sync.models.huggingface.loading import load_params
from rl_sync.models.huggingface.reading import load_config
from rl_sync.models.huggingface.writing import FrameSources, write_checkpoint
from rl_sync.models.logprobs import token_logprobs
from rl_sync.models.placement import abstract_params
from rl_sync.models.sharding import Layout
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.engine_interface import RolloutEngine
from rl_sync.rollout.engine_options import EngineOptions
from rl_sync.rollout.request import CompletionRequest, FinishedCompletion
from rl_sync.rollout.sampling import Sampling
from rl_sync.rollout.served.engine_transfers import CheckpointTransfer, DeltaTransfer
from rl_sync.rollout.served.installation import Installation
from rl_sync.rollout.served.served_engine import ServedEngine
from rl_sync.rollout.served.vllm_calls import VllmCalls
from rl_sync.types import Params

PROMPT_TOKENS = 12
TEMPERATURE = 0.8
STEP = 1e-3
"""Share by which weights change from version to version."""


def main() -> None:
    """Makes the three tables."""
    args = parsed()
    model = dataclasses.replace(load_config(args.model), max_length=args.tokens + PROMPT_TOKENS)
    layout = Layout.single()
    params = load_params(args.model, model, abstract_params(model, layout))
    score = jax.jit(functools.partial(token_logprobs, model))
    with tempfile.TemporaryDirectory() as folder:
        calls = VllmCalls(args.engine, 120.0)
        deltas = DeltaTransfer(calls, 120.0) if args.transfer == "delta" else None
        installation = Installation(
            calls=calls,
            transfer=deltas or CheckpointTransfer(calls),
            directory=Path(folder),
            write=lambda path, new: write_checkpoint(
                path, model, new, FrameSources(source=args.model, dtype="float32")
            ),
            score=lambda new, tokens: np.asarray(score(new, tokens)[0]),
            dtype="float32",
            vocab_size=model.vocab_size,
            max_length=model.max_length,
            recompute=True,
        )
        served = ServedEngine(model, installation, slots=args.slots, wait_secs=120.0, tell=print)
        served.load(params, 0)
        try:
            log_probabilities(served, model, params, args)
            installs(served, deltas, model, params, args)
            speeds(served, model, params, args)
        finally:
            served.close()


def parsed() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--transfer", choices=("checkpoint", "delta"), default="checkpoint")
    for name, default in {
        "prompts": 64,
        "tokens": 32,
        "installs": 20,
        "slots": 16,
        "rounds": 3,
        "seed": 0,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()


def requests(model: ModelConfig, args: argparse.Namespace, seed: int) -> list[CompletionRequest]:
    """Makes requests with prompts of random tokens."""
    drawn = np.random.default_rng(seed).integers(
        10, model.vocab_size, (args.prompts, PROMPT_TOKENS)
    )
    sampling = Sampling(max_new_tokens=args.tokens, stop_ids=(), temperature=TEMPERATURE)
    return [
        CompletionRequest(prompt.astype(np.int32), sampling, seed=(seed, i))
        for i, prompt in enumerate(drawn)
    ]


def rescored(
    model: ModelConfig,
    params: Params,
    asked: Sequence[CompletionRequest],
    done: Sequence[FinishedCompletion],
) -> list[np.ndarray]:
    """Computes our log-probabilities of completions' tokens, with the weights given."""
    compute = jax.jit(functools.partial(token_logprobs, model, temperature=TEMPERATURE))
    rows = [np.concatenate([a.prompt, d.tokens]) for a, d in zip(asked, done, strict=True)]
    found = np.asarray(compute(params, np.stack(rows))[0])
    return [row[PROMPT_TOKENS:] for row in found]


def log_probabilities(
    served: RolloutEngine, model: ModelConfig, params: Params, args: argparse.Namespace
) -> None:
    """Prints the first table."""
    asked = requests(model, args, seed=args.seed + 1)
    done = [one for (one,) in served.generate(asked)]
    ours = rescored(model, params, asked, done)
    apart = np.concatenate([abs(a.logprobs - b) for a, b in zip(done, ours, strict=True)])
    marks = np.percentile(apart, [50, 90, 99, 100])
    print("| prompts | tokens | median | 90 % | 99 % | maximum |\n|---|---|---|---|---|---|")
    print(f"| {len(asked)} | {apart.size} | " + " | ".join(f"{x:.2e}" for x in marks) + " |\n")


def installs(
    served: ServedEngine,
    deltas: DeltaTransfer | None,
    model: ModelConfig,
    params: Params,
    args: argparse.Namespace,
) -> None:
    """Prints the second table."""
    secs, paused, asked = list[float](), list[float](), requests(model, args, seed=args.seed + 2)
    changed = functools.partial(_changed, params, embeddings=deltas is not None)
    before = 0 if deltas is None else deltas.sent_bytes
    upcoming = iter(range(1, args.installs + 1))

    def between(_: object) -> None:
        if (version := next(upcoming, None)) is not None:
            began = time.monotonic()
            served.load(changed(version), version)
            secs.append(time.monotonic() - began)
            assert served.installed is not None
            paused.append(served.installed.paused_secs)

    rounds, of_versions, wrong = 0, collections.Counter[int](), 0
    while len(secs) < args.installs:
        rounds += 1
        done = [one for (one,) in served.generate(asked, between)]
        scores = {
            version: rescored(model, changed(version), asked, done)
            for version in {int(v) for one in done for v in one.versions}
        }
        for i, one in enumerate(done):
            of_versions[len({*one.versions.tolist()})] += 1
            wrong += not _is_right(one, {v: of[i] for v, of in scores.items()})
    marks = [f"{min(of):.2f} / {np.median(of):.2f} / {max(of):.2f}" for of in (secs, paused)]
    fetched = "–" if deltas is None else f"{(deltas.sent_bytes - before) / len(secs) / 1e6:.1f}"
    print(
        "| installs | s each | s without a token | MB fetched | completions | of one version"
        " | of several | wrong version |"
    )
    print("|---|---|---|---|---|---|---|---|")
    mixed = sum(count for number, count in of_versions.items() if number > 1)
    total = sum(of_versions.values())
    print(
        f"| {len(secs)} | {' | '.join(marks)} | {fetched} | {total} | {total - mixed} | {mixed}"
        f" | {wrong} |\n"
    )


def _changed(params: Params, version: int, *, embeddings: bool) -> Params:
    """Returns weights that are a little different for each version from 1.

    Args:
      embeddings: whether those differ, too. Without `rl_sync_vllm`, vLLM does not renew an output
        projection on CPUs that is the embedding.
    """
    if not version:
        return params
    whole = params if embeddings else params["blocks"]
    leaves, tree = jax.tree.flatten(whole)
    keys = jax.random.split(jax.random.key(version), len(leaves))
    changed = [
        leaf * (1 + STEP * jax.random.normal(key, leaf.shape))
        for leaf, key in zip(leaves, keys, strict=True)
    ]
    made = jax.tree.unflatten(tree, changed)
    return made if embeddings else {**params, "blocks": made}


def _is_right(one: FinishedCompletion, scores: dict[int, np.ndarray]) -> bool:
    """Says whether each token's log-probability is nearest to that by the version it names."""
    versions = sorted(scores)
    apart = np.stack([abs(scores[version] - one.logprobs) for version in versions])
    named = np.array([versions.index(int(version)) for version in one.versions])
    own = apart[named, np.arange(named.size)]
    return bool((own <= apart.min(axis=0) + 1e-3).all())


def speeds(
    served: RolloutEngine, model: ModelConfig, params: Params, args: argparse.Namespace
) -> None:
    """Prints the third table."""
    own = Engine(model, Layout.single(), EngineOptions(slots=args.slots))
    own.load(params, 0)
    own.generate(requests(model, args, seed=args.seed + 3))
    rates: dict[str, list[float]] = {"vLLM": [], "own": []}
    for number in range(args.rounds):
        for name, engine in (("vLLM", served), ("own", own)):
            began = time.monotonic()
            engine.generate(requests(model, args, seed=args.seed + 4 + number))
            rates[name].append(args.prompts * args.tokens / (time.monotonic() - began))
    ratios = np.divide(rates["own"], rates["vLLM"])
    rows = [(name, rates[name], ".1f") for name in rates] + [("own / vLLM", ratios, ".2f")]
    print("| tokens a second | minimum | median | maximum |\n|---|---|---|---|")
    for name, values, form in rows:
        marks = (min(values), float(np.median(values)), max(values))
        print(f"| {name} | " + " | ".join(format(x, form) for x in marks) + " |")


if __name__ == "__main__":
    main()
