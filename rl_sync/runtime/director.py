"""The director: has environments answer the policy's replies, and turns both into token ids."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Int

from rl_sync.actors.episodes import Begin, Continue, End, Said
from rl_sync.environments.bridge import Bridge, Step
from rl_sync.environments.conversation import Conversation
from rl_sync.environments.hosts.host import Failure, Host, Result
from rl_sync.environments.hosts.limits import START_SECS
from rl_sync.environments.interface import Outcome, Reply, Turn
from rl_sync.environments.settings import REFUSE, SEGMENT, EnvironmentSettings
from rl_sync.processes.failures import RunError
from rl_sync.processes.messages import record
from rl_sync.types import FAILURES, Ending

_POLL_SECS = 0.25

for _class in (Continue, End):
    record(_class)


@dataclasses.dataclass
class _Dialogue:
    """An episode so far.

    Attributes:
      begun: what it began with; it begins again with the same after a failure.
      attempt: how often it began before.
      conversation: the messages up to the last reply.
      tokens: of all its segments.
      turns, segments: replies, and runs of append-only tokens.
      calls: calls of tools.
      rewards: the sum of the rewards of its turns.
      deadline_secs, until: the longest time for the reply to the last turn, and its end.
      drawn, reply: the last reply, as ids and as it was read.
    """

    begun: Begin
    attempt: int = 0
    conversation: Conversation = dataclasses.field(default_factory=Conversation)
    tokens: int = 0
    turns: int = 0
    segments: int = 0
    calls: int = 0
    rewards: float = 0.0
    deadline_secs: float = math.inf
    until: float = math.inf
    drawn: Int[np.ndarray, " T"] | None = None
    reply: Reply | None = None


class Director:
    """Plays the part of the environments for an `EpisodeEngine`.

    Args:
      host: runs the environments.
      bridge: turns messages into ids.
      read: reads a reply, from its ids, whether it was cut, and the number of calls before it.
      settings: the limits of an episode.
    """

    def __init__(
        self,
        host: Host,
        bridge: Bridge,
        read: Callable[[Sequence[int], bool, int], Reply],
        settings: EnvironmentSettings,
    ) -> None:
        self._host, self._bridge, self._read, self._settings = host, bridge, read, settings
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
            dialogue.turns += 1
            dialogue.tokens += len(said.tokens)
            reply = self._read(said.tokens.tolist(), said.is_cut, dialogue.calls)
            dialogue.calls += len(reply.tool_calls)
            dialogue.drawn, dialogue.reply = said.tokens, reply
            if time.monotonic() > dialogue.until:
                late = f"the reply took longer than the {dialogue.deadline_secs:g} s of its turn"
                self._ready.append(self._cut(dialogue, "time-out", why=late))
                continue
            self._awaited.add(said.episode)
            self._host.step(said.episode, reply)

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

    def _heard(self, episode: int, answer: Result) -> Continue | End | None:
        """Returns what follows from the answer of an environment; None where it is asked again."""
        if episode not in self._awaited:
            return None  # Of an environment that was given up.
        self._awaited.discard(episode)
        dialogue = self._dialogues[episode]
        if isinstance(answer, Failure):
            return self._failed(dialogue, answer)
        if isinstance(answer, Outcome):
            return self._end(dialogue, answer.rewards, answer.metrics, answer.reason)
        return self._continued(dialogue, answer)

    def _failed(self, dialogue: _Dialogue, failure: Failure) -> End | None:
        """Begins an episode again, or ends it where that was done often enough."""
        episode = dialogue.begun.episode
        if dialogue.attempt + 1 < self._settings.attempts:
            self._dialogues[episode] = _Dialogue(dialogue.begun, dialogue.attempt + 1)
            self._ask_for_first_turn(dialogue.begun)
            return None
        reason = "time-out" if failure.kind == "time-out" else "environment failure"
        return self._end(dialogue, {}, {}, reason, failure.why)

    def _continued(self, dialogue: _Dialogue, turn: Turn) -> Continue | End | None:
        """Renders a turn, or ends an episode that has no room for it.

        One that cannot be rendered is a fault of the environment.
        """
        dialogue.rewards += turn.reward
        if dialogue.turns >= self._settings.max_turns:
            return self._cut(dialogue, "turns", turn.reward)
        try:
            step = self._rendered(dialogue, turn)
        except ValueError as error:
            self._host.end(dialogue.begun.episode)
            return self._failed(dialogue, Failure(f"its turn cannot be said: {error}", "nonsense"))
        dialogue.conversation = step.conversation
        room = self._settings.max_tokens - dialogue.tokens - len(step.ids)
        if room < 1:
            return self._cut(dialogue, "context", turn.reward)
        dialogue.tokens += len(step.ids)
        dialogue.segments += step.begins_segment
        dialogue.deadline_secs = turn.deadline_secs or math.inf
        dialogue.until = time.monotonic() + dialogue.deadline_secs
        return Continue(
            episode=dialogue.begun.episode,
            ids=np.asarray(step.ids, np.int32),
            begins_segment=step.begins_segment,
            restarts=dialogue.attempt > 0 and not dialogue.turns,
            reward=turn.reward,
            stop_strings=turn.stop_strings,
            room=room,
        )

    def _rendered(self, dialogue: _Dialogue, turn: Turn) -> Step:
        if dialogue.drawn is None or dialogue.reply is None:
            return self._bridge.first(turn)
        step = self._bridge.next(
            dialogue.conversation, dialogue.reply.message(), dialogue.drawn.tolist(), turn
        )
        if step.begins_segment and self._settings.rewrites == REFUSE:
            raise RunError(
                "The chat template wrote earlier messages of an episode anew, which"
                f" environment.rewrites={REFUSE} forbids: use environment.rewrites={SEGMENT}, and"
                " such an episode goes on in a new segment."
            )
        return step

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
        ending = Ending(
            rewards={} if reason in FAILURES else {**of_turns, **rewards},
            metrics=dict(metrics),
            reason=reason,
            why=why,
            turns=dialogue.turns,
            segments=max(1, dialogue.segments),
        )
        return End(dialogue.begun.episode, ending, reward)
