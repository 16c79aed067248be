"""The calls that a teacher server answers, as records, and the records of its answers."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, UInt32

from rl_sync.isolation.codec import record
from rl_sync.messages.call import Call


@record
class TeacherDescription(NamedTuple):
    """A teacher server's description of itself.

    Attributes:
      name: checkpoint or run that teaches.
      vocabulary: digest of its tokens; see `rl_sync.tasks.tokenizers.vocabularies.digest_of`.
      vocab_size: number of its tokens.
      row_tokens: maximum number of tokens of a trajectory.
    """

    name: str
    vocabulary: str
    vocab_size: int
    row_tokens: int


@dataclasses.dataclass(frozen=True)
class AskTeacherDescription(Call[TeacherDescription]):
    """Asks a server for its teacher."""


@record
class TaughtRows(NamedTuple):
    """Trajectories of a group, for a teacher; see `rl_sync.types.Group`.

    Attributes:
      mask: true at the tokens that are asked about.
    """

    tokens: Int[np.ndarray, "G T"]
    mask: Bool[np.ndarray, "G T"]
    segments: Int[np.ndarray, "G T"] | None
    sampling_masks: UInt32[np.ndarray, "G E 3"] | None


@record
class TeacherAnswer(NamedTuple):
    """A teacher's log-probabilities at the N tokens under the mask of a group, row by row.

    Attributes:
      logprobs: of the K best tokens, or of the token itself (K = 1), in nats.
      ids: the best tokens, the best first; None for the token itself.
    """

    logprobs: Float[np.ndarray, "N K"]
    ids: Int[np.ndarray, "N K"] | None


@dataclasses.dataclass(frozen=True)
class AskTeacher(Call[list[TeacherAnswer]]):
    """Asks for log-probabilities of tokens of groups; the answers are in the groups' order.

    The call may take long; see `rl_sync.cluster.pending`.

    Attributes:
      vocabulary: see `TeacherDescription`; a server with another one rejects the call.
      best: K, the number of best tokens at each token; 0 for the token itself.
      temperature, repetition_penalty: the distribution; see `LogprobSettings`.
    """

    vocabulary: str
    groups: list[TaughtRows]
    best: int
    temperature: float
    repetition_penalty: float
