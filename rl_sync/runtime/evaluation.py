"""Greedy accuracy on held-out problems."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rl_sync.models.config import ModelConfig
from rl_sync.models.sharding import Layout
from rl_sync.observe import accuracy
from rl_sync.observe.spans import SpanKind
from rl_sync.processes.calls import Verdict
from rl_sync.processes.failures import RunError
from rl_sync.processes.session import Session
from rl_sync.rollout.engine import Engine, NonFiniteLogitsError
from rl_sync.rollout.request import CompletionRequest
from rl_sync.rollout.sampling import Sampling
from rl_sync.runtime.verdicts import verdicts, written
from rl_sync.tasks.task import Task
from rl_sync.types import Params, Prompt


@dataclasses.dataclass
class Evaluator:
    """Measures how many held-out problems the policy solves without sampling.

    Attributes:
      session: the trainer's part in the run; the master has completions judged.
      model: the policy's shape.
      task: the problems.
      sampling: how completions are drawn, and what ends them.
      problems: the most problems of an evaluation.
      rows: the most that are generated at once.
      layout: where the policy lies.
    """

    session: Session
    model: ModelConfig
    task: Task
    sampling: Sampling
    problems: int
    rows: int
    layout: Layout

    def accuracy(self, params: Params, problems: int | None = None) -> dict[str, float]:
        """The share of problems that greedy completions solve; see `Verdict`.

        Args:
          params: the policy's.
          problems: fewer problems than the evaluator's own.

        Returns:
          See `rl_sync.observe.accuracy.measure`.
        """
        limit = min(problems or self.problems, self.problems, len(self.task.held_out))
        prompts = self.task.held_out[:limit]
        with self.session.spans.span(SpanKind.EVALUATION, problems=limit) as attributes:
            judged = self._verdicts(params, prompts)
            values = accuracy.measure(
                [None if one.score is None else one.solved for one in judged],
                [self.task.is_seen(prompt) for prompt in prompts],
            )
            attributes.update(values)
        return values

    def _verdicts(self, params: Params, prompts: Sequence[Prompt]) -> list[Verdict]:
        """Verdicts on greedy completions."""
        tokens, lengths = self.task.encode_prompts([prompt.text for prompt in prompts])
        requests = [
            CompletionRequest(row[:length], self.sampling)
            for row, length in zip(tokens, lengths, strict=True)
        ]
        # A new one each time: it holds on to weights that train steps donate, and to its cache.
        engine = Engine(
            self.model, self.rows, decode=self.task.tokenizer.decode, layout=self.layout
        )
        engine.load(params, version=0)
        try:
            generated = engine.generate(requests)
        except NonFiniteLogitsError as error:
            raise RunError(f"The policy cannot be evaluated. {error}") from error
        items = [
            written(
                self.task, completion.tokens.tolist(), prompt_id=prompt.prompt_id, held_out=True
            )
            for prompt, (completion,) in zip(prompts, generated, strict=True)
        ]
        return verdicts(self.session, items)
