"""Accuracy on held-out problems, also apart for those whose prompts are trained on too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

SEEN, UNSEEN = "seen", "unseen"


def measure(solved: Sequence[bool], seen: Sequence[bool]) -> dict[str, float]:
    """Computes the share of solved problems, and their number.

    Args:
      solved: for each problem, whether it is solved.
      seen: for each problem, whether its prompt is trained on too.

    Returns:
      `accuracy` and `problems`. If some prompts are trained on, also `accuracy_seen`,
      `problems_seen`, and the same as `_unseen` unless all prompts are trained on.
    """
    values: dict[str, float] = {"accuracy": sum(solved) / len(solved), "problems": len(solved)}
    if not any(seen):
        return values
    for name, wanted in ((SEEN, True), (UNSEEN, False)):
        part = [one for one, known in zip(solved, seen, strict=True) if bool(known) is wanted]
        if part:
            values[f"accuracy_{name}"] = sum(part) / len(part)
            values[f"problems_{name}"] = len(part)
    return values


def describe_parts(values: Mapping[str, Any]) -> str:
    """Writes the accuracies of both parts in parentheses; empty if no prompt is trained on."""
    names = {SEEN: "whose prompts are trained on too", UNSEEN: "others"}
    parts = [
        f"{values[f'accuracy_{name}']:.1%} of {values[f'problems_{name}']} {words}"
        for name, words in names.items()
        if f"accuracy_{name}" in values
    ]
    return f" ({', '.join(parts)})" if parts else ""
