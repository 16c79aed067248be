"""Rows of a group: finished completions or episodes as columns with one value per token."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float, Int

from rl_sync.rollout.episodes.episode_records import Played
from rl_sync.rollout.request import FinishedCompletion
from rl_sync.sampling_masks import Entries, no_entries, padded, shifted
from rl_sync.sequence_images import PooledImages, SequenceImages, after, pooled
from rl_sync.token_records import NO_RECORDS, ROUTES, SAMPLER, SamplerRecord, TokenRecords

TOKEN_COLUMNS = (
    *("tokens", "completion_mask", "behavior_logprobs", "policy_versions"),
    *("turn_rewards", "segments", "sampling_masks", "routes", "image_at"),
    *("sampler_logprobs", "sampler_ids"),
)
"""Fields of `Group` that describe the tokens of each trajectory."""
MASKS = "sampling_masks"


def columns_of(
    finished: Sequence[FinishedCompletion | Played],
    prompt: Int[np.ndarray, " P"],
    records: TokenRecords = NO_RECORDS,
    images: SequenceImages | None = None,
    features: Callable[[PooledImages], Float[np.ndarray, "N M W"]] | None = None,
) -> dict[str, np.ndarray]:
    """Makes the columns of a group, by their names in `Group`; all rows are as long as the longest.

    Args:
      finished: completions or episodes, in the order of the rows.
      prompt: prompt of the completions; episodes have their own.
      records: shapes of what was recorded.
      images: images of the prompt; episodes have their own.
      features: computes features of tiles, which then travel in place of pixels.
    """
    tokens = max(_tokens(one, prompt) for one in finished)
    shape = len(finished), max(1, tokens)
    columns: dict[str, np.ndarray] = {
        "tokens": np.zeros(shape, np.int32),
        "completion_mask": np.zeros(shape, bool),
        "behavior_logprobs": np.zeros(shape, np.float32),
        "policy_versions": np.full(shape, -1, np.int32),
    }
    columns |= records.blank(*shape)
    if isinstance(finished[0], Played):
        columns["turn_rewards"] = np.zeros(shape, np.float32)
        columns["segments"] = np.full(shape, -1, np.int32)
    else:
        columns["tokens"][:, : len(prompt)] = prompt
    masks = []
    for number, one in enumerate(finished):
        row = {name: values[number] for name, values in columns.items()}
        if isinstance(one, Played):
            masks.append(_write_episode(row, one))
        else:
            here = slice(len(prompt), len(prompt) + len(one.tokens))
            row["tokens"][here] = one.tokens
            row["completion_mask"][here] = True
            row["behavior_logprobs"][here] = one.logprobs
            row["policy_versions"][here] = one.versions
            masks.append(shifted(one.masks, len(prompt)) if len(one.masks) else one.masks)
            if records.routes is not None and one.routes is not None:
                one.routes.write(row[ROUTES])
            _write_sampler(row, len(prompt), one.sampler)
    shown = _images_in(finished, images, shape[1])
    if shown is not None:
        columns |= _of_images(shown)
        if features is not None:
            columns["tiles"] = features(shown)
    return columns | ({MASKS: padded(masks)} if any(map(len, masks)) else {})


def _write_sampler(row: dict[str, np.ndarray], first: int, record: SamplerRecord | None) -> None:
    """Writes the record of the tokens from a position on into the columns that a row has."""
    if record is not None:
        for name, values in zip(SAMPLER, record, strict=True):
            if name in row:
                row[name][first : first + len(values)] = values


def _images_in(
    finished: Sequence[FinishedCompletion | Played], prompt: SequenceImages | None, positions: int
) -> PooledImages | None:
    """Collects the images of a group's rows, with each tile once; None for text alone.

    Args:
      prompt: images of the completions' prompt, which all rows show.
      positions: number of tokens of a row.
    """
    rows = [_of_episode(one) if isinstance(one, Played) else prompt for one in finished]
    seen = next((one for one in rows if one is not None and one.digests), None)
    return None if seen is None else pooled(rows, seen.tile_tokens, positions)


def _of_episode(played: Played) -> SequenceImages | None:
    """Returns the images of an episode, whose segments stand one after the other."""
    found, tokens = None, 0
    for segment in played.trajectory.segments:
        found = after(found, tokens, segment.images)
        tokens += len(segment)
    return found


def _of_images(images: PooledImages) -> dict[str, np.ndarray]:
    """Returns the columns of a group's images."""
    digests = [
        np.frombuffer(hashlib.blake2b(digest.encode(), digest_size=16).digest(), np.uint8)
        for digest in images.digests
    ]
    return {
        "image_at": images.at,
        "tiles": images.tiles,
        "tile_digests": np.array(digests),
    }


def _tokens(finished: FinishedCompletion | Played, prompt: Int[np.ndarray, " P"]) -> int:
    """Counts the tokens of a row."""
    if isinstance(finished, Played):
        return sum(map(len, finished.trajectory.segments))
    return len(prompt) + len(finished.tokens)


def _write_episode(row: dict[str, np.ndarray], played: Played) -> Entries:
    """Writes an episode into a row; returns its sampling mask."""
    starts, masks = [], []
    at = 0
    for number, segment in enumerate(played.trajectory.segments):
        starts.append(at)
        here = slice(at, at + len(segment))
        row["tokens"][here] = segment.tokens
        row["completion_mask"][here] = segment.mask
        row["behavior_logprobs"][here] = segment.behavior_logprobs
        row["policy_versions"][here] = segment.policy_versions
        row["segments"][here] = number
        masks.append(shifted(segment.masks, at))
        if ROUTES in row:
            for recorded in segment.routes:
                recorded.write(row[ROUTES][here])
        for placed in segment.samplers:
            _write_sampler(row, at + placed.first, placed.record)
        at = here.stop
    for reward, reply in zip(played.turn_rewards, played.trajectory.replies, strict=True):
        row["turn_rewards"][starts[reply.segment] + reply.stop - 1] = reward
    return np.concatenate([no_entries(), *masks])
