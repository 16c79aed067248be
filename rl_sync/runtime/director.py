"""The director: has environments answer the policy's replies, and turns both into token ids."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence

from rl_sync.actors.episodes import Begin, Continue, End, Said, Saying
from rl_sync.ending import FAILURES, Ending, Fault
from rl_sync.environments.bridge import Bridge
from rl_sync.environments.history import Exchange
from rl_sync.environments.hosts.host import Failure, Host, Result
from rl_sync.environments.hosts.limits import START_SECS
from rl_sync.environments.interface import (
    ANEW,
    Drawn,
    Outcome,
    Part,
    Reply,
    StreamedTurn,
    Turn,
)
from rl_sync.environments.reader import Reader
from rl_sync.environments.settings import REFUSE, SEGMENT, EnvironmentSettings
from rl_sync.processes.failures import RunError
from rl_sync.processes.messages import record

_POLL_SECS = 0.25
_LINE_CHARACTERS = 300

for _class in (Continue, End):
    record(_class)


@dataclasses.dataclass
class _Dialogue:
    """An episode so far.

    Attributes:
      begun: what it began with; it begins again with the same after a failure.
      faults: its earlier beginnings, which failed.
      history: its replies, each with all before it.
      asked: the prompt of the next reply.
      hear: hears parts of that reply; None where nobody does.
      heard: the ids of the parts so far.
      tokens: of all its segments.
      segments: runs of append-only tokens.
      calls: calls of tools.
      rewards: the sum of the rewards of its turns.
      deadline_secs, until: the longest time for the reply to the last turn, and its end.
      limit: the limit that ends it, once one is reached.
    """

    begun: Begin
    faults: tuple[Fault, ...] = ()
    history: list[Exchange] = dataclasses.field(default_factory=list)
    asked: Exchange | None = None
    hear: Callable[[Part], None] | None = None
    heard: list[int] = dataclasses.field(default_factory=list)
    tokens: int = 0
    segments: int = 0
    calls: int = 0
    rewards: float = 0.0
    deadline_secs: float = math.inf
    until: float = math.inf
    limit: str = ""

    @property
    def turns(self) -> int:
        """Number of replies."""
        return len(self.history)

    def before(self, turn: Turn) -> Exchange | None:
        """Returns the exchange that a turn follows; None if it begins a conversation.

        Raises:
          IndexError: there is no such exchange.
        """
        if turn.after == ANEW or (turn.after is None and not self.history):
            return None
        return self.history[-1 if turn.after is None else turn.after]


class Director:
    """Plays the part of the environments for an `EpisodeEngine`.

    Args:
      host: runs the environments.
      bridge: turns messages into ids.
      reader: reads replies.
      settings: the limits of an episode.
    """

    def __init__(
        self,
        host: Host,
        bridge: Bridge,
        reader: Reader,
        settings: EnvironmentSettings,
    ) -> None:
        self._host, self._bridge, self._reader, self._settings = host, bridge, reader, settings
        self._dialogues: dict[int, _Dialogue] = {}
        self._awaited: set[int] = set()
        self._ready: list[Continue | End] = []

    def begin(self, episodes: Sequence[Begin]) -> None:
        """See `rl_sync.actors.episodes.Director`."""
        for begun in episodes:
            self._dialogues[begun.episode] = _Dialogue(begun)
            self._ask_for_first_turn(begun)

    def take(self, replies: Sequence[Said]) -> None:
        """See `rl_sync.actors.episodes.Director`."""
        for said in replies:
            dialogue = self._dialogues[said.episode]
            reply = self._taken(dialogue, said)
            if time.monotonic() > dialogue.until:
                late = f"the reply took longer than the {dialogue.deadline_secs:g} s of its turn"
                self._ready.append(self._cut(dialogue, "time-out", why=late))
                continue
            self._give(dialogue, reply)

    def hear(self, sayings: Sequence[Saying]) -> None:
        """See `rl_sync.actors.episodes.Director`."""
        for saying in sayings:
            dialogue = self._dialogues[saying.episode]
            assert dialogue.hear is not None, "somebody hears the reply"
            assert dialogue.asked is not None, "the policy replies to a turn"
            dialogue.heard += saying.tokens.tolist()
            drawn = Drawn(dialogue.asked.prompt, saying.tokens, saying.logprobs, saying.versions)
            dialogue.hear(Part(self._reader.beginning(dialogue.heard), drawn))

    def answers(self, timeout_secs: float, all_of_them: bool) -> list[Continue | End]:
        """See `rl_sync.actors.episodes.Director`.

        Raises:
          TimeoutError: no environment has answered for twice the time that one may take, and the
            time that their processes may take to start.
        """
        until = time.monotonic() + (self._patience_secs if all_of_them else timeout_secs)
        answers, self._ready = self._ready, []
        while self._waits(all_of_them):
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
        """Counts the episodes whose answer may come; all wait for one that has begun."""
        return len(self._awaited) - (self._host.queued if all_of_them else 0)

    @property
    def _patience_secs(self) -> float:
        return 2 * self._settings.limit_secs + START_SECS

    def close(self) -> None:
        """See `rl_sync.actors.episodes.Director`."""
        self._host.close()

    def _ask_for_first_turn(self, begun: Begin) -> None:
        self._awaited.add(begun.episode)
        self._host.begin(begun.episode, begun.row, begun.seed)

    def _give(self, dialogue: _Dialogue, reply: Reply) -> None:
        """Gives a reply to the environment, and awaits its answer."""
        self._awaited.add(dialogue.begun.episode)
        self._host.step(dialogue.begun.episode, reply)

    def _taken(self, dialogue: _Dialogue, said: Said) -> Reply:
        """Reads a reply, and adds it to the history."""
        asked = dialogue.asked
        assert asked is not None, "the policy replies to a turn"
        reply = self._reader.reply(said.tokens.tolist(), said.is_cut, dialogue.calls)
        dialogue.tokens += len(said.tokens)
        dialogue.calls += len(reply.tool_calls)
        dialogue.history.append(
            dataclasses.replace(asked, tokens=said.tokens, reply=reply.message())
        )
        drawn = Drawn(asked.prompt, said.tokens, said.logprobs, said.versions)
        return dataclasses.replace(reply, drawn=drawn)

    def _heard(self, episode: int, answer: Result) -> Continue | End | None:
        """Returns what follows from the answer of an environment; None where it is asked again."""
        if episode not in self._awaited:
            return None  # Of an environment that was given up.
        self._awaited.discard(episode)
        dialogue = self._dialogues[episode]
        if isinstance(answer, Failure) and not dialogue.limit:
            return self._failed(dialogue, answer)
        if isinstance(answer, Failure):  # It has not borne its limit, which counts all the same.
            return self._end(dialogue, {}, {}, dialogue.limit, answer.why)
        if isinstance(answer, Outcome):
            reason = dialogue.limit or answer.reason
            return self._end(dialogue, answer.rewards, answer.metrics, reason, answer.why)
        return self._continued(dialogue, answer)

    def _failed(self, dialogue: _Dialogue, failure: Failure) -> End | None:
        """Begins an episode again, or ends it where that was done often enough."""
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
        dialogue.rewards += turn.reward
        if dialogue.limit or dialogue.turns >= self._settings.max_turns:
            return self._limited(dialogue, turn, dialogue.limit or "turns")
        try:
            asked = self._asked(dialogue, turn)
        except IndexError:
            why = f"the environment's Turn.after={turn.after} is none of {dialogue.turns} replies"
            self._host.end(dialogue.begun.episode)
            return self._failed(dialogue, Failure(why, "nonsense"))
        except ValueError as error:
            if turn.after is None:
                self._host.end(dialogue.begun.episode)
                why = f"its turn cannot be said: {error}"
                return self._failed(dialogue, Failure(why, "nonsense"))
            self._give(dialogue, Reply("", refusal=str(error)))
            return None
        goes_on = asked.before is not None and asked.before is dialogue.history[-1]
        ids = asked.given if goes_on else asked.prompt
        room = self._settings.max_tokens - dialogue.tokens - len(ids)
        if room < 1:
            return self._limited(dialogue, turn, "context")
        dialogue.asked = asked
        dialogue.hear, dialogue.heard = turn.hear if isinstance(turn, StreamedTurn) else None, []
        dialogue.tokens += len(ids)
        dialogue.segments += not goes_on
        dialogue.deadline_secs = turn.deadline_secs or math.inf
        dialogue.until = time.monotonic() + dialogue.deadline_secs
        return Continue(
            episode=dialogue.begun.episode,
            ids=ids,
            begins_segment=not goes_on,
            restarts=bool(dialogue.faults) and not dialogue.turns,
            reward=turn.reward,
            stop_strings=turn.stop_strings,
            room=min(room, turn.most_tokens or room),
            streams=dialogue.hear is not None,
        )

    def _limited(self, dialogue: _Dialogue, turn: Turn, limit: str) -> End | None:
        """Ends an episode at a limit.

        An environment of several conversations is told so in place of replies, and ends it itself.
        """
        if turn.after is None:
            return self._cut(dialogue, limit, turn.reward)
        dialogue.limit = limit
        self._give(dialogue, Reply("", is_cut=True))
        return None

    def _asked(self, dialogue: _Dialogue, turn: Turn) -> Exchange:
        """Renders a turn behind the exchange that it follows."""
        before = dialogue.before(turn)
        if before is None:
            step = self._bridge.first(turn)
            return Exchange(None, step.conversation, step.ids)
        assert before.reply is not None, "the history has replies"
        step = self._bridge.next(before.conversation, before.reply, before.tokens.tolist(), turn)
        if step.begins_segment and self._settings.rewrites == REFUSE:
            raise RunError(
                "The chat template wrote earlier messages of an episode anew, which"
                f" environment.rewrites={REFUSE} forbids: use environment.rewrites={SEGMENT}, and"
                " such an episode goes on in a new segment."
            )
        return Exchange(None if step.begins_segment else before, step.conversation, step.ids)

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
            segments=max(1, dialogue.segments),
            faults=(*dialogue.faults, *faults),
        )
        return End(dialogue.begun.episode, ending, reward)


def _line(why: str) -> str:
    """Returns the last line of a fault, which of a traceback is the exception."""
    lines = why.strip().splitlines() or [""]
    return lines[-1].strip()[:_LINE_CHARACTERS]
