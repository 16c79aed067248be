"""Interface of environments: the protocol, and the records that it takes and returns.

An episode is one conversation. `reset` gives its first turn; `step` gives the turn after a reply of
the policy, or the outcome that ends the episode. A task of one prompt and one reward is an
episode of one turn.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np
from jaxtyping import Float, Int

from rl_sync.images import Image
from rl_sync.isolation.codec import record
from rl_sync.tasks.pictures.places import PLACE
from rl_sync.thoughts import split

ANEW = -1
"""Value of `Turn.after` for messages that are a whole conversation."""

Reason = Literal[
    "done", "turns", "tokens", "context", "parse error", "time-out", "environment failure"
]
"""The end of an episode.

`done`: the environment ended it. `turns`, `tokens`: a limit of the episode.
`context`: the conversation left no room for a reply. `parse error`: a reply could not be read.
`time-out`: the deadline of a turn. `environment failure`: the environment raised an error, or
answered nonsense.
"""

ToolSchema = Mapping[str, Any]
"""A tool's JSON schema, as chat templates of `transformers` take it."""


@record
@dataclasses.dataclass(frozen=True)
class ToolCall:
    """A call of a tool by the policy.

    Attributes:
      name: the tool's name, which may not exist.
      arguments: its arguments by name, as JSON values.
      call_id: the call's name, to which the tool's answer refers; unique within a conversation.
    """

    name: str
    arguments: Mapping[str, Any]
    call_id: str | None = None


@record
@dataclasses.dataclass(frozen=True)
class Message:
    """A message of a conversation.

    Attributes:
      role: `system`, `user`, `assistant`, `tool`, or another that the chat template knows.
      content: its text, with U+FFFC where an image stands. The names of special tokens in it are
        plain text. It may be given as a list of parts: texts, images in any form that `Image.of`
        takes, and parts of the OpenAI protocol (`text`, `image_url` with a data URL).
      tool_calls: the calls in an assistant's message, which are not part of the content.
      name: the tool that a tool's message comes from.
      tool_call_id: the call that a tool's message answers.
      images: its images, in the order of their places. If the content is a text without places,
        they stand before it.

    Raises:
      ValueError: a part is neither a text nor an image, or images and places differ in number.
    """

    role: str
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    name: str | None = None
    tool_call_id: str | None = None
    images: tuple[Image, ...] = ()

    def __post_init__(self) -> None:
        content: Any = self.content
        if isinstance(content, list | tuple):
            content, images = _text_and_images(content)
            object.__setattr__(self, "images", (*images, *self.images))
        if self.images and PLACE not in content:
            content = PLACE * len(self.images) + content
        object.__setattr__(self, "content", content)
        if self.images and content.count(PLACE) != len(self.images):
            raise ValueError(
                f"A message has {len(self.images)} images and {content.count(PLACE)} places for"
                " them (U+FFFC): give each image one place, or no places, for images before the"
                " text."
            )

    def for_template(self) -> dict[str, Any]:
        """Returns the message as chat templates of `transformers` take it, without empty fields."""
        calls = [
            {
                "type": "function",
                "function": {"name": call.name, "arguments": dict(call.arguments)},
            }
            | ({} if call.call_id is None else {"id": call.call_id})
            for call in self.tool_calls
        ]
        optional = {"tool_calls": calls, "name": self.name, "tool_call_id": self.tool_call_id}
        present = {name: value for name, value in optional.items() if value}
        return {"role": self.role, "content": self.content, **present}


def _text_and_images(parts: Sequence[object]) -> tuple[str, list[Image]]:
    """Reads the parts of a content: the text with places of images, and the images.

    Raises:
      ValueError: a part is neither a text nor an image.
    """
    texts: list[str | None] = []
    images = []
    for number, part in enumerate(parts):
        text = part.get("text", part) if isinstance(part, Mapping) else part
        if isinstance(text, str):
            texts.append(text)
            continue
        try:
            images.append(Image.of(part))
        except ValueError as error:
            raise ValueError(f"content[{number}]: {error}") from error
        texts.append(None)
    # U+FFFC in a user's text would be read as an image.
    kept = [text.replace(PLACE, "\ufffd") if images and text else text for text in texts]
    return "".join(PLACE if text is None else text for text in kept), images


@record
@dataclasses.dataclass(frozen=True)
class Turn:
    """New messages to the policy, which it has to reply to.

    Attributes:
      messages: the messages since the policy's last reply, at least one. The reply itself, and
        earlier messages, are not repeated.
      tools: schemas of the tools that may be called from now on. If empty, the tools of the
        previous turn stay.
      stop_strings: texts that end the reply; they stay in it.
      deadline_secs: the time for the reply, from the turn on; None for no limit.
      reward: the reward of the reply that led to this turn; 0 in the first turn.
      after: number (from 0) of the episode's reply that the messages follow; None for the last
        reply; `ANEW` if they are a whole conversation. So an episode may have several
        conversations. Unless it is None, exactly `tools` may be called, even if they are empty.
      most_tokens: maximum number of tokens of the reply; None for the maximum of the run.
      player: in a game of several players, the number of the player whose turn it is, from 0. The
        messages and the conversation are this player's.
      moves: legal replies for scripted opponents; policies do not see them.
      request: number of an agent's request, since an episode may have several in flight; 0 if each
        turn follows the reply to the previous one.
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolSchema, ...] = ()
    stop_strings: tuple[str, ...] = ()
    deadline_secs: float | None = None
    reward: float = 0.0
    after: int | None = None
    most_tokens: int | None = None
    player: int = 0
    moves: tuple[str, ...] = ()
    request: int = 0


@record
@dataclasses.dataclass(frozen=True, eq=False)
class DrawnReply:
    """The ids of a reply (T tokens) and of everything before it (P tokens).

    Attributes:
      prompt: ids that the policy saw.
      tokens: ids that it sampled.
      logprobs: their log-probabilities under the distribution sampled from, in nats.
      versions: the versions of the weights that drew them.
    """

    prompt: Int[np.ndarray, " P"]
    tokens: Int[np.ndarray, " T"]
    logprobs: Float[np.ndarray, " T"]
    versions: Int[np.ndarray, " T"]


@dataclasses.dataclass(frozen=True, eq=False)
class PartialReply:
    """A part of a reply that is still being drawn.

    Attributes:
      content: the start of the reply's content, as far as it can no longer change.
      drawn: token ids sampled since the previous part.
    """

    content: str
    drawn: DrawnReply


@dataclasses.dataclass(frozen=True)
class StreamedTurn(Turn):
    """A turn of the endpoint, which gets the reply while it is being sampled.

    Attributes:
      hear: function that is called with each part of the reply except the last.
    """

    hear: Callable[[PartialReply], None] = dataclasses.field(kw_only=True)


@record
@dataclasses.dataclass(frozen=True)
class Reply:
    """A reply of the policy.

    Attributes:
      text: all of its text, without the token that ends it; special tokens inside are visible.
      tool_calls: the calls that could be read in it.
      malformed: a message to the policy about each call that could not be read.
      is_cut: whether a limit ended it, not the policy.
      content: the text without the parsed calls; None if it is the whole text.
      drawn: its ids; None if the policy sampled nothing. For a turn with `after`, this happens
        after a limit of the episode is reached, or if there is a `refusal`.
      refusal: reason why the policy could not get a turn with `after`.
      request: see `Turn`.
      begun: what the prompt has already written of it, such as `<think>`.
      spoken: the text without thoughts; None to split `text`. Read `answer` instead.
    """

    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    malformed: tuple[str, ...] = ()
    is_cut: bool = False
    content: str | None = None
    drawn: DrawnReply | None = None
    refusal: str = ""
    request: int = 0
    begun: str = ""
    spoken: str | None = None

    @property
    def answer(self) -> str:
        """The text without the policy's thoughts; empty if it ends inside them."""
        return split(self.text, self.begun).answer if self.spoken is None else self.spoken

    def message(self) -> Message:
        """Returns the reply as a message of the assistant."""
        content = self.text if self.content is None else self.content
        return Message("assistant", content, tool_calls=self.tool_calls)


@record
@dataclasses.dataclass(frozen=True)
class Standing:
    """The end of a game for one of several players.

    Attributes:
      rewards: rewards by name, which count for the player's whole episode.
      metrics: other numbers by name, to be logged.
    """

    rewards: Mapping[str, float]
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)


@record
@dataclasses.dataclass(frozen=True)
class Outcome:
    """The end of an episode.

    Attributes:
      rewards: rewards by name, which count for the whole episode; rewards of replies are in turns.
        Empty if the episode could not be judged, and so has no score; `why` then says why.
      metrics: other numbers by name, to be logged.
      reason: reason of the end.
      messages: last messages, for the record; the policy does not see them.
      why: more about the reason.
      standings: in a game of several players, the standing of each player, in place of rewards.
    """

    rewards: Mapping[str, float]
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    reason: Reason = "done"
    messages: tuple[Message, ...] = ()
    why: str = ""
    standings: tuple[Standing, ...] = ()


@record
@dataclasses.dataclass(frozen=True, kw_only=True)
class SeatedTurn(Turn):
    """A turn of a policy at a table with other players; see `rl_sync.environments.game_table`.

    Attributes:
      learns: whether it is a turn of the player who learns, not of an opponent.
      seat: number of the player who learns.
      played: scripted moves since the previous answer: player, name and reply.
    """

    learns: bool
    seat: int
    played: tuple[tuple[int, str, str], ...]


@record
@dataclasses.dataclass(frozen=True, kw_only=True)
class SeatedOutcome(Outcome):
    """The end of a game for the player who learns; see `SeatedTurn`."""

    seat: int
    played: tuple[tuple[int, str, str], ...]


class Environment(Protocol):
    """One episode at a time: `reset`, then `step` until it returns an outcome.

    After `reset`, a game of several players has an attribute `players`: their number.

    Each method is plain or `async`. `close` is called once, when no episode will follow, even after
    an error.
    """

    def reset(self, task: Mapping[str, Any], seed: int) -> Turn | Awaitable[Turn]:
        """Begins an episode.

        Args:
          task: a row of the data.
          seed: the only source of the environment's randomness.
        """

    def step(self, reply: Reply) -> Turn | Outcome | Awaitable[Turn | Outcome]:
        """Answers a reply with the next turn, or ends the episode."""

    def close(self) -> Awaitable[None] | None:
        """Releases the environment's resources."""


def players_of(environment: Environment) -> int:
    """Returns the number of players of a game after `reset`; 1 if it has no such attribute."""
    return getattr(environment, "players", 1)
