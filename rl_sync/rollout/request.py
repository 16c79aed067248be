"""Requests to the engine, and its completions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int, UInt32

from rl_sync.models.config import ModelConfig
from rl_sync.rollout.sampling import Sampling
from rl_sync.sampling_masks import Entries, no_entries
from rl_sync.sequence_images import TEXT, SequenceImages
from rl_sync.token_records import RecordedRoutes, SamplerRecord
from rl_sync.types import CompletionProgress, Finish


@dataclasses.dataclass(frozen=True)
class Handle:
    """Identifier of a completion: the ticket of its request, and its index in the request."""

    ticket: int
    index: int


@dataclasses.dataclass(frozen=True, eq=False)
class CompletionRequest:
    """Request for several completions of one prompt, which is prefilled once for all of them.

    Attributes:
      prompt: token ids, at least one.
      sampling: sampling choices.
      completions: number of completions.
      seed: seed of the sampling. With the same seed, prompt and weights, completion i is the same,
        whatever else is in the batch. None for a new seed from the engine.
      held: whether the engine holds each finished completion, so that `Engine.extend` can continue
        it, until `Engine.release`.
      images: images of the prompt, for a model with vision; None for text alone.
      begun: tokens so far of some of the completions, by their indices. The engine continues them
        as if it had interrupted them itself, and generates none that has an end already.
    """

    prompt: Int[np.ndarray, " P"]
    sampling: Sampling
    completions: int = 1
    seed: tuple[int, ...] | None = None
    held: bool = False
    images: SequenceImages | None = None
    begun: Mapping[int, CompletionProgress] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.completions < 1:
            raise ValueError(f"A request needs at least 1 completion, not {self.completions}.")
        if len(self.prompt) < 1:
            raise ValueError("A prompt needs at least one token: begin it with one of your own.")


@dataclasses.dataclass(frozen=True, eq=False)
class FinishedCompletion:
    """One finished completion; T is its length.

    Attributes:
      ticket: ticket of its request.
      index: index among the request's completions, from 0.
      tokens: sampled tokens, including the stop token.
      logprobs: log-probability of each token under the distribution that it was sampled from, in
        nats.
      versions: version of the weights that sampled each token.
      finish: reason of its end: `stop` at a stop token or stop string, `length` at the token limit.
      masks: set of tokens that each token could be sampled from; see `rl_sync.sampling_masks`. It
        has no entries if the engine does not record them.
      routes: experts of the tokens of prompt and completion that the engine fed to the model, by
        their positions in both together; None if it does not record them.
      sampler: distribution that each token was sampled from; None if it does not record them.
    """

    ticket: int
    index: int
    tokens: Int[np.ndarray, " T"]
    logprobs: Float[np.ndarray, " T"]
    versions: Int[np.ndarray, " T"]
    finish: Finish
    masks: Entries = dataclasses.field(default_factory=no_entries)
    routes: RecordedRoutes | None = None
    sampler: SamplerRecord | None = None

    @classmethod
    def of(
        cls, handle: Handle, progress: CompletionProgress, routes: RecordedRoutes | None = None
    ) -> FinishedCompletion:
        """Makes a completion of all its tokens; without a reason it ended at the token limit."""
        return cls(
            ticket=handle.ticket,
            index=handle.index,
            tokens=progress.tokens,
            logprobs=progress.logprobs,
            versions=progress.versions,
            finish=progress.finish or "length",
            masks=progress.masks,
            routes=routes,
            sampler=progress.sampler,
        )

    def progress(self) -> CompletionProgress:
        """Returns its tokens and its end, without its routes."""
        return CompletionProgress(
            self.tokens, self.logprobs, self.versions, self.masks, self.finish, self.sampler
        )

    @property
    def handle(self) -> Handle:
        """Identifier under which the engine holds it, if it is held."""
        return Handle(self.ticket, self.index)

    @property
    def sampled_tokens(self) -> int:
        """Number of its tokens."""
        return len(self.tokens)


def require_servable(
    request: CompletionRequest, config: ModelConfig, length: int, reads_text: bool
) -> None:
    """Rejects a request that an engine cannot serve.

    Args:
      length: maximum number of tokens of a sequence, prompt included.
      reads_text: whether the engine can look for stop strings.

    Raises:
      ValueError: the request cannot be served; the message says why, and what to change.
    """
    prompt, sampling = request.prompt, request.sampling
    needed, known = len(prompt) + sampling.max_new_tokens, config.vocab_size - 1
    if needed > length:
        raise ValueError(
            f"A prompt of {len(prompt)} tokens and completions of {sampling.max_new_tokens} need"
            f" rows of {needed}, but the engine's have {length}: raise max_length (of the engine"
            " and of the model), or shorten either."
        )
    if request.images is not None and request.images.digests:
        _require_seen(request.images, config)
        if request.images.over(len(prompt))[-1] != TEXT:
            raise ValueError(
                "A prompt ends with an image: put at least one token of text after it, since a"
                " completion follows the last token of a text."
            )
    if np.min(prompt) < 0 or np.max(prompt) > known:
        raise ValueError(
            f"A prompt has the token ids {np.min(prompt)} to {np.max(prompt)}, but the model knows"
            f" 0 to {known}: is it another model's tokenizer?"
        )
    if any(stop > known for stop in sampling.stop_ids):
        raise ValueError(
            f"The stop id {max(sampling.stop_ids)} could never be sampled: the model has ids 0 to"
            f" {known}."
        )
    if sampling.stop_strings and not reads_text:
        raise ValueError(
            f"Stop strings {sampling.stop_strings} are searched in text: make the engine with"
            " decode, a function from token ids to text."
        )


def _require_seen(images: SequenceImages, config: ModelConfig) -> None:
    vision, side = config.vision, images.tiles.shape[1:]
    if vision is None:
        raise ValueError(
            "A prompt has images, but the model has no vision: use a checkpoint with a vision tower"
            " (Gemma 3, SmolVLM), or leave the images out."
        )
    if side != (vision.image_size, vision.image_size, 3):
        raise ValueError(
            f"A prompt's tiles have {'x'.join(map(str, side))} values, but the model reads"
            f" {vision.image_size}x{vision.image_size}x3: cut images as its processor does."
        )
    shown = int((images.at >= 0).sum())
    if shown != len(images.digests) * vision.tile_tokens:
        raise ValueError(
            f"A prompt's {len(images.digests)} tiles stand at {shown} tokens, but each takes"
            f" {vision.tile_tokens} of this model's."
        )


def draw_key(seed: tuple[int, ...], index: int) -> UInt32[np.ndarray, " 2"]:
    """Makes the random key of a completion from its request's seed and its index."""
    return np.random.SeedSequence([*seed, index]).generate_state(2, np.uint32)


def draw_keys(seeds: Sequence[tuple[int, ...]]) -> UInt32[np.ndarray, "N 2"]:
    """Makes the keys of many completions like `draw_key`, in a hundredth of the time.

    Args:
      seeds: for each completion, its request's seed followed by its index.
    """
    lengths = {*map(len, seeds)}
    if len(lengths) != 1 or any(not 0 <= word < 1 << 32 for seed in seeds for word in seed):
        keys = [draw_key(seed[:-1], seed[-1]) for seed in seeds]
        return np.array(keys, np.uint32).reshape(-1, 2)
    return _seed_states(np.array(seeds, np.uint32).T)


def _seed_states(words: UInt32[np.ndarray, "W N"]) -> UInt32[np.ndarray, "N 2"]:
    """Computes `SeedSequence(words).generate_state(2)` for many seeds at once.

    The hash is that of NumPy's `SeedSequence`, which NumPy has promised to keep; it follows
    O'Neill (2015), https://www.pcg-random.org/posts/developing-a-seed_seq-alternative.html.
    """
    factor = 0x43B0D7E5

    def hashed(value: UInt32[np.ndarray, " N"]) -> UInt32[np.ndarray, " N"]:
        nonlocal factor
        value = value ^ np.uint32(factor)
        factor = factor * 0x931E8875 & 0xFFFFFFFF
        value = value * np.uint32(factor)
        return value ^ (value >> np.uint32(16))

    def mixed(
        one: UInt32[np.ndarray, " N"], other: UInt32[np.ndarray, " N"]
    ) -> UInt32[np.ndarray, " N"]:
        both: Any = one * np.uint32(0xCA01F9DD) - other * np.uint32(0x4973F715)
        return both ^ (both >> np.uint32(16))

    nothing = np.zeros(words.shape[1], np.uint32)
    pool = [hashed(words[i] if i < len(words) else nothing) for i in range(4)]
    for source in range(4):
        for target in range(4):
            if source != target:
                pool[target] = mixed(pool[target], hashed(pool[source]))
    for word in words[4:]:
        pool = [mixed(one, hashed(word)) for one in pool]
    states, factor = [], 0x8B51F9DD
    for one in pool[:2]:
        state = one ^ np.uint32(factor)
        factor = factor * 0x58F38DED & 0xFFFFFFFF
        state = state * np.uint32(factor)
        states.append(state ^ (state >> np.uint32(16)))
    return np.stack(states, axis=1)
