"""Interface of a replay buffer: its samples and errors."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

import numpy as np

Backend = Literal["reverb", "embedded"]

Columns = Mapping[str, np.ndarray]
"""Named arrays of an item, with any shapes; see `rl_sync.replay.tensors` for the dtypes."""

RPC_TIMEOUT_SECS = 30.0


class ReplayError(RuntimeError):
    """The replay buffer refused a request; the message names it and the reason."""


class ReplayTimeoutError(ReplayError, TimeoutError):
    """The replay buffer could not answer a request in the given time."""


class ReplayUnavailableError(ReplayError):
    """The replay server cannot be reached, or has ended."""


@dataclasses.dataclass(frozen=True)
class Sample:
    """One item sampled from a table.

    Attributes:
      key: id of the item.
      priority: priority at the time of sampling.
      times_sampled: number of times it was sampled, including this time.
      probability: probability of this item at the time of sampling.
      table_size: number of items in the table at the time of sampling.
      columns: inserted arrays, as copies for the caller. Strings are returned as object arrays
        of bytes.
    """

    key: int
    priority: float
    times_sampled: int
    probability: float
    table_size: int
    columns: dict[str, np.ndarray]
