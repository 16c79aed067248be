"""The episode engine: a policy and environments take turns, in the slots of an engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float

from rl_sync.environments.dialogue.trajectory import (
    Trajectory,
    append_reply,
    append_turn,
    begin_segment,
)
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.episode_records import (
    BeginEpisode,
    Continue,
    End,
    EpisodeDirector,
    EpisodeRequest,
    Played,
    Said,
    Saying,
)
from rl_sync.rollout.older_versions import OlderVersions
from rl_sync.rollout.request import CompletionRequest, FinishedCompletion, Handle
from rl_sync.rollout.sampling import Sampling
from rl_sync.rollout.stats import Stats
from rl_sync.sequence_images import PooledImages
from rl_sync.sequence_images import alike as same_images
from rl_sync.types import Params

_POLL_SECS = 0.1
_NOTHING_SAID = Trajectory()

T = TypeVar("T")
Agree = Callable[[str, Callable[[], Any]], Any]
"""Runs a function in a program's first process, and returns its result in every process."""


def alone(what: str, thunk: Callable[[], T]) -> T:
    """Calls the function directly: an `Agree` for a program of one process."""
    del what
    return thunk()


@dataclasses.dataclass
class _Opponent:
    """An opponent's conversation in an episode.

    Attributes:
      held: handle of its last reply, whose cache the engine holds.
      turns: number of its replies.
    """

    held: Handle | None = None
    turns: int = 0


@dataclasses.dataclass
class _PlayedEpisode:
    """An episode in progress.

    Attributes:
      rewards: rewards of the replies that the environment has answered.
      attempt: number of the attempt to play it, from 0.
      held: last reply of each segment, whose caches the engine holds.
      begun: number of the policy's replies that were begun.
      opponents: conversations of other players that the engine plays, by player number.
    """

    ticket: int
    index: int
    request: EpisodeRequest
    trajectory: Trajectory = _NOTHING_SAID
    rewards: tuple[float, ...] = ()
    attempt: int = 0
    held: dict[int, Handle] = dataclasses.field(default_factory=dict)
    begun: int = 0
    opponents: dict[int, _Opponent] = dataclasses.field(default_factory=dict)

    @property
    def turns(self) -> int:
        return len(self.trajectory.replies)

    def seed(self, opponent: int | None) -> tuple[int, ...]:
        """Returns the seed of the next reply of the policy, or of an opponent."""
        if opponent is None:
            return (*self.request.seed, self.index, self.attempt, self.begun)
        turns = self.opponents[opponent].turns
        return (*self.request.seed, self.index, self.attempt, turns, 1 + opponent)

    def segment_of(self, answer: Continue) -> int:
        """Returns the number of the segment that a turn continues."""
        last = len(self.trajectory.segments) - 1
        return last if answer.segment is None else answer.segment

    def hold(self, opponent: int | None, segment: int, handle: Handle) -> None:
        """Records the last reply of a segment, or of an opponent."""
        if opponent is None:
            self.held[segment] = handle
        else:
            self.opponents[opponent].held = handle

    def let_go(self, opponent: int | None, segment: int) -> Handle:
        """Removes the last reply of a segment, or of an opponent, and returns its handle."""
        if opponent is None:
            return self.held.pop(segment)
        held, self.opponents[opponent].held = self.opponents[opponent].held, None
        assert held is not None, "only a new conversation has no reply before it"
        return held


@dataclasses.dataclass
class _Reply:
    """A reply that is being generated.

    Attributes:
      episode: number of its episode.
      segment: number of its segment.
      opponent: player who gives the reply; None for the policy that learns.
      request: see `Continue`.
      streams: whether the director gets the reply's tokens while it is generated.
      heard: number of tokens that the director has got so far.
    """

    episode: int
    segment: int
    opponent: int | None
    request: int
    streams: bool
    heard: int = 0


class EpisodeEngine:
    """An engine of episodes, with those methods of `Engine` that explorers call.

    The KV cache of a conversation stays in the engine while its environment works, as long as no
    other episode needs the slot.

    Args:
      engine: decodes the replies; nothing else uses it meanwhile.
      director: makes the director of the environments when the first episode begins; only the first
        process of a program makes one.
      repeats: whether a run must be reproducible to the bit. Then all answers are awaited before
        the next chunk of tokens, so that batches do not depend on how long environments take.
      side_by_side: whether an episode may have several replies in flight, each in its own segment.
      agree: see `Agree`.
      older: plays opponents with older weights; None if the policy plays them itself.
    """

    def __init__(
        self,
        engine: Engine,
        director: Callable[[], EpisodeDirector],
        *,
        repeats: bool,
        side_by_side: bool = False,
        agree: Agree = alone,
        older: OlderVersions | None = None,
    ) -> None:
        self.engine = engine
        self._older = older
        self._make_director, self._repeats, self._agree = director, repeats, agree
        self._side_by_side = side_by_side
        self._made: EpisodeDirector | None = None
        self._playing: dict[int, _PlayedEpisode] = {}
        self._replying: dict[tuple[Engine, Handle], _Reply] = {}
        self._opening: dict[int, list[Continue | End]] = {}
        self._tickets = self._episodes = 0
        self._counted = Stats()

    @property
    def slots(self) -> int:
        """See `Engine`."""
        return self.engine.slots

    @property
    def chunk_tokens(self) -> int:
        """See `Engine`."""
        return self.engine.chunk_tokens

    @property
    def version(self) -> int:
        """See `Engine`."""
        return self.engine.version

    @property
    def stats(self) -> Stats:
        """See `Engine`."""
        return sum((one.stats for one in self._engines), self._counted)

    @property
    def _engines(self) -> tuple[Engine, ...]:
        return (self.engine,) if self._older is None else (self.engine, self._older.engine)

    def _engine_of(self, opponent: int | None) -> Engine:
        """Returns the engine that decodes the replies of the policy, or of an opponent."""
        return self._engines[0 if opponent is None else -1]

    @property
    def unfinished(self) -> int:
        """Number of episodes in progress."""
        return len(self._playing)

    @property
    def tokens_in_flight(self) -> int:
        """Number of tokens of replies in episodes that are not finished."""
        said = sum(episode.trajectory.sampled_tokens for episode in self._playing.values())
        return said + sum(one.tokens_in_flight for one in self._engines)

    @property
    def occupied(self) -> int:
        """Number of slots that are occupied or waited for.

        An episode whose environment is at work leaves its slot to other episodes. So as many
        episodes as there are slots do not count while their environments work.
        """
        return max(self.engine.unfinished, self.unfinished - self.slots)

    def features(self, images: PooledImages) -> Float[np.ndarray, "N M W"]:
        """See `Engine`."""
        return self.engine.features(images)

    def load(self, params: Params, version: int) -> None:
        """See `Engine`."""
        self.engine.load(params, version)
        if self._older is not None:
            self._older.take(params, version)

    def submit(self, requests: Sequence[EpisodeRequest]) -> list[int]:
        """Begins episodes; returns a ticket for each request."""
        first, begun = self._tickets, []
        for request in requests:
            for index in range(request.completions):
                self._playing[self._episodes] = _PlayedEpisode(self._tickets, index, request)
                seed = int(np.random.SeedSequence(request.seed).generate_state(1)[0])
                begun.append(
                    BeginEpisode(
                        episode=self._episodes,
                        row=request.row,
                        seed=seed,
                        number=request.number,
                        examines=request.examines,
                        most_tokens=request.sampling.max_new_tokens,
                    )
                )
                self._episodes += 1
            self._opening[self._tickets] = []
            self._tickets += 1
        self._agree("begin episodes", lambda: self._director.begin(begun))
        return list(range(first, self._tickets))

    def step(self, poll_secs: float = _POLL_SECS) -> list[Played]:
        """Processes the environments' answers, takes a step of the engine, returns finished
        episodes.

        Args:
          poll_secs: maximum wait for an answer while no reply is in flight.

        Raises:
          NonFiniteLogitsError: see `Engine.step`.
          TimeoutError: environments did not answer in time.
        """
        if not self._playing:
            return []
        wait = 0.0 if any(one.unfinished for one in self._engines) else poll_secs
        asks = self._side_by_side or len(self._playing) > len(self._replying)
        answers = (
            self._agree("answers", lambda: self._director.answers(wait, self._repeats))
            if asks
            else []
        )
        played = self._heed(answers)
        replies = [self._said(one, done) for one in self._engines for done in one.step()]
        sayings = self._sayings()
        if replies or sayings:
            self._agree("replies", lambda: self._tell(sayings, replies))
        return played

    def advance(
        self,
        budget_tokens: int | None = None,
        between: Callable[[list[Played]], None] | None = None,
    ) -> list[Played]:
        """Steps until no episode or no budget of tokens is left; see `Engine.advance`."""
        before, played = self.engine.stats.decode_tokens, list[Played]()
        while self._playing:
            played += self.step()
            drawn = self.engine.stats.decode_tokens - before
            if budget_tokens is not None and drawn >= budget_tokens:
                break
            if between is not None and self._playing:
                between(played)
        return played

    def generate(self, requests: Sequence[EpisodeRequest]) -> list[list[Played]]:
        """Plays the episodes of some requests; see `Engine.generate`."""
        if self._playing:
            raise ValueError(f"{len(self._playing)} episodes are unfinished: use submit and step.")
        tickets = self.submit(requests)
        by_ticket: dict[int, list[Played]] = {ticket: [] for ticket in tickets}
        for played in sorted(self.advance(), key=lambda one: one.index):
            by_ticket[played.ticket].append(played)
        return list(by_ticket.values())

    def close(self) -> None:
        """Ends all environments."""
        if self._made is not None:
            self._made.close()

    @property
    def _director(self) -> EpisodeDirector:
        if self._made is None:
            self._made = self._make_director()
        return self._made

    def _sayings(self) -> list[Saying]:
        """Returns those tokens of streamed replies that the director has not got yet."""
        streamed = {handle: one for (_, handle), one in self._replying.items() if one.streams}
        sayings = []
        for handle, progress in self.engine.progress(streamed).items() if streamed else ():
            reply = streamed[handle]
            if len(progress.tokens) > reply.heard:
                said = progress.after(reply.heard)
                sayings.append(
                    Saying(reply.episode, said.tokens, said.logprobs, said.versions, reply.request)
                )
                reply.heard = len(progress.tokens)
        return sayings

    def _tell(self, sayings: Sequence[Saying], replies: Sequence[Said]) -> None:
        if sayings:
            self._director.hear(sayings)
        if replies:
            self._director.take(replies)

    def _heed(self, answers: Sequence[Continue | End]) -> list[Played]:
        """Continues after the environments' answers; returns the episodes that ended."""
        played = []
        for answer in answers:
            episode = self._playing[answer.episode]
            if isinstance(answer, End):
                for speaker in (None, *episode.opponents):
                    self._release(episode, speaker)
                del self._playing[answer.episode]
                # Here the last reply gets its reward. A reply before a failure may have none, and
                # of parallel replies, the last one may have finished after others had continued.
                given = (*episode.rewards, answer.reward, *[0.0] * episode.turns)[: episode.turns]
                played.append(
                    Played(
                        ticket=episode.ticket,
                        index=episode.index,
                        trajectory=episode.trajectory,
                        turn_rewards=given,
                        ending=answer.ending,
                    )
                )
            if (opening := self._opening.get(episode.ticket)) is None:
                if isinstance(answer, Continue):
                    self._go_on(episode, answer)
            else:
                opening.append(answer)
                if len({one.episode for one in opening}) == episode.request.completions:
                    self._open(self._opening.pop(episode.ticket))
        return played

    def _open(self, answers: Sequence[Continue | End]) -> None:
        """Begins the replies to the first turns of a request, once all its environments have begun.

        So its prompt is prefilled once, and its samples do not depend on the order of the answers.
        """
        turns: list[Continue] = []
        others: list[Continue] = []
        for answer in sorted(answers, key=lambda answer: answer.episode):
            if isinstance(answer, Continue):
                is_first = not turns or turns[-1].episode != answer.episode
                (turns if is_first else others).append(answer)
        if turns:
            self._open_first(turns)
        for answer in others:  # From episodes that have already asked for several replies.
            self._go_on(self._playing[answer.episode], answer)

    def _open_first(self, turns: Sequence[Continue]) -> None:
        """Begins the replies to the first turn of each episode of a request."""
        episodes = [self._playing[one.episode] for one in turns]
        request, first = episodes[0].request, turns[0]
        alike = all(
            np.array_equal(one.ids, first.ids)
            and same_images(one.images, first.images)
            and (one.stop_strings, one.room, one.opponent)
            == (first.stop_strings, first.room, first.opponent)
            for one in turns
        )
        if not alike or any(one.restarts for one in turns) or len(turns) < request.completions:
            for episode, answer in zip(episodes, turns, strict=True):
                self._go_on(episode, answer)
            return
        sampling = _sampling(request, first)
        asked = CompletionRequest(
            first.ids,
            sampling,
            request.completions,
            request.seed,
            held=True,
            images=first.images,
        )
        (ticket,) = self._engine_of(first.opponent).submit([asked])
        for episode, answer in zip(episodes, turns, strict=True):
            self._begin_segment(episode, answer)
            self._reply_begins(Handle(ticket, episode.index), answer)

    def _begin_segment(self, episode: _PlayedEpisode, answer: Continue) -> None:
        """Begins a conversation with a turn; an opponent's conversation is in no trajectory."""
        if answer.opponent is None:
            episode.trajectory = begin_segment(episode.trajectory, answer.ids, answer.images)
        else:
            episode.opponents.setdefault(answer.opponent, _Opponent())

    def _go_on(self, episode: _PlayedEpisode, answer: Continue) -> None:
        """Begins the reply to a turn."""
        if answer.restarts:
            self._restart(episode)
        speaker = answer.opponent
        engine = self._engine_of(speaker)
        if speaker is None and episode.turns:
            episode.rewards += (answer.reward,)
        sampling = _sampling(episode.request, answer)
        if answer.begins_segment:
            if answer.forgets:
                self._release(episode, speaker)
            self._begin_segment(episode, answer)
            asked = CompletionRequest(
                answer.ids,
                sampling,
                seed=episode.seed(speaker),
                held=True,
                images=answer.images,
            )
            (ticket,) = engine.submit([asked])
        else:
            segment, seed = episode.segment_of(answer), episode.seed(speaker)
            held = episode.let_go(speaker, segment)
            if speaker is None:
                episode.trajectory = append_turn(
                    episode.trajectory, answer.ids, segment, answer.images
                )
            ticket = engine.extend(
                held, answer.ids, sampling, seed=seed, held=True, images=answer.images
            )
        self._reply_begins(Handle(ticket, 0), answer)

    def _reply_begins(self, handle: Handle, answer: Continue) -> None:
        episode = self._playing[answer.episode]
        episode.begun += answer.opponent is None
        self._replying[self._engine_of(answer.opponent), handle] = _Reply(
            episode=answer.episode,
            segment=episode.segment_of(answer),
            opponent=answer.opponent,
            request=answer.request,
            streams=answer.streams,
        )

    def _restart(self, episode: _PlayedEpisode) -> None:
        """Drops the conversation of an episode, which begins again."""
        for speaker in (None, *episode.opponents):
            self._release(episode, speaker)
        self._counted += Stats(restarted_tokens=episode.trajectory.sampled_tokens)
        episode.trajectory, episode.rewards, episode.opponents = _NOTHING_SAID, (), {}
        episode.attempt, episode.begun = episode.attempt + 1, 0

    def _release(self, episode: _PlayedEpisode, speaker: int | None) -> None:
        """Releases the completions that the engine holds for the policy, or for an opponent."""
        held = list(episode.held.values())
        if speaker is None:
            episode.held = {}
        else:
            opponent = episode.opponents.get(speaker, _Opponent())
            held, opponent.held = [] if opponent.held is None else [opponent.held], None
        for one in held:
            self._engine_of(speaker).release(one)

    def _said(self, engine: Engine, completion: FinishedCompletion) -> Said:
        """Returns the record of a finished reply."""
        reply = self._replying.pop((engine, completion.handle))
        episode, speaker = self._playing[reply.episode], reply.opponent
        episode.hold(speaker, reply.segment, completion.handle)
        if speaker is None:
            episode.trajectory = append_reply(
                episode.trajectory,
                completion.tokens,
                completion.logprobs,
                completion.versions,
                completion.masks,
                segment=reply.segment,
                routes=completion.routes,
                sampler=completion.sampler,
            )
        else:
            episode.opponents[speaker].turns += 1
            self._counted += Stats(opponent_tokens=len(completion.tokens))
        return Said(
            episode=reply.episode,
            tokens=completion.tokens,
            is_cut=completion.finish == "length",
            logprobs=completion.logprobs,
            versions=completion.versions,
            opponent=speaker,
            request=reply.request,
        )


def _sampling(request: EpisodeRequest, answer: Continue) -> Sampling:
    """Returns the sampling choices of a reply: with the turn's stop strings and token limits.

    Opponents sample at random even if the policy is greedy.
    """
    sampling = request.sampling
    return dataclasses.replace(
        sampling,
        greedy=sampling.greedy and answer.opponent is None,
        max_new_tokens=min(sampling.max_new_tokens, answer.room),
        min_new_tokens=min(sampling.min_new_tokens, answer.room),
        stop_strings=tuple(dict.fromkeys((*sampling.stop_strings, *answer.stop_strings))),
    )
