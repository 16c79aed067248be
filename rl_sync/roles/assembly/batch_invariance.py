"""Says whether this process can compute a batch-invariant model: see `rl_sync.models.invariant`."""

from __future__ import annotations

import os

import jaxlib

from rl_sync.models.platform import platform
from rl_sync.settings.records import require

_FIRST_JAXLIB = (0, 12)
_ROUNDS = "--xla_allow_excess_precision=false"


def require_batch_invariance(dtype: str) -> None:
    """Makes sure that a dtype's sums have the same bits for any number of rows.

    Raises:
      ConfigError: they do not, on this platform or with this jaxlib.
    """
    require(
        platform() == "cpu",
        f"model.batch_invariant=true holds on CPUs alone, and this is a {platform()}: leave it out,"
        " or use rollout.score=trainer.",
    )
    require(
        jaxlib.version.__version_info__ >= _FIRST_JAXLIB,
        f"model.batch_invariant=true holds with jaxlib 0.12 or later, and this is"
        f" {jaxlib.__version__}: leave it out, or use Python 3.12 or later, which has it.",
    )
    rounds = _ROUNDS in os.environ.get("XLA_FLAGS", "")
    require(
        dtype == "float32" or (dtype == "bfloat16" and rounds),
        f"model.batch_invariant=true does not hold in {dtype} here: use model.dtype=float32, or"
        f" model.dtype=bfloat16 with XLA_FLAGS={_ROUNDS} in the environment, with which XLA rounds"
        " wherever the program says so.",
    )
