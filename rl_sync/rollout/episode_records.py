"""Records of episodes: requests, turns of environments, replies of the policy, and their ends."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from jaxtyping import Float, Int

from rl_sync.ending import Ending
from rl_sync.environments.dialogue.trajectory import Trajectory
from rl_sync.rollout.sampling import Sampling


@dataclasses.dataclass(frozen=True, eq=False)
class EpisodeRequest:
    """Request for some episodes of one problem.

    Attributes:
      row: the fields of the problem; its environment gets them.
      sampling: the sampling choices of each reply.
      completions: the number of episodes.
      seed: the seed of the draws and, with its first two numbers, of the environments: all episodes
        of a request begin alike.
      number: in games of several players, the number with which seats go round.
      examines: whether the episodes are an evaluation's, with its opponent.
    """

    row: Mapping[str, Any]
    sampling: Sampling
    completions: int = 1
    seed: tuple[int, ...] = (0,)
    number: int = 0
    examines: bool = False


class BeginEpisode(NamedTuple):
    """An episode that begins; see `EpisodeRequest`.

    Attributes:
      most_tokens: the most tokens of a reply.
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
      tokens: the ids that it drew.
      is_cut: whether it ends because it has the largest number of tokens.
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
    """Tokens of a reply that is still being drawn, those since the last record; see `Said`."""

    episode: int
    tokens: Int[np.ndarray, " T"]
    logprobs: Float[np.ndarray, " T"]
    versions: Int[np.ndarray, " T"]
    request: int = 0


class Continue(NamedTuple):
    """A turn of an environment, after which the policy goes on.

    Attributes:
      ids: the tokens after all that was said in the segment; the whole prompt of one that begins.
      begins_segment: whether a new segment begins.
      restarts: whether the episode begins again, and what was drawn is dropped.
      reward: of the last reply.
      stop_strings: texts that end the reply besides those of the sampling.
      room: the most tokens of the reply.
      streams: whether the director hears the reply while it is drawn.
      opponent: the player whose turn it is, if that is an opponent: the turn continues that
        player's conversation, of which nothing is learned. None for the policy that learns.
      segment: the number of the segment that goes on, or begins.
      forgets: whether, where a segment begins, no earlier one will ever go on.
      request: what the reply is to be called, where an episode has several under way.
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


class End(NamedTuple):
    """The end of an episode."""

    episode: int
    ending: Ending
    reward: float = 0.0


class EpisodeDirector(Protocol):
    """Plays the part of the environments."""

    def begin(self, episodes: Sequence[BeginEpisode]) -> None:
        """Asks the environments of new episodes for their first turns."""

    def take(self, replies: Sequence[Said]) -> None:
        """Asks environments for their answers to replies."""

    def hear(self, sayings: Sequence[Saying]) -> None:
        """Hears of replies that are still being drawn, if their turns stream."""

    def answers(self, timeout_secs: float, all_of_them: bool) -> list[Continue | End]:
        """Returns answers that are ready.

        Args:
          timeout_secs: the longest wait for one.
          all_of_them: waits for everything that was asked instead, but for episodes that cannot
            begin before others end; orders it by episode.
        """

    def close(self) -> None:
        """Ends all environments."""


@dataclasses.dataclass(frozen=True, eq=False)
class Played:
    """A finished episode.

    Attributes:
      ticket, index: see `Completion`.
      trajectory: all that was said; empty where the environment never began.
      turn_rewards: the reward of each reply; those of the whole episode are in the ending.
      ending: its end.
    """

    ticket: int
    index: int
    trajectory: Trajectory
    turn_rewards: tuple[float, ...]
    ending: Ending

    @property
    def last_reply(self) -> Int[np.ndarray, " T"]:
        """The tokens of the last reply; none if there was no reply."""
        if not self.trajectory.replies:
            return np.zeros(0, np.int32)
        segment, start, stop = self.trajectory.replies[-1]
        return self.trajectory.segments[segment].tokens[start:stop]
