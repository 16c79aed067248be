"""Records of episodes: requests, turns of environments, replies of the policy, and their ends."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from jaxtyping import Float, Int

from rl_sync.ending import Ending
from rl_sync.environments.dialogue.trajectory import Trajectory
from rl_sync.rollout.sampling import Sampling
from rl_sync.sampling_masks import no_entries, shifted
from rl_sync.sequence_images import SequenceImages
from rl_sync.token_records import joined
from rl_sync.types import CompletionProgress, ReplyMark

_DIGEST_BYTES = 16


@dataclasses.dataclass(frozen=True, eq=False)
class EpisodeRequest:
    """Request for several episodes of one problem.

    Attributes:
      row: fields of the problem, which its environment gets.
      sampling: sampling choices of each reply.
      completions: number of episodes.
      seed: seed of the sampling and of the environments: all episodes of a request begin alike.
      number: in games of several players, the number that rotates the seats.
      examines: whether the episodes belong to an evaluation, and use its opponent.
      begun: replies so far of some of the episodes, by their indices. Where the environments' turns
        are the same again, these replies are given, and the last one goes on if it has no end.
    """

    row: Mapping[str, Any]
    sampling: Sampling
    completions: int = 1
    seed: tuple[int, ...] = (0,)
    number: int = 0
    examines: bool = False
    begun: Mapping[int, CompletionProgress] = dataclasses.field(default_factory=dict)


class BeginEpisode(NamedTuple):
    """An episode to begin; see `EpisodeRequest`.

    Attributes:
      most_tokens: maximum number of tokens of a reply.
    """

    episode: int
    row: Mapping[str, Any]
    seed: int
    number: int = 0
    examines: bool = False
    most_tokens: int = 1 << 30


class Said(NamedTuple):
    """A reply of the policy in an episode.

    Attributes:
      tokens: sampled token ids.
      is_cut: whether it ends because it reached the maximum number of tokens.
      logprobs, versions: see `append_reply`.
      opponent: see `Continue`.
      request: see `Continue`.
    """

    episode: int
    tokens: Int[np.ndarray, " T"]
    is_cut: bool
    logprobs: Float[np.ndarray, " T"]
    versions: Int[np.ndarray, " T"]
    opponent: int | None = None
    request: int = 0


class Saying(NamedTuple):
    """New tokens of a reply that is still being generated; see `Said`."""

    episode: int
    tokens: Int[np.ndarray, " T"]
    logprobs: Float[np.ndarray, " T"]
    versions: Int[np.ndarray, " T"]
    request: int = 0


class Continue(NamedTuple):
    """A turn of an environment, after which the policy continues.

    Attributes:
      ids: tokens that follow the segment so far; the whole prompt of a segment that begins.
      begins_segment: whether a new segment begins.
      restarts: whether the episode begins again, and its tokens so far are dropped.
      reward: reward of the last reply.
      stop_strings: texts that end the reply, in addition to the sampling's.
      room: maximum number of tokens of the reply.
      streams: whether the director gets the reply's tokens while it is generated.
      opponent: player whose turn it is, if it is an opponent: the turn continues that player's
        conversation, which is not trained on. None for the policy that learns.
      segment: number of the segment that continues or begins.
      forgets: if a segment begins, whether all earlier segments are finished.
      request: name of the reply, if an episode has several replies in flight.
      images: images of `ids`; None for text alone.
    """

    episode: int
    ids: Int[np.ndarray, " P"]
    begins_segment: bool = False
    restarts: bool = False
    reward: float = 0.0
    stop_strings: tuple[str, ...] = ()
    room: int = 1 << 30
    streams: bool = False
    opponent: int | None = None
    segment: int | None = None
    forgets: bool = True
    request: int = 0
    images: SequenceImages | None = None

    def digest(self) -> bytes:
        """Computes a digest of all that the reply depends on, given the turns before."""
        images = self.images
        choices = (
            self.begins_segment,
            self.segment,
            self.opponent,
            self.stop_strings,
            self.room,
            None if images is None else (images.digests, images.at.tolist()),
        )
        digest = hashlib.blake2b(repr(choices).encode(), digest_size=_DIGEST_BYTES)
        digest.update(np.ascontiguousarray(self.ids, np.int32).tobytes())
        return digest.digest()


class End(NamedTuple):
    """The end of an episode."""

    episode: int
    ending: Ending
    reward: float = 0.0


class EpisodeDirector(Protocol):
    """Interface to the environments of episodes."""

    def begin(self, episodes: Sequence[BeginEpisode]) -> None:
        """Asks the environments of new episodes for their first turns."""

    def take(self, replies: Sequence[Said]) -> None:
        """Asks environments for their answers to replies."""

    def hear(self, sayings: Sequence[Saying]) -> None:
        """Takes the new tokens of replies that are still being generated, if their turns stream."""

    def answers(self, timeout_secs: float, all_of_them: bool) -> list[Continue | End]:
        """Returns answers that are ready.

        Args:
          timeout_secs: maximum wait for an answer.
          all_of_them: whether to wait for the answers of all episodes instead, except those that
            cannot begin before others end; the answers are then ordered by episode.
        """

    def close(self) -> None:
        """Ends all environments."""


class ToldReply(NamedTuple):
    """A reply, finished or not.

    Attributes:
      turn: digest of the turn that it answers; see `Continue.digest`.
      opponent: player who gives it; None for the policy that learns.
      said: its tokens, and its end.
    """

    turn: bytes
    opponent: int | None
    said: CompletionProgress

    @property
    def counted_tokens(self) -> int:
        """Number of its tokens; 0 for a whole reply of an opponent, which is counted apart."""
        is_apart = self.opponent is not None and self.said.finish is not None
        return 0 if is_apart else len(self.said.tokens)


def progress_of(replies: Sequence[ToldReply], attempt: int) -> CompletionProgress:
    """Joins the replies of an episode, in their order.

    Args:
      attempt: number of the attempt to play the episode.
    """
    said = [one.said for one in replies]
    starts = [0, *itertools.accumulate(len(one.tokens) for one in said)]
    marks = (
        ReplyMark(start, one.turn, one.opponent, one.said.finish)
        for start, one in zip(starts, replies, strict=False)
    )
    masks = [shifted(one.masks, start) for start, one in zip(starts, said, strict=False)]
    return CompletionProgress(
        np.concatenate([np.zeros(0, np.int32), *(one.tokens for one in said)]),
        np.concatenate([np.zeros(0, np.float32), *(one.logprobs for one in said)]),
        np.concatenate([np.zeros(0, np.int32), *(one.versions for one in said)]),
        np.concatenate([no_entries(), *masks]),
        sampler=joined([one.sampler for one in said if one.sampler is not None]),
        replies=tuple(marks),
        attempt=attempt,
    )


def replies_of(progress: CompletionProgress) -> list[ToldReply]:
    """Inverts `progress_of`."""
    starts = [*(mark.start for mark in progress.replies), len(progress.tokens)]
    found = []
    for mark, (start, stop) in zip(progress.replies, itertools.pairwise(starts), strict=True):
        at = progress.masks[:, 0]
        sampler = progress.sampler
        said = CompletionProgress(
            progress.tokens[start:stop],
            progress.logprobs[start:stop],
            progress.versions[start:stop],
            progress.masks[(at >= start) & (at < stop)] - np.array([start, 0, 0], np.uint32),
            mark.finish,
            None if sampler is None else sampler.before(stop).after(start),
        )
        found.append(ToldReply(mark.turn, mark.opponent, said))
    return found


def counted_tokens(progress: CompletionProgress) -> int:
    """Returns the number of tokens of a completion or an episode that is in flight.

    Whole replies of opponents are left out: they are counted apart when they end.
    """
    if not progress.replies:
        return len(progress.tokens)
    return sum(one.counted_tokens for one in replies_of(progress))


@dataclasses.dataclass(frozen=True, eq=False)
class Played:
    """A finished episode.

    Attributes:
      ticket, index: see `FinishedCompletion`.
      trajectory: the whole conversation; empty if the environment never began.
      turn_rewards: reward of each reply; rewards of the whole episode are in the ending.
      ending: end of the episode.
      said: all replies, also those of opponents that the engine played, in their order.
      attempt: number of the attempt that they belong to, from 0.
    """

    ticket: int
    index: int
    trajectory: Trajectory
    turn_rewards: tuple[float, ...]
    ending: Ending
    said: tuple[ToldReply, ...] = ()
    attempt: int = 0

    def progress(self) -> CompletionProgress:
        """Returns its replies, with which it can be played again."""
        return progress_of(self.said, self.attempt)

    @property
    def sampled_tokens(self) -> int:
        """Number of tokens of its replies."""
        return self.trajectory.sampled_tokens

    @property
    def last_reply(self) -> Int[np.ndarray, " T"]:
        """Tokens of the last reply; none if there was no reply."""
        if not self.trajectory.replies:
            return np.zeros(0, np.int32)
        segment, start, stop = self.trajectory.replies[-1]
        return self.trajectory.segments[segment].tokens[start:stop]

    @property
    def before_last_reply(self) -> Int[np.ndarray, " T"]:
        """Tokens before the last reply in its segment; none if there was no reply."""
        if not self.trajectory.replies:
            return np.zeros(0, np.int32)
        segment, start, _ = self.trajectory.replies[-1]
        return self.trajectory.segments[segment].tokens[:start]
