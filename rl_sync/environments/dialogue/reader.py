"""Reads the policy's replies from their ids."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rl_sync.environments.dialogue.exchanges import Exchange
from rl_sync.environments.dialogue.tool_call_text import CallFormat, read_beginning, read_reply
from rl_sync.environments.interface import Reply
from rl_sync.tasks.tokenizers.tokenizer import BEFORE_TOKENS, Tokenizer, begun_reply


@dataclasses.dataclass(frozen=True)
class ReplyReader:
    """Reads replies.

    Attributes:
      tokenizer: the policy's tokenizer.
      reads: the format of tool calls; None if there are none.
    """

    tokenizer: Tokenizer
    reads: CallFormat | None = None

    def reply(self, asked: Exchange, ids: Sequence[int], is_cut: bool, calls_before: int) -> Reply:
        """Reads a whole reply to a prompt; see `read_reply`."""
        begun = self._begun(asked)
        return read_reply(self.tokenizer, ids, is_cut, self.reads, calls_before, begun)

    def beginning(self, asked: Exchange, ids: Sequence[int]) -> str:
        """Reads the content of a reply that is still being drawn; see `read_beginning`."""
        return read_beginning(self.tokenizer, ids, self.reads, self._begun(asked))

    def _begun(self, asked: Exchange) -> str:
        """Returns what a prompt has written of the reply: a message that is begun, or a mark."""
        if asked.conversation.is_begun:
            return asked.conversation.messages[-1].content
        return begun_reply(self.tokenizer, asked.given[-BEFORE_TOKENS:].tolist())
