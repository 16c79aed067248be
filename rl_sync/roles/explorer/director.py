"""The director: passes the policy's replies to environments, and turns their answers into ids."""

from __future__ import annotations

import collections
import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Int

from rl_sync.cluster.user_errors import RunEndedError
from rl_sync.ending import FAILURES, POLICY, Ending, Fault, Move
from rl_sync.environments.dialogue.bridge import Bridge
from rl_sync.environments.dialogue.excerpts import MARK, characters, shortened
from rl_sync.environments.dialogue.exchanges import Exchange
from rl_sync.environments.dialogue.reader import ReplyReader
from rl_sync.environments.environment_settings import (
    CHARACTERS_A_TOKEN,
    CUT,
    REFUSE,
    SEGMENT,
    EnvironmentSettings,
)
from rl_sync.environments.hosts.episode_limits import START_SECS
from rl_sync.environments.hosts.host import Failure, Host, Result
from rl_sync.environments.interface import (
    ANEW,
    DrawnReply,
    Outcome,
    PartialReply,
    Reply,
    SeatedOutcome,
    SeatedTurn,
    StreamedTurn,
    Turn,
)
from rl_sync.environments.opponents import Seating
from rl_sync.isolation.codec import record
from rl_sync.rollout.episodes.episode_records import BeginEpisode, Continue, End, Said, Saying
from rl_sync.sequence_images import SequenceImages
from rl_sync.tasks.pictures.places import row_with_places

_POLL_SECS = 0.25
_LINE_CHARACTERS = 300
_MOVE_CHARACTERS = 500

for _class in (Continue, End, SequenceImages):
    record(_class)


@dataclasses.dataclass
class _Asked:
    """A reply that is being generated.

    Attributes:
      exchange: the turn that it answers.
      most_tokens: number of tokens that are reserved for it.
      hear: function that gets parts of it; None if there is none.
      deadline_secs, until: maximum time for the reply, and the end of that time.
      heard: token ids of the parts so far.
    """

    exchange: Exchange
    most_tokens: int
    hear: Callable[[PartialReply], None] | None
    deadline_secs: float
    until: float
    heard: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class _Side:
    """The conversations of one player; an episode with one player has one side.

    Attributes:
      history: replies, each with everything before it.
      asked: replies that are being generated, by their request names.
      ends: last exchange of each segment that has not been continued yet, by segment number.
      tokens: number of tokens of all segments.
      segments: number of runs of append-only tokens.
      calls: number of tool calls.
      is_cut: whether a limit ended the last reply.
    """

    history: list[Exchange] = dataclasses.field(default_factory=list)
    asked: dict[int, _Asked] = dataclasses.field(default_factory=dict)
    ends: dict[int, Exchange] = dataclasses.field(default_factory=dict)
    tokens: int = 0
    segments: int = 0
    calls: int = 0
    is_cut: bool = False

    @property
    def turns(self) -> int:
        """Number of replies."""
        return len(self.history)

    @property
    def kept_free(self) -> int:
        """Number of tokens that are reserved for the replies in flight."""
        return sum(asked.most_tokens for asked in self.asked.values())

    def before(self, turn: Turn) -> Exchange | None:
        """Returns the exchange that a turn follows; None if it begins a conversation.

        Raises:
          IndexError: there is no such exchange.
        """
        if turn.after == ANEW or (turn.after is None and not self.history):
            return None
        return self.history[-1 if turn.after is None else turn.after]


@dataclasses.dataclass
class _Dialogue:
    """An episode so far.

    Attributes:
      begun: request that it began with; after a failure it begins again with the same request.
      faults: earlier attempts, which failed.
      side: side of the policy that learns.
      opponents: sides of other players that a policy plays, by player number.
      seat: the player who learns, in a game of several players.
      moves: all replies in such a game.
      waiting: turns that have no room until parallel replies have ended.
      rewards: sum of the rewards of its turns.
      limit: limit that ends the episode, once one is reached.
      has_begun: whether a policy was asked for a reply in this attempt.
    """

    begun: BeginEpisode
    faults: tuple[Fault, ...] = ()
    side: _Side = dataclasses.field(default_factory=_Side)
    opponents: dict[int, _Side] = dataclasses.field(default_factory=dict)
    seat: int | None = None
    moves: list[Move] = dataclasses.field(default_factory=list)
    waiting: collections.deque[Turn] = dataclasses.field(default_factory=collections.deque)
    rewards: float = 0.0
    limit: str = ""
    has_begun: bool = False

    @property
    def turns(self) -> int:
        """Number of replies of the policy that learns."""
        return self.side.turns

    def side_of(self, opponent: int | None) -> _Side:
        """Returns the side of the policy that learns, or of an opponent."""
        return self.side if opponent is None else self.opponents.setdefault(opponent, _Side())

    def note(self, answer: SeatedTurn | SeatedOutcome) -> None:
        """Records the seat and the moves of scripted opponents, if the answer has them."""
        self.seat = answer.seat
        self.moves += [Move(player, by, _short(text)) for player, by, text in answer.played]


class Director:
    """Plays the part of the environments for an `EpisodeEngine`.

    Args:
      host: runs the environments.
      bridge: converts messages to token ids.
      reader: parses replies.
      settings: limits of an episode.
      placeholder: text in prompts of rows that stands for an image; environments get U+FFFC in its
        place. Empty for rows as they are.
      check: called again and again while answers are awaited; it raises what ends the wait.
    """

    def __init__(
        self,
        host: Host,
        bridge: Bridge,
        reader: ReplyReader,
        settings: EnvironmentSettings,
        *,
        placeholder: str = "",
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._placeholder, self._check = placeholder, check
        self._host, self._bridge, self._reader, self._settings = host, bridge, reader, settings
        self._mark = MARK if bridge.can_say(MARK.format(0)) else ""
        self._dialogues: dict[int, _Dialogue] = {}
        self._awaited: set[int] = set()
        self._ready: list[Continue | End] = []

    def begin(self, episodes: Sequence[BeginEpisode]) -> None:
        """See `rl_sync.rollout.episodes.episode_records.EpisodeDirector`."""
        for begun in episodes:
            self._dialogues[begun.episode] = _Dialogue(begun)
            self._ask_for_first_turn(begun)

    def take(self, replies: Sequence[Said]) -> None:
        """See `rl_sync.rollout.episodes.episode_records.EpisodeDirector`."""
        for said in replies:
            dialogue = self._dialogues[said.episode]
            asked = dialogue.side_of(said.opponent).asked.pop(said.request)
            reply = self._taken(dialogue, asked.exchange, said)
            if time.monotonic() > asked.until:
                late = f"the reply took longer than the {asked.deadline_secs:g} s of its turn"
                self._ready.append(self._cut(dialogue, "time-out", why=late))
                continue
            self._give(dialogue, reply)
            self._go_on_waiting(dialogue)

    def hear(self, sayings: Sequence[Saying]) -> None:
        """See `rl_sync.rollout.episodes.episode_records.EpisodeDirector`."""
        for saying in sayings:
            asked = self._dialogues[saying.episode].side.asked[saying.request]
            assert asked.hear is not None, "a streamed reply has a listener"
            asked.heard += saying.tokens.tolist()
            prompt = asked.exchange.prompt
            drawn = DrawnReply(prompt, saying.tokens, saying.logprobs, saying.versions)
            beginning = self._reader.beginning(asked.exchange, asked.heard)
            asked.hear(PartialReply(beginning, drawn))

    def answers(self, timeout_secs: float, all_of_them: bool) -> list[Continue | End]:
        """See `rl_sync.rollout.episodes.episode_records.EpisodeDirector`.

        Raises:
          TimeoutError: no environment has answered for twice the time limit of an answer, plus the
            time that its process may take to start.
        """
        until = time.monotonic() + (self._patience_secs if all_of_them else timeout_secs)
        answers, self._ready = self._ready, []
        if not self._waits(all_of_them):  # Episodes with replies in flight may ask for more.
            found = [self._heard(*answer) for answer in self._host.answers(0.0)]
            answers += [answer for answer in found if answer is not None]
        while self._waits(all_of_them):
            self._check()
            wait = max(0.0, min(_POLL_SECS, until - time.monotonic()))
            found = [self._heard(*answer) for answer in self._host.answers(wait)]
            answers += [answer for answer in found if answer is not None]
            if found and all_of_them:
                until = time.monotonic() + self._patience_secs
            elif (answers and not all_of_them) or time.monotonic() >= until:
                break
        if all_of_them and (waits := self._waits(all_of_them)):
            raise TimeoutError(
                f"{waits} episodes wait for their environment, and none has answered"
                f" for {self._patience_secs:g} s (twice environment.limit_secs, and"
                f" {START_SECS:g} s to start)."
            )
        return sorted(answers, key=lambda answer: answer.episode)

    def _waits(self, all_of_them: bool) -> int:
        """Counts the episodes whose answer has not arrived.

        With `all_of_them`, queued episodes are left out: they cannot begin until another one ends.
        """
        return len(self._awaited) - (self._host.queued if all_of_them else 0)

    @property
    def _patience_secs(self) -> float:
        return 2 * self._settings.limit_secs + START_SECS

    def close(self) -> None:
        """See `rl_sync.rollout.episodes.episode_records.EpisodeDirector`."""
        self._host.close()

    def _ask_for_first_turn(self, begun: BeginEpisode) -> None:
        self._awaited.add(begun.episode)
        settings = self._settings
        opponent = settings.evaluation_opponent if begun.examines else settings.opponent
        seating = Seating(begun.number, settings.seat, opponent)
        row = row_with_places(begun.row, self._placeholder)
        self._host.begin(begun.episode, row, begun.seed, seating)

    def _give(self, dialogue: _Dialogue, reply: Reply) -> None:
        """Gives a reply to the environment, whose answer is then awaited.

        While other replies of the episode are in flight, no answer is awaited: the environment may
        need these replies, too, before it answers.
        """
        if not dialogue.side.asked and not dialogue.waiting:
            self._awaited.add(dialogue.begun.episode)
        self._host.step(dialogue.begun.episode, reply)

    def _go_on_waiting(self, dialogue: _Dialogue) -> None:
        """Continues with turns that had no room while other replies were in flight."""
        waiting, dialogue.waiting = dialogue.waiting, collections.deque()
        for turn in waiting:
            if (answer := self._continued(dialogue, turn)) is not None:
                self._ready.append(answer)

    def _taken(self, dialogue: _Dialogue, asked: Exchange, said: Said) -> Reply:
        """Reads a reply, and adds it to the history."""
        side = dialogue.side_of(said.opponent)
        reply = self._reader.reply(asked, said.tokens.tolist(), said.is_cut, side.calls)
        side.tokens += len(said.tokens)
        side.calls += len(reply.tool_calls)
        side.is_cut = said.is_cut
        exchange = dataclasses.replace(asked, tokens=said.tokens, reply=reply.message())
        side.history.append(exchange)
        side.ends[exchange.segment] = exchange
        if dialogue.seat is not None:
            player = dialogue.seat if said.opponent is None else said.opponent
            dialogue.moves.append(Move(player, _policy(said.versions), _short(reply.text)))
        drawn = DrawnReply(asked.prompt, said.tokens, said.logprobs, said.versions)
        return dataclasses.replace(reply, drawn=drawn, request=said.request)

    def _heard(self, episode: int, answer: Result) -> Continue | End | None:
        """Returns the consequence of an environment's answer; None if the episode only waits."""
        self._awaited.discard(episode)
        if (dialogue := self._dialogues.get(episode)) is None:
            return None  # The environment was given up.
        if isinstance(answer, SeatedTurn | SeatedOutcome):
            dialogue.note(answer)
        if isinstance(answer, Failure) and not dialogue.limit:
            return self._failed(dialogue, answer)
        if isinstance(answer, Failure):  # It failed after reaching a limit; the limit counts.
            return self._end(dialogue, {}, {}, dialogue.limit, answer.why)
        if isinstance(answer, Outcome):
            reason = dialogue.limit or answer.reason
            return self._end(dialogue, answer.rewards, answer.metrics, reason, answer.why)
        return self._continued(dialogue, answer)

    def _failed(self, dialogue: _Dialogue, failure: Failure) -> End | None:
        """Begins an episode again, or ends it if no attempt is left."""
        episode = dialogue.begun.episode
        reason = "time-out" if failure.kind == "time-out" else "environment failure"
        if len(dialogue.faults) + 1 < self._settings.attempts:
            faults = (*dialogue.faults, Fault(reason, _line(failure.why)))
            self._dialogues[episode] = _Dialogue(dialogue.begun, faults)
            self._ask_for_first_turn(dialogue.begun)
            return None
        return self._end(dialogue, {}, {}, reason, failure.why)

    def _continued(self, dialogue: _Dialogue, turn: Turn) -> Continue | End | None:
        """Renders a turn, or ends an episode that has no room for it."""
        opponent = turn.player if isinstance(turn, SeatedTurn) and not turn.learns else None
        side = dialogue.side_of(opponent)
        dialogue.rewards += turn.reward
        if dialogue.limit or side.turns + len(side.asked) >= self._settings.max_turns:
            return self._limited(dialogue, turn, dialogue.limit or "turns")
        try:
            turn = self._shortened(turn)
            if characters(turn) > CHARACTERS_A_TOKEN * self._settings.max_tokens:
                return self._limited(dialogue, turn, "context", _too_long(turn, self._settings))
            asked = self._asked(side, turn)
        except IndexError:
            why = f"the environment's Turn.after={turn.after} is not one of {side.turns} replies"
            self._host.end(dialogue.begun.episode)
            return self._failed(dialogue, Failure(why, "nonsense"))
        except ValueError as error:
            return self._refused(dialogue, turn, error)
        # A segment can only be continued at its end, and only once.
        before = asked.before
        goes_on = before is not None and side.ends.get(before.segment) is before
        ids = asked.given if goes_on else asked.prompt
        room = self._settings.max_tokens - side.tokens - side.kept_free - len(ids)
        if room < 1 and side.asked:  # Replies in flight may take less than is reserved.
            dialogue.waiting.append(turn)
            return None
        if room < 1:
            return self._limited(dialogue, turn, "context")
        try:
            images = self._bridge.decoded(asked.images if goes_on else asked.prompt_images)
        except ValueError as error:
            return self._refused(dialogue, turn, error)
        room = min(room, turn.most_tokens or room)
        if goes_on and before is not None:
            segment = before.segment
            del side.ends[segment]
        else:
            segment, side.segments = side.segments, side.segments + 1
            if turn.after is None:
                side.ends.clear()
        hear = turn.hear if isinstance(turn, StreamedTurn) else None
        deadline_secs = turn.deadline_secs or math.inf
        side.asked[turn.request] = _Asked(
            exchange=dataclasses.replace(asked, segment=segment),
            most_tokens=min(room, dialogue.begun.most_tokens),
            hear=hear,
            deadline_secs=deadline_secs,
            until=time.monotonic() + deadline_secs,
        )
        side.tokens += len(ids)
        restarts = bool(dialogue.faults) and not dialogue.has_begun
        dialogue.has_begun = True
        return Continue(
            episode=dialogue.begun.episode,
            ids=ids,
            begins_segment=not goes_on,
            restarts=restarts,
            reward=turn.reward,
            stop_strings=turn.stop_strings,
            room=room,
            streams=hear is not None,
            opponent=opponent,
            segment=segment,
            forgets=turn.after is None,
            request=turn.request,
            images=images,
        )

    def _refused(self, dialogue: _Dialogue, turn: Turn, error: ValueError) -> End | None:
        """Refuses a turn that the policy cannot get: a request of an agent, or the episode."""
        if turn.after is None:
            self._host.end(dialogue.begun.episode)
            why = f"its turn cannot be said: {error}"
            return self._failed(dialogue, Failure(why, "nonsense"))
        self._give(dialogue, Reply("", refusal=str(error), request=turn.request))
        return None

    def _shortened(self, turn: Turn) -> Turn:
        """Returns a turn whose messages fit the length limit.

        Raises:
          ValueError: a message is too long, and must not be cut.
        """
        most = self._settings.observation_chars
        if most is None:
            return turn
        return shortened(turn, most, cuts=self._settings.long_observations == CUT, mark=self._mark)

    def _limited(self, dialogue: _Dialogue, turn: Turn, limit: str, why: str = "") -> End | None:
        """Ends an episode at a limit.

        An environment of several conversations gets an empty reply that is marked as cut, and ends
        the episode itself.
        """
        if turn.after is None:
            is_other = isinstance(turn, SeatedTurn) and not turn.learns
            why = ", ".join(filter(None, [f"of player {turn.player}" if is_other else "", why]))
            return self._cut(dialogue, limit, turn.reward, why)
        dialogue.limit = limit
        self._give(dialogue, Reply("", is_cut=True, request=turn.request))
        return None

    def _asked(self, side: _Side, turn: Turn) -> Exchange:
        """Renders a turn after the exchange that it follows."""
        before = side.before(turn)
        if before is None:
            step = self._bridge.first(turn)
            return Exchange(None, step.conversation, step.ids, images=step.images)
        assert before.reply is not None, "the history has replies"
        step = self._bridge.next(before.conversation, before.reply, before.tokens.tolist(), turn)
        if step.begins_segment and self._settings.rewrites == REFUSE:
            raise RunEndedError(
                "The chat template rewrote earlier messages of an episode, which"
                f" environment.rewrites={REFUSE} forbids: with environment.rewrites={SEGMENT},"
                " such an episode continues in a new segment."
            )
        return Exchange(
            before=None if step.begins_segment else before,
            conversation=step.conversation,
            given=step.ids,
            images=step.images,
        )

    def _cut(self, dialogue: _Dialogue, reason: str, reward: float = 0.0, why: str = "") -> End:
        """Ends an episode that its environment has not ended."""
        self._host.end(dialogue.begun.episode)
        return self._end(dialogue, {}, {}, reason, why, reward=reward)

    def _end(
        self,
        dialogue: _Dialogue,
        rewards: Mapping[str, float],
        metrics: Mapping[str, float],
        reason: str,
        why: str = "",
        *,
        reward: float = 0.0,
    ) -> End:
        del self._dialogues[dialogue.begun.episode]
        of_turns = {"turns": dialogue.rewards} if dialogue.rewards else {}
        faults = (Fault(reason, _line(why)),) if reason in FAILURES else ()
        ending = Ending(
            rewards={} if reason in FAILURES else {**of_turns, **rewards},
            metrics=dict(metrics),
            reason=reason,
            why=why,
            turns=dialogue.turns,
            segments=max(1, dialogue.side.segments),
            faults=(*dialogue.faults, *faults),
            seat=dialogue.seat,
            moves=tuple(dialogue.moves),
            is_cut=dialogue.side.is_cut,
        )
        return End(dialogue.begun.episode, ending, reward)


def _policy(versions: Int[np.ndarray, " T"]) -> str:
    """Describes the versions of the weights that generated a reply."""
    first, last = (int(versions.min()), int(versions.max())) if versions.size else (0, 0)
    return f"{POLICY} {first}" if first == last else f"{POLICY} {first} to {last}"


def _short(text: str) -> str:
    """Returns a reply, shortened for records."""
    return text if len(text) <= _MOVE_CHARACTERS else f"{text[: _MOVE_CHARACTERS - 1]}…"


def _too_long(turn: Turn, settings: EnvironmentSettings) -> str:
    return (
        f"the environment's turn has {characters(turn):,} characters, which"
        f" environment.max_tokens={settings.max_tokens} has no room for;"
        " environment.observation_chars would cut its messages"
    )


def _line(why: str) -> str:
    """Returns the last line of a fault, which is the exception if it is a traceback."""
    lines = why.strip().splitlines() or [""]
    return lines[-1].strip()[:_LINE_CHARACTERS]
