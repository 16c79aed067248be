"""Learning rate schedules, as shares of the maximum value."""

from __future__ import annotations

from collections.abc import Callable

import optax

SCHEDULES: dict[str, Callable[[int, float], optax.Schedule]] = {
    "constant": lambda updates, final: optax.constant_schedule(1.0),
    "linear": lambda updates, final: optax.linear_schedule(1.0, final, updates),
    "cosine": lambda updates, final: optax.cosine_decay_schedule(1.0, updates, final),
}
"""Schedules by name: each maps the number of updates and the final share to optax's schedule."""
