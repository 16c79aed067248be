"""The bridge from one turn's ids to the next: token in, token out.

The ids that the policy saw and sampled are never decoded and encoded again. After a reply, the
bridge gives only the ids that follow it: the end of the reply if the policy did not sample it, the
new messages, and the header of the next reply. They are appended to the ids so far.

A chat template may also rewrite earlier messages: Qwen 3 drops the thinking of earlier replies.
Then the ids so far are no longer the beginning of the conversation, and a new segment begins with
the whole conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from rl_sync.environments.dialogue.conversation import (
    Conversation,
    has_marks,
    renderer_of,
    texts_and_numbers,
)
from rl_sync.environments.dialogue.sight import Sight
from rl_sync.environments.interface import Message, Turn
from rl_sync.sequence_images import TEXT, SequenceImages
from rl_sync.tasks.pictures.placed_images import PlacedImages
from rl_sync.tasks.tokenizers.tokenizer import Tokenizer, without_end

# A character that no reply and no template contains.
_ANY_REPLY = "\U000f0002"


class ReplyPrompt(NamedTuple):
    """The ids before a reply.

    Attributes:
      ids: T token ids, none of which the policy sampled here.
      begins_segment: whether they are the whole context; otherwise they are appended to the ids so
        far.
      conversation: the messages up to the reply, and the tools.
      images: images of the ids, which are not decoded yet; None for text alone.
    """

    ids: Int[np.ndarray, " T"]
    begins_segment: bool
    conversation: Conversation
    images: PlacedImages | None = None


class Bridge:
    """Makes the ids of turns.

    It holds no state of an episode, so one bridge serves many.

    Args:
      tokenizer: the policy's tokenizer. Conversations go through its chat template if its prompts
        do; otherwise contents are concatenated.
      sight: how the policy sees images; None if it reads text alone.
    """

    def __init__(self, tokenizer: Tokenizer, sight: Sight | None = None) -> None:
        self._tokenizer, self._sight = tokenizer, sight
        self._renderer = renderer_of(tokenizer, None if sight is None else sight.processor.marks)

    def first(self, turn: Turn) -> ReplyPrompt:
        """Returns the ids of an episode's first turn.

        Raises:
          ValueError: the chat template refuses the messages or the tools, they have no tokens, or
            an image cannot be shown; none is decoded.
        """
        conversation = Conversation().with_turn(turn)
        return self._anew(conversation, self._renderer.render(conversation, prompts=True))

    def can_say(self, text: str) -> bool:
        """Says whether a text can be encoded; tokenizers of characters cannot encode every text."""
        try:
            self._renderer.encode(text, begins=False)
        except ValueError:
            return False
        return True

    def next(
        self, conversation: Conversation, reply: Message, drawn: Sequence[int], turn: Turn
    ) -> ReplyPrompt:
        """Returns the ids that follow a reply, up to the next one.

        Args:
          conversation: the conversation before the reply.
          reply: the reply as a message (`Reply.message`).
          drawn: its ids as they were drawn, with the id that ended it, if one did.
          turn: the environment's answer.

        Raises:
          ValueError: as `first`.
        """
        answered = conversation.with_reply(reply)
        extended = answered.with_turn(turn)
        after = self._renderer.render(extended, prompts=True)
        rest = self._rest(conversation, answered, drawn, after)
        if rest is None:
            return self._anew(extended, after)
        ids, images = self._encoded(rest, extended, begins=False)
        new = self._behind_end(ids, drawn)
        if images is not None:
            images = images.without_first(len(ids) - len(new))
        return ReplyPrompt(_array(new), False, extended, images)

    def decoded(self, images: PlacedImages | None) -> SequenceImages | None:
        """Decodes the images of a prompt.

        Raises:
          ValueError: an image is damaged; the message names it.
        """
        if images is None:
            return None
        assert self._sight is not None, "a policy that sees placed them"
        return self._sight.decoded(images)

    def closing(self, before: Conversation, reply: str) -> str | None:
        """Returns what the template writes after a reply's own text; None if it cannot be told.

        Args:
          before: the conversation before the reply.
          reply: all that the template writes for the reply.
        """
        answered = before.with_reply(Message("assistant", _ANY_REPLY))
        closing = self._renderer.render(answered, prompts=False).rpartition(_ANY_REPLY)[2]
        if reply.endswith(closing):
            return closing
        # A reply with tool calls may be closed by another end than one without.
        ends = [self._tokenizer.decode_all([i]) for i in self._tokenizer.eos_ids]
        place = max(reply.rfind(end) for end in ends)
        return reply[place:] if place >= 0 else None

    def _anew(self, conversation: Conversation, rendered: str) -> ReplyPrompt:
        ids, images = self._encoded(rendered, conversation, begins=True)
        if not len(ids):
            raise ValueError("all messages are empty, and a reply follows a text: write one")
        return ReplyPrompt(_array(ids), True, conversation, images)

    def _encoded(
        self, rendered: str, conversation: Conversation, *, begins: bool
    ) -> tuple[list[int], PlacedImages | None]:
        """Encodes a rendered conversation or a part of one, with the images in it."""
        if not has_marks(rendered):
            return self._renderer.encode(rendered, begins), None
        if self._sight is None:
            raise ValueError(
                "it shows an image, and the policy reads text alone: use a checkpoint with vision"
                " (Gemma 3, SmolVLM), or set model.vision.image_size; the environment's class says"
                " shows_images = True"
            )
        texts, numbers = texts_and_numbers(rendered)
        ids: list[int] = self._renderer.encode("", begins) if begins else []
        at: list[int] = [TEXT] * len(ids)
        shown = [conversation.images[number] for number in numbers]
        pieces = self._sight.pieces(texts, shown)
        for piece in pieces:
            if isinstance(piece, str):
                new = self._renderer.encode(piece, begins=False)
                at += [TEXT] * len(new)
            else:
                new = [self._sight.token] * len(piece)
                at += piece
            ids += new
        if at[-1] != TEXT:
            raise ValueError("it ends with an image, and a reply follows a text: write one after")
        return ids, PlacedImages(np.array(at, np.int32), self._sight.bounded(shown))

    def _rest(
        self, before: Conversation, answered: Conversation, drawn: Sequence[int], after: str
    ) -> str | None:
        """Returns the part of the later rendering `after` that follows the reply.

        Returns None if `after` does not begin with what the policy saw and replied.
        """
        prompt = self._renderer.render(before, prompts=True)
        as_drawn = prompt + self._renderer.cover(self._text(drawn))
        if after.startswith(as_drawn):
            return after[len(as_drawn) :]
        # The template may write a reply in its own words, such as a tool call with other spaces.
        # If it does so both now and later, nothing is written anew.
        alone = self._renderer.render(answered, prompts=False)
        if not (alone.startswith(prompt) and after.startswith(alone)):
            return None
        closing = self.closing(before, alone[len(prompt) :])
        return None if closing is None else closing + after[len(alone) :]

    def _text(self, drawn: Sequence[int]) -> str:
        return self._tokenizer.decode_all([int(i) for i in without_end(self._tokenizer, drawn)])

    def _behind_end(self, ids: list[int], drawn: Sequence[int]) -> list[int]:
        """Leaves out the end of the reply, if the policy drew that end itself."""
        if not len(drawn) or drawn[-1] not in self._tokenizer.end_ids or drawn[-1] not in ids:
            return ids
        place = ids.index(drawn[-1])
        is_closing = not self._tokenizer.decode_all(ids[:place]).strip()
        return ids[place + 1 :] if is_closing else ids


def _array(ids: list[int]) -> Int[np.ndarray, " T"]:
    return np.array(ids, np.int32)
