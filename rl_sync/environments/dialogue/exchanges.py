"""History of an episode: its exchanges, each a prompt and the policy's reply, with their ids.

Exchanges form a tree: each begins a conversation, or follows another one and begins with its ids.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import Int

from rl_sync.environments.dialogue.conversation import Conversation
from rl_sync.environments.interface import Message
from rl_sync.tasks.pictures.placed_images import PlacedImages

_NOTHING = np.zeros(0, np.int32)


@dataclasses.dataclass(frozen=True, eq=False)
class Exchange:
    """A prompt of the policy, and its reply once there is one.

    Attributes:
      before: exchange whose ids come first; None if `given` is the whole prompt.
      conversation: the messages up to the reply.
      given: T ids after those of `before`, none of which the policy sampled.
      tokens: ids of the reply.
      reply: the reply as a message; None until there is one.
      segment: number of the episode's segment that contains it.
      images: images of `given`; None for text alone.
    """

    before: Exchange | None
    conversation: Conversation
    given: Int[np.ndarray, " T"]
    tokens: Int[np.ndarray, " T"] = dataclasses.field(default_factory=lambda: _NOTHING)
    reply: Message | None = None
    segment: int = 0
    images: PlacedImages | None = None

    @property
    def prompt(self) -> Int[np.ndarray, " P"]:
        """The ids that the policy sees."""
        parts, at = [self.given], self.before
        while at is not None:
            parts += [at.tokens, at.given]
            at = at.before
        return np.concatenate(parts[::-1])

    @property
    def prompt_images(self) -> PlacedImages | None:
        """The images of `prompt`; None for text alone."""
        chain: list[Exchange] = []
        one: Exchange | None = self
        while one is not None:
            chain.insert(0, one)
            one = one.before
        found, tokens = PlacedImages(), 0
        for one in chain:
            found = found.followed(tokens, one.images)
            tokens += len(one.given) + len(one.tokens)
        return found if found.images else None
