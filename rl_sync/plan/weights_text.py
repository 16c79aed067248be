"""Text on what travels from the trainer to the explorers: before a run, and after it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import safetensors
from jaxtyping import Float

from rl_sync.models.huggingface.reading import locate
from rl_sync.records.metric_catalog import MetricValues
from rl_sync.records.run_totals import WEIGHTS
from rl_sync.settings.run_settings import RunSettings
from rl_sync.transfer import TRANSFERS
from rl_sync.weights.deltas.changed_share import expected_share

_ROWS_SHARE = 64
_ROW_STEP = 64


def describe_travel(settings: RunSettings) -> list[str]:
    """Returns the lines of `plan` on the bytes that a version takes."""
    what = "The adapters alone travel" if settings.model.lora.rank else "Weights travel"
    rate, dtype, share = _expected(settings)
    at = f"at a learning rate of {rate:g} about {share:.0%} of the {dtype} values change a step"
    if settings.deltas:
        lines = [
            f"- {what} as what changed (sync.delta={settings.sync.delta}): {at} (an estimate)."
        ]
        if settings.schedule.pull == "latest":
            lines.append(
                "- Explorers go on generating while weights travel; that time counts toward"
                " staleness."
            )
        if settings.sync.fanout:
            lines.append(
                f"- The trainer sends them to {settings.sync.fanout} of {settings.explorers}"
                " explorers, and each explorer hands them on to as many."
            )
        return lines
    if not TRANSFERS[settings.transfer].has_deltas:
        return [f"- {what} whole, from device to device."]
    return [f"- {what} whole (sync.delta={settings.sync.delta}): {at}."]


def describe_traffic(settings: RunSettings, lines: Sequence[MetricValues]) -> list[str]:
    """Returns the line of a run's report on what travelled; none if versions travelled whole.

    Args:
      lines: the run's metrics of trainer steps.
    """
    shares = [value for line in lines if (value := line.get(f"{WEIGHTS}changed_share")) is not None]
    if not shares:
        return []

    def total(name: str) -> float:
        return sum(line.get(f"{WEIGHTS}{name}") or 0.0 for line in lines)

    received, dense = total("received_bytes"), total("received_if_dense")
    mean = sum(shares) / len(shares)
    text = f"Weights: {mean:.2%} of the values changed a step (plan: {_expected(settings)[2]:.2%})"
    if dense:
        text += f"; explorers received {received / dense:.1%} of the bytes of full copies"
    if refusals := total("refusals"):
        text += f"; {refusals:g} versions were refused and replaced by full copies"
    return [f"{text}."]


def _expected(settings: RunSettings) -> tuple[float, str, float]:
    """Returns the learning rate, the published dtype, and the estimated share of changes."""
    has_adapters, path = bool(settings.model.lora.rank), settings.model.path
    rate, dtype = settings.optimizer.learning_rate, settings.explorer_dtype
    if has_adapters:
        return rate, "float32", expected_share(rate, "float32")
    weights = None if path is None else _sample(path)
    return rate, dtype, expected_share(rate, dtype, weights)


@functools.cache
def _sample(path: str) -> Float[np.ndarray, " sample"] | None:
    """Reads some weights of each tensor of a checkpoint, in proportion to its size.

    Returns None if it cannot: the estimate then assumes usual weights, and no plan fails for it.
    """
    parts = []
    try:
        for file in sorted(Path(locate(path)).glob("*.safetensors")):
            with safetensors.safe_open(file, "np") as tensors:
                for name in tensors.keys():  # noqa: SIM118
                    cut = tensors.get_slice(name)
                    shape = cut.get_shape()
                    rows = np.asarray(cut[: max(1, shape[0] // _ROWS_SHARE)], np.float32)
                    parts.append(rows.ravel()[:: _ROW_STEP if rows.size > _ROW_STEP else 1])
    except Exception:
        return None
    return np.concatenate(parts) if parts else None
