"""Host of agents: programs in worker processes, and the endpoint that they ask for replies."""

from __future__ import annotations

import dataclasses
import json
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rl_sync.addons.agents.endpoint.http_server import AgentEndpoint
from rl_sync.addons.agents.endpoint.inbox import Inbox
from rl_sync.addons.agents.endpoint.reasoning import Reasoning
from rl_sync.addons.agents.endpoint.responses import MODEL
from rl_sync.ending import FAILURES
from rl_sync.environments.hosts.construction import Construction
from rl_sync.environments.hosts.episode_limits import Access, HostLimits
from rl_sync.environments.hosts.host import Failure, HostAnswer, Result
from rl_sync.environments.hosts.process_host import ProcessHost
from rl_sync.environments.interface import Outcome, Reply, Turn
from rl_sync.environments.opponents import Seating
from rl_sync.images import Image
from rl_sync.thoughts import KNOWN, ThoughtMarks

_POLL_SECS = 0.02
_GO = Reply("")
_NEVER = float("inf")


@dataclasses.dataclass
class _AgentEpisode:
    """An episode in progress.

    Attributes:
      row: the file with its row of data.
      replies: replies to the agent's requests so far.
      quiet_since: time since which the agent has sent no request.
      last_until: deadline of an agent whose episode has reached a limit.
      end: end of its process.
    """

    key: str
    inbox: Inbox
    row: Path
    replies: int = 0
    quiet_since: float = _NEVER
    last_until: float = _NEVER
    end: Outcome | Failure | None = None


class AgentHost:
    """Runs the agent of each episode in a worker process; its requests are the episode's turns.

    A request is a turn with `after`: an episode may have several conversations. Several requests of
    one episode may be in flight, up to `limits.requests`; others wait. An agent that sends none for
    `limits.limit_secs`, or runs longer than its `deadline_secs`, is killed with all processes that
    it started. So is an agent that still runs `limits.limit_secs` after its episode has reached a
    limit.

    Args:
      reference: a class that says `asks_endpoint = True`, with options.
      limits: limits of time, memory and number.
      access: the ways into the endpoint.
      thoughts: marks around the reasoning of replies.
      count: counts the tokens of a conversation; None if nothing here can.

    Raises:
      ValueError: the reference cannot be imported, or its options cannot be used.
      OSError: the endpoint cannot listen at its address.
    """

    def __init__(
        self,
        reference: str,
        limits: HostLimits | None = None,
        access: Access | None = None,
        thoughts: tuple[ThoughtMarks, ...] = KNOWN,
        count: Callable[[Turn], int] | None = None,
    ) -> None:
        self._limits = limits or HostLimits()
        construction = Construction.of(reference)
        agent = construction.maker(**construction.options)
        self._deadline_secs = agent.deadline_secs
        self._reasoning = Reasoning(agent.separate_reasoning, thoughts)
        in_all = dataclasses.replace(self._limits, limit_secs=self._deadline_secs)
        self._processes = ProcessHost(reference, in_all)
        try:
            self._endpoint = AgentEndpoint(access, count)
        except BaseException:
            self._processes.close()
            raise
        self._rows = tempfile.TemporaryDirectory(prefix="rl_sync_rows_")
        self._episodes: dict[int, _AgentEpisode] = {}
        self._arrived = threading.Event()

    @property
    def queued(self) -> int:
        """Number of episodes that cannot begin before others end."""
        return self._processes.queued

    def begin(
        self, episode: int, task: Mapping[str, Any], seed: int, seating: Seating | None = None
    ) -> None:
        """Starts an agent, as soon as a worker is free.

        Raises:
          ValueError: the episode is already in progress, or the row is not JSON.
        """
        del seating  # An agent plays alone.
        if episode in self._episodes:
            raise ValueError(f"Episode {episode} is under way already: end it, then begin it anew.")
        text = _json(task)
        inbox = Inbox(self._arrived, self._reasoning)
        key = self._endpoint.open(inbox)
        row = Path(self._rows.name, f"{key}.json")
        row.write_text(text)
        self._episodes[episode] = _AgentEpisode(key, inbox, row)
        base_url = self._endpoint.base_url(key)
        api_key = self._endpoint.api_key(key)
        settings = {"base_url": base_url, "key": api_key, "model": MODEL, "row_path": str(row)}
        self._processes.begin(episode, settings, seed)

    def step(self, episode: int, reply: Reply) -> None:
        """Gives the reply to the request of a turn.

        Raises:
          ValueError: the episode is not in progress, or has no such request.
        """
        found = self._episodes.get(episode)
        if found is None or not found.inbox.under_way:
            why = "is not under way" if found is None else "has yet to answer"
            raise ValueError(f"Episode {episode} {why}: fetch its answer, then step.")
        found.inbox.answer(reply)
        found.replies += 1
        found.quiet_since = time.monotonic()
        if reply.drawn is None and reply.is_cut:
            found.last_until = min(found.last_until, found.quiet_since + self._limits.limit_secs)

    def answers(self, timeout_secs: float) -> list[HostAnswer]:
        """Returns answers that are ready, each once.

        Args:
          timeout_secs: maximum wait for the first.
        """
        until = time.monotonic() + timeout_secs
        while True:
            self._arrived.clear()
            self._hear_of_processes()
            ready = [
                HostAnswer(number, result)
                for number, episode in self._episodes.items()
                for result in self._results(episode)
            ]
            for number, result in ready:
                if not isinstance(result, Turn):
                    self.end(number)
            left = until - time.monotonic()
            if ready or left <= 0:
                return ready
            self._arrived.wait(min(left, _POLL_SECS))

    def end(self, episode: int) -> None:
        """Abandons an episode: kills its agent, and rejects its requests."""
        found = self._episodes.pop(episode, None)
        if found is None:
            return
        self._processes.kill(episode)
        self._endpoint.shut(found.key)
        found.row.unlink(missing_ok=True)

    def close(self) -> None:
        """Ends all episodes, the processes and the endpoint."""
        for episode in list(self._episodes):
            self.end(episode)
        self._processes.close()
        self._endpoint.close()
        self._rows.cleanup()

    def __enter__(self) -> AgentHost:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _hear_of_processes(self) -> None:
        """Starts agents whose workers are ready, and records those that have ended."""
        for number, result in self._processes.answers(0.0):
            episode = self._episodes[number]
            if isinstance(result, Turn):
                episode.quiet_since = time.monotonic()
                self._processes.step(number, _GO)
            else:
                episode.end = result

    def _results(self, episode: _AgentEpisode) -> list[Result]:
        """Returns new requests of an episode, or its end once all requests have their replies."""
        now, is_idle = time.monotonic(), not episode.inbox.under_way
        if is_idle and episode.end is not None:
            return [self._ended(episode, episode.end)]
        if is_idle and now > episode.last_until:
            return [_judged(episode, Outcome({}))]
        turns: list[Result] = []
        while episode.inbox.under_way < self._limits.requests:
            if (turn := episode.inbox.take()) is None:
                break
            turns.append(turn)
        if is_idle and not turns and now - episode.quiet_since > self._limits.limit_secs:
            secs = self._limits.limit_secs
            return [
                Failure(f"the agent sent no request for {secs:g} s, and was killed", "time-out")
            ]
        return turns

    def _ended(self, episode: _AgentEpisode, end: Outcome | Failure) -> Outcome | Failure:
        """Returns the result of an episode whose agent has ended."""
        if isinstance(end, Failure):
            if end.kind == "time-out" and episode.quiet_since < _NEVER:
                secs = self._deadline_secs
                why = f"the agent ran longer than deadline_secs={secs:g}, and was killed"
                return Failure(why, "time-out")
            return end
        if end.reason in FAILURES:
            return Failure(end.why, "time-out" if end.reason == "time-out" else "raised")
        if not episode.replies:
            why = (
                "the agent ended without a request: it is to use OPENAI_BASE_URL or"
                " ANTHROPIC_BASE_URL"
            )
            return Failure(why, "raised")
        return _judged(episode, end)


def _judged(episode: _AgentEpisode, end: Outcome) -> Outcome:
    """Adds the rewards that the agent posted to those that it returned."""
    posted = episode.inbox.posted
    if posted is None:
        return end
    rewards = {**end.rewards, **posted.rewards}
    return dataclasses.replace(end, rewards=rewards, metrics=posted.metrics, why="")


def _json(task: Mapping[str, Any]) -> str:
    """Writes a row; images become data URLs."""
    try:
        return json.dumps(dict(task), default=_written)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"The row of an episode cannot be given to an agent as JSON: {error}. Leave the field"
            " out, or let it name a file."
        ) from error


def _written(value: object) -> str:
    if isinstance(value, Image):
        return value.data_url()
    raise TypeError(f"a {type(value).__name__} has no form in JSON")
