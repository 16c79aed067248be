"""Accuracy on held-out problems, also apart for those whose prompts are trained on too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

SEEN, UNSEEN = "seen", "unseen"


def measure(solved: Sequence[bool | None], seen: Sequence[bool]) -> dict[str, float]:
    """Computes the share of solved problems, and their number.

    Args:
      solved: for each problem, whether it is solved; None if its completion could not be judged.
      seen: for each problem, whether its prompt is trained on too.

    Returns:
      `accuracy` and `problems`. If some prompts are trained on, also `accuracy_seen`,
      `problems_seen`, and the same as `_unseen` unless all prompts are trained on. `unjudged` is
      the number of problems that could not be judged, if there are any; nothing else counts them.
    """
    judged = [(one, known) for one, known in zip(solved, seen, strict=True) if one is not None]
    values: dict[str, float] = {
        "accuracy": sum(one for one, _ in judged) / len(judged) if judged else 0.0,
        "problems": len(judged),
    }
    if len(judged) < len(solved):
        values["unjudged"] = len(solved) - len(judged)
    if not any(seen):
        return values
    for name, wanted in ((SEEN, True), (UNSEEN, False)):
        part = [one for one, known in judged if bool(known) is wanted]
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
