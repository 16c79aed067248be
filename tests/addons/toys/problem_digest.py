"""Digest of a task's problems, to notice when a seed gives others."""

from __future__ import annotations

import hashlib

from rl_sync.tasks.problems import Problems


def problem_digest(problems: Problems) -> str:
    """Returns a digest of all prompts, answers, rows, characters and the reward."""
    digest = hashlib.sha256()
    for part in (problems.train, problems.held_out, problems.demonstrations):
        for one in part:
            row = dict(one.row or {})
            images = [
                hashlib.sha256(image.content()).hexdigest() for image in row.pop("images", [])
            ]
            digest.update(repr((*one[:3], sorted(row.items()), images)).encode())
    digest.update(repr(problems.charset).encode())
    digest.update(problems.reward.encode())
    return digest.hexdigest()[:16]
