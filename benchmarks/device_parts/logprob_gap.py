"""The gap between the log-probabilities of explorer and trainer on this device, by `gap.py`."""

from __future__ import annotations

from collections.abc import Iterator

from gap import WAYS, gap_of, policy

from device_parts.finding import Finding, PartOptions

_WAYS = (
    "float32",
    "bfloat16",
    "bfloat16, 1 slot",
    "float16",
    "bfloat16, experts",
    "bfloat16, experts, replayed",
    "explorer int8, bfloat16",
    "explorer float8, bfloat16",
)


def measure(options: PartOptions) -> Iterator[Finding]:
    """Measures a small model with random weights, on three seeds."""
    seeds, completions, tokens = ((0,), 4, 16) if options.small else ((0, 1, 2), 64, 96)
    for name in _WAYS:
        way = WAYS[name]
        gaps = [
            gap_of(way, policy(None, seed, way.experts), seed, completions, tokens)
            for seed in seeds
        ]
        greatest = max(gap.greatest for gap in gaps)
        equal = [100 * gap.equal for gap in gaps]
        beside = f"the greatest {greatest:.2g}; same bits {min(equal):.1f} to {max(equal):.1f} %"
        yield Finding(f"{name}: mean", max(gap.mean for gap in gaps), "nats", beside)
