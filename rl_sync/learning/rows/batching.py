"""Batching: the trajectories of a trainer step, laid out in the rows of its batch.

Each update of a step trains on an equal share of the groups, in rows of its own. The rows depend
only on the groups, so equal groups make equal batches.

Letters in shapes: B rows, T positions, S positions before the layout.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Int, UInt8, UInt32

from rl_sync.learning.learning_settings import SHARED_ROW_TOKENS
from rl_sync.learning.rows.row_images import Tiles, gallery, in_parts
from rl_sync.learning.rows.row_layout import (
    IMAGE_AT,
    PADDING,
    Source,
    first_fit_decreasing,
    gather,
    masks_in_rows,
    packing_of,
    padding_of,
    unpacked,
)
from rl_sync.learning.rows.shared_prompts import Places, branches, learned_lengths
from rl_sync.models.vision.vision_config import Vision
from rl_sync.sampling_masks import no_entries, padded
from rl_sync.sequence_images import TEXT
from rl_sync.token_records import NO_RECORDS, TokenRecords
from rl_sync.types import Demonstrations, Group, Packing, RowImages, Rows, TrainBatch, as_input

_BUCKETS = (1 / 8, 3 / 16, 1 / 4, 3 / 8, 1 / 2, 3 / 4, 1)
_WIDTHS = (1 / 2, 3 / 4, 1)
_TILE_TOKENS = 8
_MASK_STEP = 8


class Placed(NamedTuple):
    """A batch, and the places of its tokens."""

    batch: TrainBatch
    source: Source


class ExpectedImages(NamedTuple):
    """Images of a future batch.

    Attributes:
      trajectories: number of trajectories of a prompt.
      tiles: number of tiles that the images of each prompt are cut into.
      features: dtype of the tiles' features, if groups have these in place of pixels.
    """

    trajectories: int
    tiles: int
    features: str | None = None


@dataclasses.dataclass(frozen=True)
class Batching:
    """Lays out batches in few shapes, since the trainer's step compiles once for each shape.

    Attributes:
      kind: `padded` makes rows of `row_tokens`, one trajectory each; `bucketed` makes them as long
        as the longest trajectory, rounded up to a bucket; `packed` puts trajectories one after the
        other into rows of `row_tokens`, as many as they need, rounded up to a bucket; `shared` does
        so in rows of at most `shared_row_tokens`, where completions share one copy of their prompt.
      trajectories: number of trajectories of a step.
      row_tokens: T, maximum number of tokens of a trajectory.
      updates: number of updates of a step.
      microbatch_rows: a divisor of the rows of an update, or more than `shared` rows that hold an
        update; 0 for any number of rows.
      row_shards: number of devices that share the rows of an update.
      with_baselines: whether groups have baselines.
      of_episodes: whether groups have rewards of turns.
      with_segments: whether trajectories may have several segments; not with `shared`.
      with_truncated: whether batches say which trajectories a limit cut, as those of episodes do.
      parts: number of parts of the reward by which groups have scores; 0 for none.
      shared_row_tokens: at least `row_tokens`; 0 for `default_row_tokens`.
      mask_words: expected maximum number of entries of a token's sampling mask; 0 for batches
        without masks.
      records: shapes of what explorers recorded of tokens, which batches then have.
      vision: vision of the policy; None for batches of text alone.
      part_rows: number of rows that are computed at once, with images of their own; 0 for all rows
        of an update.
      tile_shards: number of devices that share the images of a part.
      shown: images of the batches whose shapes are known ahead; None for text alone.
      teachers: index of the teacher of each of the task's problems; none if one teaches all.
      sets: number of the set of each of the task's problems, in batches with the role of each
        trajectory; none in batches without roles.
      served_best: number of best tokens that a served teacher names at each token; 0 if it gives
        the log-probability of the token itself, None without such a teacher.
      aligned: `packed` trajectories begin at multiples of it.
    """

    kind: str
    trajectories: int
    row_tokens: int
    updates: int
    microbatch_rows: int
    row_shards: int = 1
    with_baselines: bool = False
    of_episodes: bool = False
    with_segments: bool = False
    with_truncated: bool = False
    parts: int = 0
    shared_row_tokens: int = 0
    mask_words: int = 0
    records: TokenRecords = NO_RECORDS
    vision: Vision | None = None
    part_rows: int = 0
    tile_shards: int = 1
    shown: ExpectedImages | None = None
    teachers: tuple[int, ...] = ()
    sets: tuple[int, ...] = ()
    served_best: int | None = None
    aligned: int = 1

    @property
    def _most_rows(self) -> int:
        """Number of rows of an update with one trajectory per row."""
        return self.trajectories // self.updates

    def largest(self) -> TrainBatch:
        """Returns shapes and dtypes of the batch of the longest trajectories.

        Its sampling masks have the usual size.
        """
        return next(self._like(np.full(self.trajectories, self.row_tokens)))

    def shapes(self) -> Iterator[TrainBatch]:
        """Yields the shapes and dtypes of all possible batches, largest first.

        Yields nothing for `shared`, which has too many shapes; see `shape_count`.
        """
        for lengths in self._every_lengths():
            yield from self._like(lengths)

    def demonstration_shapes(self) -> Iterator[Demonstrations]:
        """Yields the shapes and dtypes of all possible batches of demonstrations, largest first."""
        for lengths in self._every_lengths():
            mask, images = self._learned(lengths), None
            if self.shown is not None:
                blank, at, _ = self._expected_images(self.shown)
                images = RowImages(as_input(blank), as_input(at))
            tokens = np.zeros(mask.shape, np.int32)
            drawn = Demonstrations(as_input(tokens), as_input(mask), images=images)
            laid_out = jax.eval_shape(functools.partial(self.demonstrations, drawn))
            yield laid_out._replace(images=self._expected(laid_out.images))

    @property
    def shape_count(self) -> int:
        """Maximum number of shapes of batches, without demonstrations."""
        sizes = max(1, len(self._mask_sizes))
        if self.kind != "shared":
            return sizes * len(list(self._every_lengths()))
        rows = {self._shared_rows(used) for used in range(1, self._most_rows + 1)}
        widths = sum(len(learned_lengths(width)) for width in self._shared_widths)
        return sizes * len(rows) * widths

    def _every_lengths(self) -> Iterator[Int[np.ndarray, " trajectories"]]:
        """Yields, for each shape, lengths of trajectories that lead to it."""
        longest = np.full(self.trajectories, self.row_tokens)
        if self.kind == "padded":
            yield longest
        elif self.kind == "bucketed":
            for width in _buckets(self.row_tokens, _TILE_TOKENS):
                yield np.minimum(longest, width)
        elif self.kind == "packed":
            number = np.arange(self.trajectories) % self._most_rows
            for rows in _buckets(*self._packed_rows):
                yield np.where(number < rows, longest, 0)

    def _learned(
        self, lengths: Int[np.ndarray, " trajectories"]
    ) -> Bool[np.ndarray, "trajectories T"]:
        at = np.arange(self.row_tokens)
        return (at > 0) & (at < lengths[:, None])

    def _like(self, lengths: Int[np.ndarray, " trajectories"]) -> Iterator[TrainBatch]:
        """Yields shapes and dtypes of batches of trajectories of these lengths."""
        shape = (self.trajectories, self.row_tokens)
        images = dict[str, Any]()
        if self.shown is not None:
            names = ("tiles", "image_at", "tile_digests")
            images = dict(zip(names, self._expected_images(self.shown), strict=True))
        of_these = Group(
            lease_id=0,
            ordinal=0,
            prompt_id=0,
            explorer=0,
            tokens=np.zeros(shape, np.int32),
            completion_mask=self._learned(lengths),
            behavior_logprobs=np.zeros(shape, np.float32),
            policy_versions=np.zeros(shape, np.int32),
            rewards=np.zeros(self.trajectories, np.float32),
            baselines=np.zeros(self.trajectories, np.float32) if self.with_baselines else None,
            turn_rewards=np.zeros(shape, np.float32) if self.of_episodes else None,
            segments=np.zeros(shape, np.int32) if self.with_segments else None,
            truncated=np.zeros(self.trajectories, bool),
            parts=np.zeros((self.trajectories, self.parts), np.float32) if self.parts else None,
            **self.records.blank(*shape),
            **self._blank_answers(shape),
            **images,
        )
        batch = jax.eval_shape(lambda: self.batch([of_these]))
        batch = batch._replace(rows=batch.rows._replace(images=self._expected(batch.rows.images)))
        rows, row_tokens = batch.rows.tokens.shape
        for size in self._mask_sizes:
            masks = jax.ShapeDtypeStruct((rows, row_tokens * size, 3), np.uint32)
            yield batch._replace(rows=batch.rows._replace(sampling_masks=as_input(masks)))
        if not self._mask_sizes:
            yield batch

    @property
    def _answers(self) -> list[str]:
        """Names of the columns of a served teacher's answers."""
        if self.served_best is None:
            return []
        return ["served_logprobs", "served_ids"] if self.served_best else ["served_logprobs"]

    def _blank_answers(self, shape: tuple[int, int]) -> dict[str, Any]:
        dtypes = {"served_logprobs": np.float32, "served_ids": np.int32}
        width = max(1, self.served_best or 0)
        return {name: np.zeros((*shape, width), dtypes[name]) for name in self._answers}

    def _expected_images(
        self, shown: ExpectedImages
    ) -> tuple[UInt8[np.ndarray, "N 1"], Int[np.ndarray, "G T"], UInt8[np.ndarray, "N 16"]]:
        """Returns tiles of one byte, their places in all trajectories, and their digests."""
        assert self.vision is not None
        prompts = -(-self.trajectories // shown.trajectories)
        count, each = prompts * shown.tiles, shown.tiles * self.vision.tile_tokens
        positions = np.arange(self.row_tokens)
        prompt = np.arange(self.trajectories)[:, None] // shown.trajectories
        at = np.where(positions < each, prompt * each + positions, TEXT).astype(np.int32)
        digests = np.arange(2 * count, dtype=np.uint64).view(np.uint8).reshape(count, 16)
        return np.zeros((count, 1), np.uint8), at, digests

    def _expected(self, images: RowImages | None) -> RowImages | None:
        """Gives tiles of one byte the shape and the dtype of expected ones."""
        if images is None or self.shown is None:
            return images
        assert self.vision is not None
        vision, dtype = self.vision, self.shown.features
        of_tile: tuple[int, ...] = (vision.image_size, vision.image_size, 3)
        if dtype is not None:
            of_tile = (vision.tile_tokens, vision.feature_width)
        shape = (images.tiles.shape[0], *of_tile)
        tiles = jax.ShapeDtypeStruct(shape, dtype or np.uint8)
        return images._replace(tiles=as_input(tiles))

    @property
    def _mask_sizes(self) -> list[int]:
        """Possible numbers of sampling-mask entries per token of a row, the usual one first.

        The mask of a row has room for one of these numbers of entries per token, or for more if
        tokens were sampled from larger sets than expected.
        """
        cap = self.mask_words
        sizes = {min(cap, size) for size in _mask_sizes(cap)} if cap else ()
        return sorted(sizes, key=lambda size: (size != min(cap, _MASK_STEP), size))

    def batch(self, groups: list[Group]) -> TrainBatch:
        """Lays out the groups of a step, one after the other, in host memory."""
        return self.placed(groups).batch

    def placed(self, groups: list[Group]) -> Placed:
        """Lays out the groups of a step as `batch` does, and returns the places of their tokens."""
        named = [*PADDING]
        named += ["turn_rewards"] if self.of_episodes else []
        named += ["segments"] if self.with_segments else []
        named += [*self.records.columns, *self._answers]
        columns = self._padded(groups, named)
        if self.teachers:
            of_groups = [self.teachers[group.prompt_id] for group in groups]
            of_rows = np.repeat(
                np.array(of_groups, np.int32), [len(group.tokens) for group in groups]
            )
            columns["teachers"] = np.repeat(of_rows[:, None], self.row_tokens, axis=1)
        tiles = None
        if self.vision is not None:
            shown = gallery(self.vision, groups, self.row_tokens)
            tiles, columns[IMAGE_AT] = shown.tiles, shown.at
        columns, packing, source = self._in_rows(columns)
        fields: dict[str, Any] = {"packing": packing, "images": self._images(tiles, columns)}
        fields |= columns
        if self.mask_words:
            fields["sampling_masks"] = self._masks(groups, columns["tokens"].shape, source)
        names = ["rewards"]
        names += ["baselines"] if self.with_baselines else []
        names += ["truncated"] if self.of_episodes or self.with_truncated else []
        names += ["parts"] if self.parts else []
        of_trajectories: dict[str, Any] = _stack(groups, names)
        if self.sets:
            of_trajectories["roles"] = self._roles(groups)
        return Placed(TrainBatch(Rows(**fields), **of_trajectories), source)

    def _padded(self, groups: list[Group], names: Iterable[str]) -> dict[str, np.ndarray]:
        """Pads the rows of all groups, whose lengths differ between groups, to `row_tokens`."""
        columns = {}
        for name in names:
            parts = [getattr(group, name) for group in groups]
            shape = sum(map(len, parts)), self.row_tokens, *parts[0].shape[2:]
            columns[name] = rows = np.full(shape, padding_of(name, parts[0].dtype), parts[0].dtype)
            start = 0
            for part in parts:
                rows[start : start + len(part), : part.shape[1]] = part
                start += len(part)
        return columns

    def _images(self, tiles: Tiles | None, columns: dict[str, np.ndarray]) -> RowImages | None:
        """Lays out tiles for rows, whose column of features is taken out."""
        if self.vision is None or tiles is None:
            return None
        at = columns.pop(IMAGE_AT)
        parts = self.updates
        if self.part_rows:
            parts = max(self.updates, len(at) // self.part_rows)
        return in_parts(self.vision, tiles, at, parts, self.tile_shards)

    def _roles(self, groups: list[Group]) -> Int[np.ndarray, " trajectories"]:
        """Numbers the roles of trajectories, each a seat in a set's games."""
        found = [
            (self.sets[group.prompt_id], seat)
            for group in groups
            for seat in ([0] * len(group.tokens) if group.seats is None else group.seats)
        ]
        _, roles = np.unique(found, axis=0, return_inverse=True)
        return roles.reshape(-1).astype(np.int32)

    def _masks(
        self, groups: list[Group], shape: tuple[int, int], source: Source
    ) -> UInt32[np.ndarray, "B E 3"]:
        """Lays out the sampling masks of groups in one of a few sizes."""
        masks = padded([entries for group in groups for entries in _entries(group)])
        found = masks_in_rows(masks, source, self.row_tokens, shape)
        needed = math.ceil(found.shape[1] / shape[1])
        sizes = sorted({*self._mask_sizes, *_mask_sizes(needed)})
        size = next(size for size in sizes if size >= needed)
        return padded(list(found), shape[1] * size)

    def demonstrations(self, drawn: Demonstrations) -> Demonstrations:
        """Lays out demonstrations. They come one per row, as many as a batch has trajectories."""
        given = {"tokens": np.asarray(drawn.tokens), "completion_mask": np.asarray(drawn.mask)}
        tiles = None
        if drawn.images is not None:
            tiles, given[IMAGE_AT] = np.asarray(drawn.images.tiles), np.asarray(drawn.images.at)
        columns, packing, _ = self._in_rows(given)
        images = self._images(tiles, columns)
        tokens, mask = as_input(columns["tokens"]), as_input(columns["completion_mask"])
        return Demonstrations(tokens, mask, packing, images)

    def _in_rows(
        self, columns: dict[str, np.ndarray]
    ) -> tuple[dict[str, np.ndarray], Packing | None, Source]:
        """Lays out columns that have one trajectory per row."""
        segments = columns.pop("segments", None)
        if self.kind == "padded":
            return columns, unpacked(segments), None
        lengths = _lengths(columns["completion_mask"])
        if self.kind == "bucketed":
            width = _bucket(int(lengths.max()), self.row_tokens, _TILE_TOKENS)
            cut = {name: values[:, :width] for name, values in columns.items()}
            return cut, unpacked(None if segments is None else segments[:, :width]), None
        if self.kind == "shared":
            return self._share(columns)
        stride = columns["tokens"].shape[1]
        source = self._pack(lengths, stride)
        return gather(columns, source), packing_of(source, stride, segments), source

    def _pack(
        self, lengths: Int[np.ndarray, " trajectories"], stride: int
    ) -> Int[np.ndarray, "B T"]:
        """Chooses a token for each position: its index in the flattened rows, -1 for padding.

        The share of each update is packed separately. All get as many rows as the largest needs.
        """
        shares = lengths.reshape(self.updates, -1)
        # The last of a row needs no more room than it has tokens.
        taken = np.minimum(-(-shares // self.aligned) * self.aligned, self.row_tokens)
        bins = [first_fit_decreasing(share, self.row_tokens) for share in taken]
        used = max(int(row.max()) + 1 for row, _ in bins)
        rows = _bucket(used, *self._packed_rows)
        source = np.full((self.updates, rows, self.row_tokens), -1, np.int32)
        for update, (row, start) in enumerate(bins):
            for i, length in enumerate(shares[update]):
                first = (update * self._most_rows + i) * stride
                there = slice(start[i], start[i] + length)
                source[update, row[i], there] = np.arange(first, first + length)
        return source.reshape(-1, self.row_tokens)

    @property
    def _packed_rows(self) -> tuple[int, int]:
        """Maximum number of rows of a packed update, and a divisor of all numbers of rows."""
        step = self.microbatch_rows or self.row_shards
        return math.ceil(self._most_rows / step) * step, step

    @property
    def _shared_widths(self) -> list[int]:
        """The widths of rows in which prompts are shared."""
        most = self.shared_row_tokens or default_row_tokens(self.row_tokens)
        widths = {_tiled(share * most, most) for share in _WIDTHS}
        return [width for width in sorted(widths) if width >= self.row_tokens]

    def _shared_rows(self, used: int) -> int:
        """Rounds the rows of an update up to whole microbatches.

        If one microbatch is more than enough, the devices share as few rows as they can.
        """
        most = self.microbatch_rows
        if used <= most:
            return min(most, _fine_bucket(used, self.row_shards))
        return _fine_bucket(used, most or self.row_shards)

    def _share(
        self, columns: dict[str, np.ndarray]
    ) -> tuple[dict[str, np.ndarray], Packing, Source]:
        """Lays out columns in rows in which completions share one copy of their prompt.

        Of several row widths it takes the one with the fewest positions in total.
        """
        filled = (self._fill(columns, width) for width in self._shared_widths)
        places = min(filled, key=lambda places: places.source.size)
        laid_out = gather(columns, places.source)
        return laid_out, places.packing(laid_out["completion_mask"]), places.source

    def _fill(self, columns: dict[str, np.ndarray], width: int) -> Places:
        """Chooses a token for each position of rows of some width, update by update.

        All updates get as many rows as the largest needs.
        """
        tokens, mask = columns["tokens"], columns["completion_mask"]
        shares = np.arange(len(mask)).reshape(self.updates, -1)
        # Explorers may have prefilled a prompt by weights of several versions, with other routes.
        seen = [columns[name] for name in (IMAGE_AT, "routes") if name in columns]
        families = [branches(tokens, mask, share.tolist(), width, seen) for share in shares]
        bins = [
            first_fit_decreasing(np.array([one.tokens for one in of_update], np.int32), width)
            for of_update in families
        ]
        used = max(int(row.max(initial=0)) + 1 for row, _ in bins)
        rows = self._shared_rows(used)
        places = Places(self.updates * rows, width, stride=mask.shape[1])
        for update, (row, start) in enumerate(bins):
            for i, family in enumerate(families[update]):
                places.put(family, update * rows + int(row[i]), int(start[i]))
        return places


def default_row_tokens(row_tokens: int) -> int:
    """Returns the default row width for shared prompts, given the maximum length of a trajectory.

    The cost of attention for a token grows with the length of its row, whatever it attends to. So a
    row holds two trajectories, or a few short groups.
    """
    return max(SHARED_ROW_TOKENS, 2 * row_tokens)


def lay_out(
    drawn: Demonstrations, kind: str, vision: Vision | None = None, tile_shards: int = 1
) -> Demonstrations:
    """Lays out the demonstrations of one update, as a `Batching` of that kind lays out batches.

    Args:
      vision: vision of the policy.
      tile_shards: see `Batching`.
    """
    count, row_tokens = drawn.tokens.shape
    batching = demonstration_batching(kind, count, row_tokens, vision, tile_shards=tile_shards)
    return batching.demonstrations(drawn)


def demonstration_batching(
    kind: str,
    count: int,
    row_tokens: int,
    vision: Vision | None = None,
    tiles: int = 0,
    tile_shards: int = 1,
) -> Batching:
    """Returns the layout of the demonstrations of one update.

    Args:
      vision: vision of the policy.
      tiles: number of tiles of each demonstration's images, in the shapes that are known ahead.
      tile_shards: see `Batching`.
    """
    return Batching(
        kind,
        count,
        row_tokens,
        updates=1,
        microbatch_rows=0,
        vision=vision,
        tile_shards=tile_shards,
        shown=ExpectedImages(1, tiles) if vision is not None and tiles else None,
    )


def _lengths(mask: Bool[np.ndarray, "B S"]) -> Int[np.ndarray, " B"]:
    """Counts the tokens of each row up to the end of its completion; no loss needs later ones."""
    behind = np.argmax(mask[:, ::-1], axis=1)
    return np.where(mask.any(axis=1), mask.shape[1] - behind, 0)


def _stack(groups: list[Group], names: Iterable[str]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([getattr(group, name) for group in groups]) for name in names}


def _mask_sizes(most: int) -> list[int]:
    """Returns the powers of `_MASK_STEP` up to the first that is at least `most`."""
    sizes = [1]
    while sizes[-1] < most:
        sizes.append(sizes[-1] * _MASK_STEP)
    return sizes


def _entries(group: Group) -> Iterable[UInt32[np.ndarray, "E 3"]]:
    """Returns the sampling mask of each trajectory."""
    if group.sampling_masks is None:
        return [no_entries()] * len(group.tokens)
    return group.sampling_masks


def _fine_bucket(size: int, step: int) -> int:
    """Finds the smallest of 1, 2, 3, 4, 6, 8, 12 … times `step` that holds `size`."""
    steps = math.ceil(size / step)
    power = 1 << (steps - 1).bit_length()
    return step * (power * 3 // 4 if power >= 4 and steps <= power * 3 // 4 else power)


def _buckets(full: int, step: int) -> list[int]:
    """Returns the buckets of sizes, largest first: shares of `full`, in multiples of `step`."""
    return sorted({_tiled(share * full, full, step) for share in _BUCKETS}, reverse=True)


def _bucket(size: int, full: int, step: int) -> int:
    """Finds the smallest bucket that holds `size`."""
    return min(bucket for bucket in _buckets(full, step) if bucket >= size)


def _tiled(size: float, most: int, step: int = _TILE_TOKENS) -> int:
    """Rounds a size up to a multiple of `step`, limited to `most`."""
    return min(most, math.ceil(size / step) * step)
