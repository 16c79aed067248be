"""The layout of trajectories in the rows of a batch, and its inverse.

Letters in shapes: B rows, T positions, N trajectories, S positions of a trajectory.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int, UInt32

from rl_sync.sampling_masks import padded
from rl_sync.sequence_images import TEXT
from rl_sync.token_records import unrecorded_in
from rl_sync.types import Packing, as_input

PADDING: dict[str, int | float] = {
    "tokens": 0,
    "completion_mask": False,
    "behavior_logprobs": 0.0,
    "policy_versions": -1,
}
IMAGE_AT = "image_at"
_MORE_PADDING: dict[str, int | float] = {
    "turn_rewards": 0.0,
    "segments": -1,
    "positions": 0,
    IMAGE_AT: TEXT,
    "sampler_logprobs": 0.0,
    "sampler_ids": 0,
    "teachers": 0,
    "served_logprobs": 0.0,
    "served_ids": 0,
}
Source = Int[np.ndarray, "B T"] | None
"""The token at each position of a batch: its index in the flattened trajectories, -1 for padding.
None if row i is trajectory i."""


def taken_back(
    values: Float[np.ndarray, "B T"], source: Source, shape: tuple[int, int]
) -> Float[np.ndarray, "N S"]:
    """Inverts a layout: maps values of a batch's rows to the tokens of trajectories.

    Args:
      values: one for each position of the batch.
      source: layout of the batch; see `Placed`.
      shape: (N, S) of the groups that were laid out.

    Returns:
      The value of each token of each trajectory; NaN for tokens that are in no row.
    """
    found = np.full(shape, np.nan, values.dtype)
    if source is None:
        found[:, : values.shape[1]] = values
    else:
        found.reshape(-1)[source[source >= 0]] = values[source >= 0]
    return found


def first_fit_decreasing(
    lengths: Int[np.ndarray, " trajectories"], row_tokens: int
) -> tuple[Int[np.ndarray, " trajectories"], Int[np.ndarray, " trajectories"]]:
    """Places each trajectory, longest first, into the first row with room for it.

    The number of rows is at most 11/9 of the optimum, plus one (Johnson 1973). Trajectories of
    equal length keep their order.

    Returns:
      (row, start): each trajectory's row, and its first position there.
    """
    row, start = np.zeros_like(lengths), np.zeros_like(lengths)
    free = np.full(len(lengths), row_tokens)
    for i in np.argsort(-lengths, kind="stable"):
        row[i] = np.argmax(free >= lengths[i])
        start[i] = row_tokens - free[row[i]]
        free[row[i]] -= lengths[i]
    return row, start


def gather(columns: dict[str, np.ndarray], source: Int[np.ndarray, "B T"]) -> dict[str, np.ndarray]:
    """Gathers the columns' flattened tokens at `source`, with padding where `source` is -1."""
    gathered = {}
    for name, values in columns.items():
        gathered[name] = found = values.reshape(-1, *values.shape[2:])[source]
        found[source < 0] = padding_of(name, values.dtype)
    return gathered


def padding_of(name: str, dtype: np.dtype) -> int | float:
    """Returns the value of a column at padding."""
    if name == "routes":
        return unrecorded_in(dtype)
    return (PADDING | _MORE_PADDING)[name]


def masks_in_rows(
    masks: UInt32[np.ndarray, "N E 3"],
    source: Source,
    stride: int,
    shape: tuple[int, int],
) -> UInt32[np.ndarray, "B E 3"]:
    """Lays out sampling masks (`rl_sync.sampling_masks`); entries of tokens in no row are dropped.

    Args:
      masks: sampling masks of the trajectories.
      source: layout of the batch; see `Placed`.
      stride: S, positions of a trajectory before the layout.
      shape: (B, T) of the rows.
    """
    B, T = shape
    trajectory, at = np.nonzero(masks[..., 0] < stride)
    entries = masks[trajectory, at]
    place = np.full(len(masks) * stride, -1)
    if source is None:
        place.reshape(-1, stride)[:, :T] = np.arange(B * T).reshape(B, T)
    else:
        place[source[source >= 0]] = np.nonzero(source.reshape(-1) >= 0)[0]
    here = place[trajectory * stride + entries[:, 0]]
    entries, here = entries[here >= 0], here[here >= 0]
    row, entries[:, 0] = np.divmod(here, T)
    order = np.argsort(row, kind="stable")
    return padded(np.split(entries[order], np.cumsum(np.bincount(row, minlength=B))[:-1]))


def packing_of(
    source: Int[np.ndarray, "B T"], stride: int, segments: Int[np.ndarray, "N S"] | None
) -> Packing:
    """Describes rows that are gathered at `source` from rows of one trajectory each."""
    found = Packing(
        as_input(np.where(source >= 0, source % stride, 0)),
        as_input(np.where(source >= 0, source // stride, -1)),
    )
    of_rows = unpacked(segments)
    if of_rows is None:
        return found
    columns = {"positions": of_rows.positions, "segments": of_rows.segments}
    parts = gather({name: np.asarray(column) for name, column in columns.items()}, source)
    return found._replace(
        positions=as_input(parts["positions"]), segments=as_input(parts["segments"])
    )


def unpacked(segments: Int[np.ndarray, "N S"] | None) -> Packing | None:
    """Describes rows of one trajectory each that have segments; returns None without segments."""
    if segments is None:
        return None
    rows, width = segments.shape
    at = np.broadcast_to(np.arange(width), segments.shape)
    begins = np.diff(segments, axis=1, prepend=-1) != 0
    is_there = segments >= 0
    row = np.arange(rows)[:, None]
    start = np.maximum.accumulate(np.where(begins, at, 0), axis=1)
    return Packing(
        as_input(np.where(is_there, at - start, 0)),
        as_input(np.where(is_there, row, -1)),
        segments=as_input(np.where(is_there, row * width + segments, -1)),
    )
