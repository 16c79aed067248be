"""Rows of a group: a finished completion or episode, as columns of one value a token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from rl_sync.actors.episodes import Played
from rl_sync.rollout.request import Completion
from rl_sync.sampling_masks import no_entries, padded, shifted

TOKEN_COLUMNS = (
    *("tokens", "completion_mask", "behavior_logprobs", "policy_versions"),
    *("turn_rewards", "segments", "sampling_masks"),
)
"""Fields of `Group` that describe the tokens of each trajectory."""
MASKS = "sampling_masks"


def columns_of(
    finished: Completion | Played, prompt: Int[np.ndarray, " P"], row_tokens: int
) -> dict[str, np.ndarray]:
    """Makes the row of a completion or of an episode, by the names of `Group`.

    Args:
      prompt: of the completion; an episode has its own.
      row_tokens: T, the length of the row, padded.
    """
    if isinstance(finished, Played):
        return _of_episode(finished, row_tokens)
    columns = _blank(row_tokens)
    here = slice(len(prompt), len(prompt) + len(finished.tokens))
    columns["tokens"][: len(prompt)] = prompt
    columns["tokens"][here] = finished.tokens
    columns["completion_mask"][here] = True
    columns["behavior_logprobs"][here] = finished.logprobs
    columns["policy_versions"][here] = finished.versions
    columns[MASKS] = shifted(finished.masks, len(prompt))
    return columns


def _of_episode(played: Played, row_tokens: int) -> dict[str, np.ndarray]:
    columns = _blank(row_tokens)
    columns["turn_rewards"] = np.zeros(row_tokens, np.float32)
    columns["segments"] = np.full(row_tokens, -1, np.int32)
    starts, masks = [], []
    at = 0
    for number, segment in enumerate(played.trajectory.segments):
        starts.append(at)
        here = slice(at, at + len(segment))
        columns["tokens"][here] = segment.tokens
        columns["completion_mask"][here] = segment.mask
        columns["behavior_logprobs"][here] = segment.behavior_logprobs
        columns["policy_versions"][here] = segment.policy_versions
        columns["segments"][here] = number
        masks.append(shifted(segment.masks, at))
        at = here.stop
    columns[MASKS] = np.concatenate([no_entries(), *masks])
    for reward, reply in zip(played.turn_rewards, played.trajectory.replies, strict=True):
        columns["turn_rewards"][starts[reply.segment] + reply.stop - 1] = reward
    return columns


def stacked(rows: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Stacks the columns of rows; those of a group without sampling masks have none."""
    masks = [row[MASKS] for row in rows]
    columns = {name: np.stack([row[name] for row in rows]) for name in rows[0] if name != MASKS}
    return columns | ({MASKS: padded(masks)} if any(map(len, masks)) else {})


def _blank(row_tokens: int) -> dict[str, np.ndarray]:
    return {
        "tokens": np.zeros(row_tokens, np.int32),
        "completion_mask": np.zeros(row_tokens, bool),
        "behavior_logprobs": np.zeros(row_tokens, np.float32),
        "policy_versions": np.full(row_tokens, -1, np.int32),
    }
