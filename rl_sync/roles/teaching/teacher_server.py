"""Teacher server: computes a teacher's log-probabilities for runs on other machines.

Letters in shapes: N trajectories, T positions, E entries, K tokens, M tokens that are asked about.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Int, UInt32

from rl_sync.addresses import address_of
from rl_sync.algorithms.algorithm import Algorithm
from rl_sync.cluster.pending import PendingCalls
from rl_sync.cluster.rpc import CallHandlers, RpcServer
from rl_sync.learning.forward import Forward, RowInputs
from rl_sync.learning.rows.row_layout import unpacked
from rl_sync.learning.teachers import Teacher
from rl_sync.models.config import ModelConfig
from rl_sync.models.sharding import Layout, using
from rl_sync.roles.assembly import wiring
from rl_sync.roles.teaching.teacher_calls import (
    AskTeacher,
    AskTeacherDescription,
    TaughtRows,
    TeacherAnswer,
    TeacherDescription,
)
from rl_sync.roles.teaching.teacher_models import load_teachers, teacher_models
from rl_sync.sampling_masks import no_entries, padded
from rl_sync.settings.run_settings import RunSettings
from rl_sync.tasks.task import Task
from rl_sync.tasks.tokenizers.vocabularies import digest_of
from rl_sync.types import Params, as_input

_CALLS = 64  # Number of calls served at once; most of them wait for the teacher.
_KEPT = 4
"""Number of batches whose answers are kept, in case they were lost on the way."""
_WIDTH_STEP = 64
_LEAST_ENTRIES = 8


@dataclasses.dataclass(frozen=True)
class TeacherModel:
    """A loaded teacher, which answers on the devices of this process.

    Attributes:
      algorithm: settings of the loss; calls say how they compare.
      model, params: its model config and parameters.
      layout: sharding of its parameters and rows.
      rows: number of trajectories that are computed at once; 0 for all of a call.
      logits_bytes: see `LogprobSettings`.
      description: see `TeacherDescription`.
    """

    algorithm: Algorithm
    model: ModelConfig
    params: Params
    layout: Layout
    rows: int
    logits_bytes: int
    description: TeacherDescription

    @classmethod
    def loaded(cls, settings: RunSettings, task: Task, layout: Layout) -> TeacherModel:
        """Loads the teacher of `teacher.path`.

        Args:
          settings: the teacher, and the mesh, the dtype and the microbatches of a trainer, which
            are the teacher's here.
          task: task of the policy, with its vocabulary.
          layout: sharding of the teacher and of its rows.

        Raises:
          ConfigError: see `teacher_models` and `load_teachers`.
        """
        (model,) = teacher_models(settings, task)
        (params,) = load_teachers(settings, task, layout)
        description = TeacherDescription(
            name=str(settings.teacher.path),
            vocabulary=digest_of(task.tokenizer),
            vocab_size=model.vocab_size,
            row_tokens=wiring.batching_of(settings, task).row_tokens,
        )
        return cls(
            algorithm=settings.algorithm,
            model=model,
            params=params,
            layout=layout,
            rows=settings.trainer.microbatch_rows,
            logits_bytes=settings.trainer.logits_bytes,
            description=description,
        )

    def answers(
        self, call: AskTeacher, on_rows: Callable[[int], None] = lambda count: None
    ) -> list[TeacherAnswer]:
        """Answers a call.

        Args:
          on_rows: called with a number of trajectories that are computed.

        Raises:
          ValueError: the call is about another vocabulary, or longer trajectories.
        """
        if call.vocabulary != self.description.vocabulary:
            raise ValueError(f"The teacher {self.description.name} has another vocabulary.")
        rows = _StackedRows.of(call.groups, self.description.row_tokens, self.layout.row_divisor)
        forward = Forward(self.model, call.temperature, self.logits_bytes, call.repetition_penalty)
        shards = self.layout.batch_shards
        count = len(rows.tokens)
        step = self.rows or math.ceil(count / shards) * shards
        found: list[tuple[np.ndarray, ...]] = []
        for start in range(0, count, step):
            inputs = rows.part(start, step).inputs()
            some = _answers(self.layout, self.algorithm, forward, call.best, self.params, inputs)
            found.append(tuple(np.asarray(one) for one in some))
            on_rows(min(step, count - start))
        columns = [np.concatenate(parts)[:count] for parts in zip(*found, strict=True)]
        return _by_groups(columns, call.groups)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _answers(
    layout: Layout,
    algorithm: Algorithm,
    forward: Forward,
    best: int,
    params: Params,
    rows: RowInputs,
) -> tuple[Array, ...]:
    """Computes log-probabilities [N T K], and the ids of the best tokens if these are asked for."""
    with using(layout):
        teacher = Teacher(algorithm, forward, params)
        if not best:
            return (teacher.logprobs(rows)[..., None],)
        found = teacher.best_at_tokens(rows, best)
        return found.logprobs, found.ids


class _StackedRows(NamedTuple):
    """Trajectories of several groups, padded to one length."""

    tokens: Int[np.ndarray, "N T"]
    segments: Int[np.ndarray, "N T"] | None
    masks: UInt32[np.ndarray, "N E 3"] | None

    @classmethod
    def of(cls, groups: Sequence[TaughtRows], most_tokens: int, divisor: int) -> _StackedRows:
        """Stacks groups.

        Args:
          most_tokens: maximum number of tokens of a trajectory, a multiple of `divisor`.
          divisor: a divisor of T.
        """
        longest = max((group.tokens.shape[1] for group in groups), default=1)
        if longest > most_tokens:
            raise ValueError(
                f"A trajectory has {longest} tokens, and this server was started for at most"
                f" {most_tokens}: start it with the run's config."
            )
        # Few widths, since each is compiled once.
        step = math.lcm(_WIDTH_STEP, divisor)
        width = min(most_tokens, math.ceil(longest / step) * step)
        segments = masks = None
        if of := [group.segments for group in groups if group.segments is not None]:
            segments = np.concatenate([_widened(one, width, -1) for one in of])
        if any(group.sampling_masks is not None for group in groups):
            entries = [one for group in groups for one in _entries(group)]
            longest = max(_LEAST_ENTRIES, *map(len, entries))
            masks = padded(entries, 1 << (longest - 1).bit_length())
        tokens = np.concatenate([_widened(group.tokens, width, 0) for group in groups])
        return cls(tokens, segments, masks)

    def part(self, start: int, count: int) -> _StackedRows:
        """Returns some of the rows, the last one repeated where there are no more."""
        at = np.minimum(np.arange(start, start + count), len(self.tokens) - 1)
        return _StackedRows(
            self.tokens[at],
            None if self.segments is None else self.segments[at],
            None if self.masks is None else self.masks[at],
        )

    def inputs(self) -> RowInputs:
        """Returns the rows as a model reads them."""
        masks = None if self.masks is None else as_input(self.masks)
        return RowInputs(as_input(self.tokens), unpacked(self.segments), masks)


def _widened(rows: Int[np.ndarray, "G S"], width: int, value: int) -> Int[np.ndarray, "G T"]:
    return np.pad(rows, ((0, 0), (0, width - rows.shape[1])), constant_values=value)


def _entries(group: TaughtRows) -> Sequence[UInt32[np.ndarray, "E 3"]]:
    if group.sampling_masks is None:
        return [no_entries()] * len(group.tokens)
    return [*group.sampling_masks]


def _by_groups(
    columns: Sequence[Float[np.ndarray, "N T K"] | Int[np.ndarray, "N T K"]],
    groups: Sequence[TaughtRows],
) -> list[TeacherAnswer]:
    """Takes the figures of each group's tokens under its mask."""
    answers, start = [], 0
    for group in groups:
        count, width = group.mask.shape
        logprobs, *ids = (one[start : start + count, :width][group.mask] for one in columns)
        answers.append(TeacherAnswer(logprobs, ids[0] if ids else None))
        start += count
    return answers


class TeacherServer:
    """Serves one teacher until it is closed.

    Args:
      teacher: the loaded teacher.
      host, port: the address to listen on; port 0 for any free one.
      secret: secret that callers must know.

    Attributes:
      address: the `HOST:PORT` to set in the runs' configs.

    Raises:
      ValueError: the port is taken.
    """

    def __init__(self, teacher: TeacherModel, *, host: str, port: int, secret: str) -> None:
        self._teacher, self._computed = teacher, 0
        self._pending = PendingCalls(
            AskTeacher.answered_by(self._answer),
            threads=1,
            progress=lambda: self._computed,
            kept=_KEPT,
        )
        desk = CallHandlers(
            AskTeacherDescription.answered_by(lambda call: teacher.description),
            self._pending.handler(),
        )
        self._server = RpcServer(desk, port, host, threads=_CALLS, secret=secret)
        self.address = address_of(host, self._server.port)

    def close(self) -> None:
        """Ends serving; runs wait for another server at the address."""
        self._server.close()
        self._pending.close()

    def _answer(self, call: AskTeacher) -> list[TeacherAnswer]:
        return self._teacher.answers(call, self._count)

    def _count(self, rows: int) -> None:
        self._computed += rows
