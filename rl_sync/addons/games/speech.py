"""Speech in games: the policy's text after its thoughts, and the action in it."""

from __future__ import annotations

import re

from rl_sync.environments.interface import Reply

_BRACKETED = re.compile(r"\[([^\[\]]*)\]")


def said(reply: Reply) -> str:
    """Returns the text after the thoughts; games must not read moves from thoughts."""
    return reply.answer.strip()


def action(text: str) -> str:
    """Returns the last part in square brackets, or the whole text if there is none."""
    bracketed = _BRACKETED.findall(text)
    return (bracketed[-1] if bracketed else text).strip()
