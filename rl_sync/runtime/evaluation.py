"""Greedy accuracy on held-out problems."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from rl_sync.models.config import ModelConfig
from rl_sync.observe.spans import SpanKind
from rl_sync.rollout.decode import generate
from rl_sync.rollout.sampling import Sampling
from rl_sync.runtime.session import Session
from rl_sync.tasks.task import Task
from rl_sync.types import Params, Prompt


@dataclasses.dataclass
class Evaluator:
    """Measures how many held-out problems the policy solves without sampling.

    Attributes:
      session: the trainer's part in the run; the master has completions judged.
      model: the policy's shape.
      task: the problems.
      problems: the most problems of an evaluation.
      rows: how many are generated at once; one shape, whatever the number of problems.
    """

    session: Session
    model: ModelConfig
    task: Task
    problems: int
    rows: int

    def accuracy(self, params: Params, problems: int | None = None) -> tuple[float, int]:
        """The share of problems whose greedy completion is rewarded in full.

        Args:
          params: the policy's.
          problems: fewer problems than the evaluator's own.

        Returns:
          The share, and of how many problems.
        """
        limit = min(problems or self.problems, self.problems, len(self.task.held_out))
        prompts = self.task.held_out[:limit]
        with self.session.spans.span(SpanKind.EVALUATION, problems=limit) as attributes:
            rewards: list[float] = []
            for start in range(0, limit, self.rows):
                rewards += self._rewards(params, prompts[start : start + self.rows])
            accuracy = float(np.mean(np.asarray(rewards) >= 1.0))
            attributes["accuracy"] = accuracy
        return accuracy, limit

    def _rewards(self, params: Params, prompts: Sequence[Prompt]) -> list[float]:
        """Rewards of greedy completions; fewer prompts than rows are filled up."""
        texts = [prompt.text for prompt in prompts]
        tokens, lengths = self.task.encode_prompts(texts + texts[:1] * (self.rows - len(texts)))
        sampling = Sampling(
            max_new_tokens=self.task.max_completion_tokens,
            eos_id=self.task.tokenizer.eos_id,
            greedy=True,
        )
        keys = jax.random.split(jax.random.key(0), self.rows)  # Greedy: never used.
        out = generate(
            self.model, params, jnp.asarray(tokens), jnp.asarray(lengths), keys, sampling
        )
        rows = zip(np.asarray(out.tokens), np.asarray(out.completion_mask), strict=True)
        completions = [self.task.tokenizer.decode(row[mask].tolist()) for row, mask in rows]
        items = [
            [prompt.text, completion, prompt.answer]
            for prompt, completion in zip(prompts, completions, strict=False)
        ]
        return self.session.call("judge", items=items)
