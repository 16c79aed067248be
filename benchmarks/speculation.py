"""Decoding with drafts and without, in turns, on texts that repeat themselves.

    python benchmarks/speculation.py [--draft_tokens=4] [--rounds=3] [--clock=cpu] [--seed=0]
    python benchmarks/speculation.py --model=DIRECTORY [--prompts=4] [--tokens=64]

Four kinds of texts: arithmetic, JSON, copies of long passages, and calls of tools. A toy model is
first trained on all of them, with characters as tokens; `--model` takes a checkpoint with a
`tokenizer.json` instead. Both ways complete the same prompts, a group of completions each, in
float32 at a temperature of 1, twice: the second epoch has other random numbers, and the completions
of the first to take drafts from. All are timed after a first call that compiles.

The table has, for each kind of text and epoch: tokens a decode step of a sequence, the share of
drafted tokens that were drawn, the time of decoding without drafts as a multiple of that with them
(minimum / median / maximum of the rounds), and how many completions have the same tokens
both ways, of all.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import random
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from peers.serving import CLOCKS
from tokenizers import Tokenizer

from rl_sync.models.config import ModelConfig
from rl_sync.models.huggingface.loading import load_params
from rl_sync.models.huggingface.reading import load_config
from rl_sync.models.placement import abstract_params
from rl_sync.models.sharding import Layout
from rl_sync.models.transformer import hidden_states, init_params, logits
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.engine_options import EngineOptions
from rl_sync.rollout.request import CompletionRequest, FinishedCompletion
from rl_sync.rollout.sampling import Sampling
from rl_sync.rollout.speculation.draft_pace import Speculation
from rl_sync.rollout.stats import Stats
from rl_sync.types import Params

GROUP_SIZE, LENGTH, BATCH = 4, 512, 16
TOY = ModelConfig(
    vocab_size=128,
    embed_dim=128,
    num_layers=3,
    num_heads=4,
    num_kv_heads=4,
    head_dim=32,
    mlp_dim=512,
    max_length=LENGTH,
)
WORDS = ("river", "stone", "light", "paper", "green", "house", "cloud", "music", "table", "bread")


def _arithmetic(rng: random.Random) -> tuple[str, str]:
    a, b = rng.randint(100, 999), rng.randint(100, 999)
    answer = f"First {a} + {b} = {a + b}. Then {a + b} + {a} = {2 * a + b}. Answer: {2 * a + b}\n"
    return f"Question: {a} + {b} + {a}?\n", answer


def _json(rng: random.Random) -> tuple[str, str]:
    rows = [{"name": rng.choice(WORDS), "count": rng.randint(1, 9)} for _ in range(6)]
    return "A list of six objects:\n", json.dumps(rows) + "\n"


def _copy(rng: random.Random) -> tuple[str, str]:
    passage = " ".join(rng.choice(WORDS) for _ in range(18))
    return f"Passage: {passage}\nCopy: ", passage + "\n"


def _tools(rng: random.Random) -> tuple[str, str]:
    names = rng.sample(WORDS, 3)
    schema = {"tool": "search", "arguments": {"query": "TEXT", "limit": 10}}
    calls = [{"tool": "search", "arguments": {"query": name, "limit": 10}} for name in names]
    asked = f"Call {json.dumps(schema)} for {', '.join(names)}:\n"
    return asked, "\n".join(map(json.dumps, calls)) + "\n"


KINDS: dict[str, Callable[[random.Random], tuple[str, str]]] = {
    "arithmetic": _arithmetic,
    "JSON": _json,
    "long copies": _copy,
    "tool calls": _tools,
}


class Subject(NamedTuple):
    """A model that completes texts.

    Attributes:
      config, params: its config and weights.
      encode: function from text to token ids.
      shots: number of solved examples before each prompt.
    """

    config: ModelConfig
    params: Params
    encode: Callable[[str], list[int]]
    shots: int


def toy(steps: int, seed: int) -> Subject:
    """Trains the toy model on texts of all kinds."""
    params = jax.jit(init_params, static_argnums=0)(TOY, jax.random.key(seed))
    optimizer = optax.adam(2e-3)
    rng, kinds = random.Random(f"training {seed}"), [*KINDS.values()]

    def loss(params: Params, rows: jax.Array) -> jax.Array:
        scores = logits(TOY, params, hidden_states(TOY, params, rows[:, :-1]))
        losses = optax.softmax_cross_entropy_with_integer_labels(scores, rows[:, 1:])
        return jnp.mean(losses, where=rows[:, 1:] > 0)

    @jax.jit
    def step(
        params: Params, state: optax.OptState, rows: jax.Array
    ) -> tuple[Params, optax.OptState]:
        update, state = optimizer.update(jax.grad(loss)(params, rows), state)
        return optax.apply_updates(params, update), state

    state = optimizer.init(params)
    for _ in range(steps):
        rows = np.zeros((BATCH, LENGTH // 2), np.int32)
        for row in rows:
            ids = "".join(rng.choice(kinds)(rng)).encode("ascii")[: len(row)]
            row[: len(ids)] = list(ids)
        params, state = step(params, state, rows)
    return Subject(TOY, params, lambda text: list(text.encode("ascii")), 0)


def checkpoint(directory: Path) -> Subject:
    """Loads a checkpoint and its tokenizer."""
    config = dataclasses.replace(load_config(directory), max_length=2 * LENGTH, dtype="float32")
    params = load_params(directory, config, abstract_params(config, Layout.single()))
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    return Subject(config, params, lambda text: tokenizer.encode(text).ids, 2)


def prompts(subject: Subject, kind: str, count: int, number: int, seed: int) -> list[np.ndarray]:
    """Writes prompts of a kind of text; those of other numbers, up to 9, begin differently."""
    rng, make = random.Random(f"prompts {seed}"), KINDS[kind]
    found = []
    for _ in range(count):
        shots = "".join("".join(make(rng)) for _ in range(subject.shots))
        text = f"{number}. {shots}{make(rng)[0]}"
        found.append(np.array(subject.encode(text), np.int32))
    return found


def engine(subject: Subject, speculation: Speculation, draft_tokens: int, slots: int) -> Engine:
    """Makes an engine with the model's weights."""
    options = EngineOptions(slots=slots, speculation=speculation, draft_tokens=draft_tokens)
    made = Engine(subject.config, Layout.single(), options)
    made.load(subject.params, 0)
    return made


class Measured(NamedTuple):
    """Completions of an epoch, the work for them, and its time."""

    completions: list[FinishedCompletion]
    work: Stats
    secs: float


def complete(
    made: Engine, asked: Sequence[np.ndarray], seed: tuple[int, ...], tokens: int, clock: str
) -> Measured:
    """Completes prompts."""
    sampling = Sampling(tokens, ())
    requests = [
        CompletionRequest(prompt, sampling, GROUP_SIZE, (*seed, i))
        for i, prompt in enumerate(asked)
    ]
    before, began = made.stats, CLOCKS[clock]()
    found = [one for group in made.generate(requests) for one in group]
    return Measured(found, made.stats - before, CLOCKS[clock]() - began)


def line(kind: str, epoch: int, pairs: Sequence[Sequence[Measured]]) -> str:
    """Writes a line of the table from rounds, each with drafts and without."""
    drafts, _ = pairs[0]
    work = drafts.work
    steps = work.decode_tokens - work.accepted_tokens
    ratios = [without.secs / with_drafts.secs for with_drafts, without in pairs]
    spread = (min(ratios), statistics.median(ratios), max(ratios))
    same = [
        np.array_equal(one.tokens, other.tokens)
        for with_drafts, without in pairs
        for one, other in zip(with_drafts.completions, without.completions, strict=True)
    ]
    cells = (
        f"{kind}, epoch {epoch}",
        f"{work.decode_tokens / steps:.2f}",
        f"{100 * work.accepted_tokens / max(1, work.drafted_tokens):.0f} %",
        " / ".join(f"{ratio:.2f}" for ratio in spread),
        f"{sum(same)} / {len(same)}",
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", type=Path)
    parser.add_argument("--steps", type=int, default=400, help="steps of the toy model's training")
    parser.add_argument("--draft_tokens", type=int, default=4)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3, help="at most 9")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--seed", type=int, default=0, help="of weights, texts and draws")
    arguments = parser.parse_args()
    seed = arguments.seed
    subject = checkpoint(arguments.model) if arguments.model else toy(arguments.steps, seed)
    slots = GROUP_SIZE * arguments.prompts
    print("| text | tokens a step | drafts drawn | speed, x | same tokens |")
    print("|---|---|---|---|---|")
    engines = [
        engine(subject, speculation, arguments.draft_tokens, slots)
        for speculation in ("always", "off")
    ]
    for kind in KINDS:
        rounds = []
        for number in range(arguments.rounds + 1):
            asked = prompts(subject, kind, arguments.prompts, number, seed)
            given = functools.partial(
                complete, asked=asked, tokens=arguments.tokens, clock=arguments.clock
            )
            epochs = [
                [given(made, seed=(seed, number, epoch)) for made in engines] for epoch in (1, 2)
            ]
            rounds.append(epochs)
        del rounds[0]  # It compiled.
        for epoch, pairs in enumerate(zip(*rounds, strict=True), start=1):
            print(line(kind, epoch, pairs), flush=True)


if __name__ == "__main__":
    main()
