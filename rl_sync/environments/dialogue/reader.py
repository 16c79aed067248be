"""Reads the policy's replies from their ids."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rl_sync.environments.dialogue.tool_call_text import CallFormat, read_beginning, read_reply
from rl_sync.environments.interface import Reply
from rl_sync.tasks.tokenizers.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class ReplyReader:
    """Reads replies.

    Attributes:
      tokenizer: the policy's tokenizer.
      reads: the format of tool calls; None if there are none.
    """

    tokenizer: Tokenizer
    reads: CallFormat | None = None

    def reply(
        self, ids: Sequence[int], is_cut: bool, calls_before: int, before: Sequence[int] = ()
    ) -> Reply:
        """Reads a whole reply; see `read_reply`."""
        return read_reply(self.tokenizer, ids, is_cut, self.reads, calls_before, before)

    def beginning(self, ids: Sequence[int], before: Sequence[int] = ()) -> str:
        """Reads the content of a reply that is still being drawn; see `read_beginning`."""
        return read_beginning(self.tokenizer, ids, self.reads, before)
