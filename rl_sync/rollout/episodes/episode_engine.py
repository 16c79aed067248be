"""The episode engine: a policy and environments take turns, in the slots of an engine."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float

from rl_sync.environments.dialogue.trajectory import append_reply
from rl_sync.rollout.engine_interface import RolloutEngine
from rl_sync.rollout.episodes.episode_records import (
    BeginEpisode,
    Continue,
    End,
    EpisodeDirector,
    EpisodeRequest,
    Played,
    Said,
    Saying,
    ToldReply,
    progress_of,
)
from rl_sync.rollout.episodes.older_versions import OlderVersions
from rl_sync.rollout.episodes.played_episode import BegunReply, EpisodeSpeaker, PlayedEpisode
from rl_sync.rollout.request import CompletionRequest, FinishedCompletion, Handle
from rl_sync.rollout.sampling import Sampling
from rl_sync.rollout.stats import Stats
from rl_sync.sequence_images import PooledImages
from rl_sync.sequence_images import alike as same_images
from rl_sync.token_records import RecordedRoutes
from rl_sync.types import CompletionProgress, Params

_POLL_SECS = 0.1

T = TypeVar("T")
Agree = Callable[[str, Callable[[], Any]], Any]
"""Runs a function in a program's first process, and returns its result in every process."""


def alone(what: str, thunk: Callable[[], T]) -> T:
    """Calls the function directly: an `Agree` for a program of one process."""
    del what
    return thunk()


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
        engine: RolloutEngine,
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
        self._playing: dict[int, PlayedEpisode] = {}
        self._replying: dict[tuple[RolloutEngine, Handle], BegunReply] = {}
        self._opening: dict[int, list[Continue | End]] = {}
        self._given: list[Said] = []
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
    def _engines(self) -> tuple[RolloutEngine, ...]:
        return (self.engine,) if self._older is None else (self.engine, self._older.engine)

    def _engine_of(self, opponent: int | None) -> RolloutEngine:
        """Returns the engine that decodes the replies of the policy, or of an opponent."""
        return self._engines[0 if opponent is None else -1]

    @property
    def unfinished(self) -> int:
        """Number of episodes in progress."""
        return len(self._playing)

    @property
    def tokens_in_flight(self) -> int:
        """Number of tokens of replies in episodes that are not finished, and of told ones."""
        said = sum(episode.counted_tokens for episode in self._playing.values())
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
                self._playing[self._episodes] = PlayedEpisode.of(self._tickets, index, request)
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

    def rest(self) -> None:
        """See `RolloutEngine`."""
        for engine in self._engines:
            engine.rest()

    def unload(self) -> None:
        """See `RolloutEngine`; opponents keep theirs."""
        self.engine.unload()

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
        answers = self._answers(wait) if asks else []
        played = self._heed(answers)
        replies, self._given = self._given, []
        replies += [self._finished(one, done) for one in self._engines for done in one.step()]
        sayings = self._sayings()
        if replies or sayings:
            self._agree("replies", lambda: self._tell(sayings, replies))
        return played

    def _answers(self, wait: float) -> list[Continue | End]:
        """Returns environments' answers, and counts the time that this process slept meanwhile."""
        secs, cpu_secs = time.monotonic(), time.thread_time()
        answers: list[Continue | End] = self._agree(
            "answers", lambda: self._director.answers(wait, self._repeats)
        )
        secs, cpu_secs = time.monotonic() - secs, time.thread_time() - cpu_secs
        self._counted += Stats(waiting_secs=max(0.0, secs - cpu_secs))
        return answers

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

    def progress(self, handles: Collection[Handle]) -> dict[Handle, CompletionProgress]:
        """Returns the replies so far of each given episode, with which it can be played again.

        Told replies that are still to be given are among them.
        """
        in_flight = dict[int, ToldReply]()
        for engine in self._engines:
            own = {handle: one for (by, handle), one in self._replying.items() if by is engine}
            for handle, said in engine.progress(own).items():
                reply = own[handle]
                if len(said.tokens):
                    in_flight[reply.episode] = ToldReply(reply.turn, reply.answer.opponent, said)
        found = {}
        for number, episode in self._playing.items():
            if (handle := Handle(episode.ticket, episode.index)) in handles:
                flying = [in_flight[number]] if number in in_flight else []
                replies = [*episode.said, *flying, *episode.told]
                found[handle] = progress_of(replies, episode.attempt)
        return found

    def close(self) -> None:
        """Ends all environments, and what the engines have begun."""
        if self._made is not None:
            self._made.close()
        for one in self._engines:
            one.close()

    @property
    def _director(self) -> EpisodeDirector:
        if self._made is None:
            self._made = self._make_director()
        return self._made

    def _sayings(self) -> list[Saying]:
        """Returns those tokens of streamed replies that the director has not got yet."""
        replying = self._replying.items()
        streamed = {handle: one for (_, handle), one in replying if one.answer.streams}
        sayings = []
        for handle, progress in self.engine.progress(streamed).items() if streamed else ():
            reply = streamed[handle]
            if len(progress.tokens) > reply.heard:
                said = progress.after(reply.heard)
                request = reply.answer.request
                sayings.append(
                    Saying(reply.episode, said.tokens, said.logprobs, said.versions, request)
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
                self._release_all(episode)
                self._drop_told(episode)
                del self._playing[answer.episode]
                # Here the last reply gets its reward. A reply before a failure may have none, and
                # of parallel replies, the last one may have finished after others had continued.
                given = (*episode.rewards, answer.reward, *[0.0] * episode.turns)[: episode.turns]
                played.append(
                    Played(
                        ticket=episode.ticket,
                        index=episode.index,
                        trajectory=episode.policy.trajectory,
                        turn_rewards=given,
                        ending=answer.ending,
                        said=tuple(episode.said),
                        attempt=episode.attempt,
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
        begins_anew = any(one.restarts for one in turns) or any(one.attempt for one in episodes)
        if not alike or begins_anew or len(turns) < request.completions:
            for episode, answer in zip(episodes, turns, strict=True):
                self._go_on(episode, answer)
            return
        replies = [self._reply_to(*one) for one in zip(episodes, turns, strict=True)]
        begun = {
            episode.index: told
            for episode, reply in zip(episodes, replies, strict=True)
            if (told := self._next_told(episode, reply)) is not None
        }
        asked = CompletionRequest(
            first.ids,
            _sampling(request, first),
            request.completions,
            request.seed,
            held=True,
            images=first.images,
            begun=begun,
        )
        (ticket,) = self._engine_of(first.opponent).submit([asked])
        for episode, reply in zip(episodes, replies, strict=True):
            handle, told = Handle(ticket, episode.index), begun.get(episode.index)
            self._reply_begins(episode, reply, handle, told)

    def _reply_to(self, episode: PlayedEpisode, answer: Continue) -> BegunReply:
        """Adds a turn to its conversation; returns the reply to it, without a token."""
        speaker = episode.speaker(answer.opponent)
        speaker.hear(answer)
        segment = speaker.segment_of(answer)
        return BegunReply(answer.episode, segment, answer, answer.digest())

    def _next_told(self, episode: PlayedEpisode, reply: BegunReply) -> CompletionProgress | None:
        """Takes the next told reply, if it has answered the same turn; otherwise drops the rest."""
        if episode.told and episode.told[0].turn == reply.turn:
            return episode.told.popleft().said
        self._drop_told(episode)
        return None

    def _go_on(self, episode: PlayedEpisode, answer: Continue) -> None:
        """Begins the reply to a turn."""
        if answer.restarts and not (episode.told and not episode.said):
            self._restart(episode)
        opponent = answer.opponent
        engine, speaker = self._engine_of(opponent), episode.speaker(opponent)
        if opponent is None and episode.turns:
            episode.rewards += (answer.reward,)
        if answer.begins_segment and answer.forgets:
            self._release(speaker, engine)
        reply = self._reply_to(episode, answer)
        told = self._next_told(episode, reply)
        seed, sampling = episode.seed(opponent), _sampling(episode.request, answer)
        held = speaker.held.pop(reply.segment, None)
        if held is not None:
            assert told is None, "told replies come before all others"
            ticket = engine.extend(
                held, answer.ids, sampling, seed=seed, held=True, images=answer.images
            )
        else:  # A segment that begins, or whose last reply was given.
            whole = speaker.trajectory.segments[reply.segment]
            asked = CompletionRequest(
                whole.tokens,
                sampling,
                seed=seed,
                held=True,
                images=whole.images,
                begun={} if told is None else {0: told},
            )
            (ticket,) = engine.submit([asked])
        self._reply_begins(episode, reply, Handle(ticket, 0), told)

    def _reply_begins(
        self,
        episode: PlayedEpisode,
        reply: BegunReply,
        handle: Handle,
        told: CompletionProgress | None,
    ) -> None:
        """Notes a reply that the engine generates, or gives the told one if that has an end."""
        opponent = reply.answer.opponent
        episode.speaker(opponent).begun += 1
        if told is None or told.finish is None:
            self._replying[self._engine_of(opponent), handle] = reply
        else:
            self._given.append(self._said(reply, told))

    def _restart(self, episode: PlayedEpisode) -> None:
        """Drops the conversation of an episode, which begins again."""
        self._release_all(episode)
        self._drop_told(episode)
        self._counted += Stats(restarted_tokens=episode.policy.trajectory.sampled_tokens)
        episode.policy, episode.rewards, episode.opponents = EpisodeSpeaker(), (), {}
        episode.said, episode.attempt = [], episode.attempt + 1

    def _drop_told(self, episode: PlayedEpisode) -> None:
        """Drops told replies that no turn asks for again."""
        tokens = sum(told.counted_tokens for told in episode.told)
        self._counted += Stats(differing_tokens=tokens)
        episode.told.clear()

    def _release_all(self, episode: PlayedEpisode) -> None:
        self._release(episode.policy, self.engine)
        for opponent, speaker in episode.opponents.items():
            self._release(speaker, self._engine_of(opponent))

    def _release(self, speaker: EpisodeSpeaker, engine: RolloutEngine) -> None:
        """Releases the completions that an engine holds for a speaker."""
        held, speaker.held = speaker.held, {}
        for handle in held.values():
            engine.release(handle)

    def _finished(self, engine: RolloutEngine, completion: FinishedCompletion) -> Said:
        """Returns the record of a reply that the engine has generated."""
        reply = self._replying.pop((engine, completion.handle))
        opponent = reply.answer.opponent
        speaker = self._playing[reply.episode].speaker(opponent)
        speaker.held[reply.segment] = completion.handle
        if opponent is not None:
            self._counted += Stats(opponent_tokens=len(completion.tokens))
        return self._said(reply, completion.progress(), completion.routes)

    def _said(
        self, reply: BegunReply, said: CompletionProgress, routes: RecordedRoutes | None = None
    ) -> Said:
        """Adds a finished reply to its conversation, and returns its record."""
        answer, episode = reply.answer, self._playing[reply.episode]
        speaker = episode.speaker(answer.opponent)
        speaker.trajectory = append_reply(
            speaker.trajectory,
            said.tokens,
            said.logprobs,
            said.versions,
            said.masks,
            segment=reply.segment,
            routes=routes,
            sampler=said.sampler,
        )
        episode.said.append(ToldReply(reply.turn, answer.opponent, said))
        return Said(
            episode=reply.episode,
            tokens=said.tokens,
            is_cut=said.finish == "length",
            logprobs=said.logprobs,
            versions=said.versions,
            opponent=answer.opponent,
            request=answer.request,
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
