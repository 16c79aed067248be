"""The record of an episode's tokens: segments of token ids to which tokens are only appended.

A sampled token stays as it is: it is never decoded and encoded again. If the conversation so far is
rewritten, a new segment begins, and the earlier ones stay in the record.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from rl_sync.sampling_masks import Entries, no_entries, shifted
from rl_sync.sequence_images import SequenceImages, after
from rl_sync.token_records import PlacedRecord, RecordedRoutes, SamplerRecord, moved

NOT_DRAWN = -1
"""The policy version of a token that the policy did not sample."""

Ids = Sequence[int] | Int[np.ndarray, " T"]


@dataclasses.dataclass(frozen=True, eq=False)
class Segment:
    """A sequence of tokens, as the policy saw it; T tokens. The arrays cannot be written to.

    Attributes:
      tokens: token ids.
      mask: true at the tokens that the policy sampled.
      behavior_logprobs: the log-probability of each drawn token under the distribution that it was
        sampled from, in nats; 0 elsewhere.
      policy_versions: the version of the weights that drew each token; -1 elsewhere.
      masks: sampling masks of the sampled tokens; see `rl_sync.sampling_masks`.
      routes: experts that the tokens went to, as each reply recorded them; positions count in the
        segment. The first record of a token is valid.
      samplers: distributions of the sampled tokens, as each reply recorded them.
      images: images of the tokens; None for text alone.
    """

    tokens: Int[np.ndarray, " T"]
    mask: Bool[np.ndarray, " T"]
    behavior_logprobs: Float[np.ndarray, " T"]
    policy_versions: Int[np.ndarray, " T"]
    masks: Entries = dataclasses.field(default_factory=no_entries)
    routes: tuple[RecordedRoutes, ...] = ()
    samplers: tuple[PlacedRecord, ...] = ()
    images: SequenceImages | None = None

    def __len__(self) -> int:
        return len(self.tokens)


class ReplySpan(NamedTuple):
    """The place of a reply's tokens: from `start` to before `stop` in a segment."""

    segment: int
    start: int
    stop: int


@dataclasses.dataclass(frozen=True, eq=False)
class Trajectory:
    """The tokens of an episode.

    Attributes:
      segments: the segments, in the order in which they were begun.
      replies: place of each reply, in the order in which the replies ended: `replies[i]` answers
        turn i.
    """

    segments: tuple[Segment, ...] = ()
    replies: tuple[ReplySpan, ...] = ()

    @property
    def context(self) -> Int[np.ndarray, " T"]:
        """The tokens of the last segment, which the policy continues.

        Raises:
          ValueError: there is no segment.
        """
        return self._last().tokens

    @property
    def sampled_tokens(self) -> int:
        """Number of tokens of the replies."""
        return sum(reply.stop - reply.start for reply in self.replies)

    def _last(self) -> Segment:
        if not self.segments:
            raise ValueError("A trajectory's first tokens begin a segment: use begin_segment.")
        return self.segments[-1]


def begin_segment(
    trajectory: Trajectory, ids: Ids, images: SequenceImages | None = None
) -> Trajectory:
    """Begins a segment with tokens that the policy did not sample.

    Args:
      trajectory: the tokens so far.
      ids: the whole context of the next reply.
      images: images of the ids.

    Raises:
      ValueError: there are no tokens, or one is not a token id.
    """
    segment = _given(ids, images)
    if not len(segment):
        raise ValueError(
            "A segment needs a token from which the policy goes on: begin it with one."
        )
    return dataclasses.replace(trajectory, segments=(*trajectory.segments, segment))


def append_reply(
    trajectory: Trajectory,
    tokens: Ids,
    logprobs: Sequence[float] | Float[np.ndarray, " T"],
    versions: Ids,
    masks: Entries | None = None,
    segment: int = -1,
    routes: RecordedRoutes | None = None,
    sampler: SamplerRecord | None = None,
) -> Trajectory:
    """Appends a sampled reply of T tokens to a segment.

    Args:
      trajectory: the tokens so far.
      tokens: the drawn ids, including the id that ended the reply.
      logprobs: their log-probabilities under the distribution that they were sampled from, in nats.
      versions: the versions of the weights that drew them.
      masks: their sampling masks; None for the whole vocabulary.
      segment: the number of the segment; the last one if left out.
      routes: recorded experts, by their tokens' positions in the segment; None without a record.
      sampler: distributions of the drawn ids; None without a record.

    Raises:
      ValueError: the lengths differ; a logprob is not a number of at most 0; a version is
        negative; a token is not a token id; or there is no segment.
    """
    ids = _token_ids(tokens)
    values = np.asarray(logprobs, np.float32)
    drawn_by = np.asarray(versions, np.int32)
    if not ids.shape == values.shape == drawn_by.shape:
        raise ValueError(
            "Each token of a reply needs a logprob and a version, not"
            f" {len(ids)} tokens, {values.size} logprobs and {drawn_by.size} versions."
        )
    if not (np.isfinite(values) & (values <= 0)).all():
        wrong = values[~(np.isfinite(values) & (values <= 0))][0]
        raise ValueError(f"A drawn token's logprob is a number of at most 0, not {wrong}.")
    if (drawn_by < 0).any():
        raise ValueError(f"A drawn token's version is at least 0, not {np.min(drawn_by)}.")
    trajectory._last()
    number = segment % len(trajectory.segments)
    before = trajectory.segments[number]
    masks = no_entries() if masks is None else masks
    recorded = () if routes is None else (routes,)
    samplers = () if sampler is None else (PlacedRecord(0, sampler),)
    reply = Segment(
        ids, np.ones(ids.shape, bool), values, drawn_by, masks, routes=recorded, samplers=samplers
    )
    span = ReplySpan(number, len(before), len(before) + len(reply))
    appended = _appended(trajectory, reply, number)
    return dataclasses.replace(appended, replies=(*trajectory.replies, span))


def append_turn(
    trajectory: Trajectory, ids: Ids, segment: int = -1, images: SequenceImages | None = None
) -> Trajectory:
    """Appends tokens of the environment to a segment.

    Args:
      trajectory: the tokens so far.
      ids: the tokens between the last reply and the next.
      segment: the number of the segment; the last one if left out.
      images: images of the ids.

    Raises:
      ValueError: one is not a token id, or there is no segment.
    """
    trajectory._last()
    return _appended(trajectory, _given(ids, images), segment % len(trajectory.segments))


def _token_ids(ids: Ids) -> Int[np.ndarray, " T"]:
    array = np.asarray(ids)
    if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
        raise ValueError(f"Token ids are a sequence of integers, not {ids!r}.")
    if array.size and not 0 <= array.min() <= array.max() <= np.iinfo(np.int32).max:
        raise ValueError(f"Token ids are from 0 to 2³¹ − 1, not {array.min()} to {array.max()}.")
    return array.astype(np.int32)


def _given(ids: Ids, images: SequenceImages | None = None) -> Segment:
    """Makes a segment of tokens that the policy did not sample."""
    tokens = _token_ids(ids)
    return _frozen(
        Segment(
            tokens=tokens,
            mask=np.zeros(tokens.shape, bool),
            behavior_logprobs=np.zeros(tokens.shape, np.float32),
            policy_versions=np.full(tokens.shape, NOT_DRAWN, np.int32),
            images=images,
        )
    )


def _appended(trajectory: Trajectory, more: Segment, number: int) -> Trajectory:
    before = trajectory.segments[number]
    more = dataclasses.replace(more, masks=shifted(more.masks, len(before)))
    joined = {n: np.concatenate([getattr(before, n), getattr(more, n)]) for n in _array_names()}
    segments = list(trajectory.segments)
    images = after(before.images, len(before), more.images)
    segments[number] = _frozen(
        Segment(
            **joined,
            routes=before.routes + more.routes,
            samplers=before.samplers + moved(more.samplers, len(before)),
            images=images,
        )
    )
    return dataclasses.replace(trajectory, segments=tuple(segments))


def _frozen(segment: Segment) -> Segment:
    for name in _array_names():
        getattr(segment, name).flags.writeable = False
    return segment


def _array_names() -> list[str]:
    names = [field.name for field in dataclasses.fields(Segment)]
    return [name for name in names if name not in ("routes", "samplers", "images")]
