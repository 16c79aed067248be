"""The state of an episode that is played: its speakers, and the replies to give again.

An episode that another process has begun is played again: its environment begins with the same
seed, and each told reply is given where the turn is the one that the reply has answered.
"""

from __future__ import annotations

import collections
import dataclasses

from rl_sync.environments.dialogue.trajectory import Trajectory, append_turn, begin_segment
from rl_sync.rollout.episodes.episode_records import Continue, EpisodeRequest, ToldReply, replies_of
from rl_sync.rollout.request import Handle


@dataclasses.dataclass
class EpisodeSpeaker:
    """The policy that learns, or an opponent, in an episode.

    Attributes:
      trajectory: its conversations so far.
      held: last reply of each segment, whose caches the engine holds.
      begun: number of its replies that were begun.
    """

    trajectory: Trajectory = dataclasses.field(default_factory=Trajectory)
    held: dict[int, Handle] = dataclasses.field(default_factory=dict)
    begun: int = 0

    def segment_of(self, answer: Continue) -> int:
        """Returns the number of the segment that a turn continues."""
        last = len(self.trajectory.segments) - 1
        return last if answer.segment is None else answer.segment

    def hear(self, answer: Continue) -> None:
        """Adds a turn to its segment, or begins one with it."""
        before, ids, images = self.trajectory, answer.ids, answer.images
        if answer.begins_segment:
            self.trajectory = begin_segment(before, ids, images)
        else:
            self.trajectory = append_turn(before, ids, self.segment_of(answer), images)


@dataclasses.dataclass
class PlayedEpisode:
    """An episode in progress.

    Attributes:
      attempt: number of the attempt to play it, from 0.
      told: replies of another process that are still to be given, in their order.
      rewards: rewards of the policy's replies that the environment has answered.
      policy: the policy that learns.
      opponents: other players that the engine plays, by player number.
      said: finished replies of all speakers in this attempt, in their order.
    """

    ticket: int
    index: int
    request: EpisodeRequest
    attempt: int = 0
    told: collections.deque[ToldReply] = dataclasses.field(default_factory=collections.deque)
    rewards: tuple[float, ...] = ()
    policy: EpisodeSpeaker = dataclasses.field(default_factory=EpisodeSpeaker)
    opponents: dict[int, EpisodeSpeaker] = dataclasses.field(default_factory=dict)
    said: list[ToldReply] = dataclasses.field(default_factory=list)

    @classmethod
    def of(cls, ticket: int, index: int, request: EpisodeRequest) -> PlayedEpisode:
        """Makes an episode of a request, which may have been begun elsewhere."""
        if (begun := request.begun.get(index)) is None:
            return cls(ticket, index, request)
        told = collections.deque(replies_of(begun))
        return cls(ticket, index, request, begun.attempt, told)

    @property
    def turns(self) -> int:
        return len(self.policy.trajectory.replies)

    @property
    def counted_tokens(self) -> int:
        """Number of the policy's tokens in finished replies, and of told ones still to be given."""
        left = sum(told.counted_tokens for told in self.told)
        return self.policy.trajectory.sampled_tokens + left

    def speaker(self, opponent: int | None) -> EpisodeSpeaker:
        """Returns the policy that learns, or an opponent."""
        return (
            self.policy
            if opponent is None
            else self.opponents.setdefault(opponent, EpisodeSpeaker())
        )

    def seed(self, opponent: int | None) -> tuple[int, ...]:
        """Returns the seed of the next reply of the policy, or of an opponent."""
        of_speaker = () if opponent is None else (1 + opponent,)
        begun = self.speaker(opponent).begun
        return (*self.request.seed, self.index, self.attempt, begun, *of_speaker)


@dataclasses.dataclass
class BegunReply:
    """A reply that is being generated.

    Attributes:
      episode: number of its episode.
      segment: number of its segment.
      answer: the turn that it answers.
      turn: digest of this turn.
      heard: number of tokens that the director has got so far.
    """

    episode: int
    segment: int
    answer: Continue
    turn: bytes
    heard: int = 0
