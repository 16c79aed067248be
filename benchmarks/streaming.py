"""Explorers that stream beside explorers that take leases: occupancy, and time a trained group.

    python benchmarks/streaming.py [--seeds=0,1,2] [--steps=12] [--slots=32]

One process drives the explorer's own loop, its delivery and the master's `transition`. Stand-ins
take no time: a trainer that consumes a batch once it is there and publishes at once, and a buffer.
Completions have log-normal lengths (8 to 512 tokens, median 64, sigma 1), which depend on the
prompt and the row alone; the weights are random, and the model is small. A judgement takes no time,
or one, or five times the mean time of a leased rollout; any number of them are under way at once.

The *ideal* is the time of the same tokens at the engine's rate with all slots full, measured by an
engine whose queue never ends. It is the time in which nobody waits for anything. All cases take
turns within a seed. The figures are those of the last steps: the first four fill the pipeline.

`--clock=cpu` counts the CPU seconds of the process, which hardly depend on other load; it is for
rewards without time.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import jax
import numpy as np

from configs import base
from rl_sync.actors import master
from rl_sync.actors.events import (
    BatchTrained,
    GrantLeases,
    HoldBack,
    LeaseRequested,
    Position,
    Record,
    Started,
    StopRequested,
    VersionPublished,
)
from rl_sync.actors.explorer import Explorer
from rl_sync.models.sharding import Layout
from rl_sync.models.transformer import init_params
from rl_sync.observe.spans import SpanKind, SpanRecorder
from rl_sync.processes import calls
from rl_sync.processes.session import RunStoppedError, Session
from rl_sync.replay.interface import Replay
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.queue import Waiting
from rl_sync.rollout.request import CompletionRequest
from rl_sync.rollout.sampling import Sampling
from rl_sync.rollout.stats import Stats
from rl_sync.runtime import wiring
from rl_sync.runtime.delivery import Delivery
from rl_sync.runtime.evaluation import Examination
from rl_sync.runtime.explorer import ExplorerLoop
from rl_sync.settings.reading import read_settings
from rl_sync.settings.run import RunSettings
from rl_sync.tasks.task import Task
from rl_sync.types import Lease, Params
from rl_sync.weights.interface import Puller

GROUP_SIZE, LONGEST, SHORTEST, MEDIAN = 4, 512, 8, 64
FILLING_STEPS = 4
REWARDS = (0.0, 1.0, 5.0)  # In mean times of a leased rollout.
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.monotonic, "cpu": time.process_time}


def length_of(seed: Sequence[int], row: int) -> int:
    """Returns the length of a completion, in tokens."""
    drawn = np.random.default_rng([*seed, row]).lognormal(np.log(MEDIAN), 1.0)
    return int(np.clip(round(drawn), SHORTEST, LONGEST))


class TimedEngine(Engine):
    """An engine whose completions have the lengths of `length_of`."""

    def _start(self, waiting: Waiting, slot: int) -> Any:
        request = waiting.request
        tokens = length_of(waiting.seed, waiting.next)
        sampling = dataclasses.replace(request.sampling, max_new_tokens=tokens)
        own = dataclasses.replace(waiting, request=dataclasses.replace(request, sampling=sampling))
        start = super()._start(own, slot)
        waiting.next = own.next
        return start


def settings_of(streaming: bool, slots: int, seed: int) -> RunSettings:
    """Returns the settings of a run whose batch is as many groups as there are slots for."""
    config = base.get_config()
    config.seed = seed
    config.workdir = "nowhere"
    config.model.update({"embed_dim": 128, "num_layers": 2, "mlp_dim": 384})
    config.task.max_completion_tokens = LONGEST
    config.sync.update({"mode": "asynchronous", "max_staleness": 24})
    config.evaluation.every_steps = 0
    config.trainer.update({"steps": 10**6, "group_size": GROUP_SIZE})
    config.trainer.groups_per_step = slots // GROUP_SIZE
    config.optimizer.updates_per_batch = 1
    config.rollout.streaming = streaming
    return read_settings(config.to_dict())


class Measured(NamedTuple):
    """Figures of the steps that count.

    Attributes:
      secs: the time of the measured steps.
      groups: the groups that they trained on.
      stats: the engine's work.
      rollout_secs: the mean time of a rollout.
    """

    secs: float
    groups: int
    stats: Stats
    rollout_secs: float


class Standing:
    """Stands in for the master's process, the trainer, the buffer, the reward and the weights.

    Args:
      judging_secs: the time of each judgement.
      steps: the trainer steps, after which the run stops.
    """

    leads = True

    def __init__(
        self,
        settings: RunSettings,
        engine: Engine,
        params: Params,
        *,
        judging_secs: float,
        steps: int,
        clock: Callable[[], float],
    ) -> None:
        self.settings, self._engine, self._params = settings, engine, params
        self._judging_secs, self._steps, self._clock = judging_secs, steps, clock
        self.task = wiring.load_task(settings)
        self.facts: dict[str, Any] = {}
        self.spans = Spans()
        self._changed = threading.Condition()
        self._state = master.MasterState(wiring.master_settings(settings))
        self._buffer: list[int] = []
        self._tickets: dict[int, tuple[float, int]] = {}
        self._count = itertools.count()
        self.marks: dict[int, tuple[float, Stats, int]] = {}
        self._apply(Started(Position(0, 0, (), 0)))
        self._apply(VersionPublished(0))

    # The session.

    def agree(self, what: str, thunk: Callable[[], Any]) -> Any:
        del what
        return thunk()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        yield

    def check(self) -> None:
        if self._state.stopping is not None:
            raise RunStoppedError("the end")

    def patience(self, what: str, whom: str) -> Callable[[], None]:
        del what, whom
        return self.check

    def call(self, call: Any) -> Any:
        match call:
            case calls.AskLease():
                return self._lease(call)
            case calls.Judge(items):
                with self._changed:
                    ticket = next(self._count)
                    self._tickets[ticket] = time.monotonic() + self._judging_secs, len(items)
                return ticket
            case calls.AskVerdicts(ticket, poll_secs):
                due, count = self._tickets[ticket]
                left = due - time.monotonic()
                time.sleep(max(0.0, min(poll_secs, left)))
                return [calls.Verdict(1.0, True)] * count if left <= poll_secs else calls.Pending(0)
            case calls.Happened(event):
                self._buffered(event)
        return None

    def _lease(self, call: calls.AskLease) -> Any:
        deadline = time.monotonic() + call.poll_secs
        with self._changed:
            while True:
                now = time.monotonic()
                request = LeaseRequested(call.explorer, now, call.unfinished, call.room)
                (answer,) = self._apply(request)
                if isinstance(answer, GrantLeases):
                    train = self.task.train
                    leases = [
                        Lease(
                            one.lease_id, one.ordinal, one.attempt, train[one.ordinal % len(train)]
                        )
                        for one in answer.leases
                    ]
                    return calls.LeaseGrant(answer.step, answer.version, answer.exactly, leases)
                if not isinstance(answer, HoldBack) or now >= deadline:
                    return answer
                self._changed.wait(deadline - now)

    def _apply(self, event: Any) -> list[Any]:
        with self._changed:
            self._state, commands = master.transition(self._state, event)
            return [command for command in commands if not isinstance(command, Record)]

    def _buffered(self, event: Any) -> None:
        """Trains as soon as there is a batch."""
        size = self.settings.trainer.groups_per_step
        with self._changed:
            self._apply(event)
            self._buffer += event.lease_ids
            while len(self._buffer) >= size and self._state.stopping is None:
                batch, self._buffer = tuple(self._buffer[:size]), self._buffer[size:]
                step = self._state.trained_steps + 1
                self._apply(BatchTrained(step, batch))
                self._apply(VersionPublished(step))
                self.marks[step] = self._clock(), self._engine.stats, step * size
                if step == self._steps:
                    self._apply(StopRequested("the end"))
            self._changed.notify_all()

    # The puller.

    def newest(self, at_least: int = -1, timeout_secs: float = 0.0) -> int:
        del at_least, timeout_secs
        assert self._state.newest is not None
        return self._state.newest

    def pull(self, **_: Any) -> tuple[int, Params]:
        return self.newest(), self._params

    # The buffer.

    def insert_many(self, *_: Any, **__: Any) -> None:
        pass


class Spans(SpanRecorder):
    """Keeps the times of rollouts."""

    def __init__(self) -> None:
        super().__init__(None, "explorer1")
        self.rollouts: list[float] = []

    def record(
        self, kind: SpanKind, start_secs: float, end_secs: float, /, **attributes: Any
    ) -> None:
        if kind is SpanKind.ROLLOUT:
            self.rollouts.append(end_secs - start_secs)


class Bench:
    """The model and the engine that all cases share, so that programs are compiled once."""

    def __init__(self, slots: int, clock: Callable[[], float]) -> None:
        self._slots, self._clock = slots, clock
        settings = settings_of(True, slots, 0)
        self._task: Task = wiring.load_task(settings)
        self._config = wiring.explorer_model(settings, self._task)
        self._params = jax.jit(init_params, static_argnums=0)(self._config, jax.random.key(0))
        self._sampling = Sampling(LONGEST, ())

    def _engine(self, chunk_tokens: int) -> Engine:
        layout = Layout.single()
        return TimedEngine(self._config, self._slots, chunk_tokens=chunk_tokens, layout=layout)

    def run(self, streaming: bool, judging_secs: float, seed: int, steps: int) -> Measured:
        """Runs an explorer until so many steps are trained."""
        settings = settings_of(streaming, self._slots, seed)
        engine = self._engine(settings.rollout.chunk_tokens)
        site = Standing(
            settings,
            engine,
            self._params,
            judging_secs=judging_secs,
            steps=steps,
            clock=self._clock,
        )
        session = cast(Session, site)
        explorer = Explorer(
            number=1,
            engine=engine,
            task=site.task,
            sampling=self._sampling,
            group_size=GROUP_SIZE,
            groups=settings.groups_at_once,
            seed=seed,
            streams=streaming,
        )
        ExplorerLoop(
            session=session,
            number=1,
            explorer=explorer,
            blank=lambda: self._params,
            puller=cast(Puller, site),
            granted_secs=lambda: 0.0,
            sync_kind=SpanKind.SYNC_CHECKPOINT,
            delivery=Delivery(
                session=session,
                task=site.task,
                explorer=explorer,
                replay=cast(Replay, site),
                table="groups",
                beside=streaming or judging_secs > 0,
            ),
            examination=cast(Examination, None),
        ).run()
        (began, before, first), (ended, after, last) = site.marks[FILLING_STEPS], site.marks[steps]
        rollouts = site.spans.rollouts
        return Measured(ended - began, last - first, after - before, statistics.mean(rollouts))

    def full(self, seed: int, groups: int) -> float:
        """Returns the tokens a second of an engine whose queue never ends."""
        engine = self._engine(settings_of(True, self._slots, seed).rollout.chunk_tokens)
        engine.load(self._params, 0)
        prompts, lengths = self._task.encode_prompts([p.text for p in self._task.train[:groups]])
        engine.submit(
            [
                CompletionRequest(row[:length], self._sampling, GROUP_SIZE, (seed, i, 0))
                for i, (row, length) in enumerate(zip(prompts, lengths, strict=True))
            ]
        )
        first = self._slots  # Rows that start together are of one length of cache.
        done, began, before = 0, 0.0, engine.stats
        while engine.unfinished > self._slots:
            done += len(engine.step())
            if done >= first and not began:
                began, before = self._clock(), engine.stats
        return (engine.stats - before).decode_tokens / (self._clock() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--steps", type=int, default=16, help="trainer steps of each run")
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    arguments = parser.parse_args()
    bench = Bench(arguments.slots, CLOCKS[arguments.clock])
    rewards = REWARDS if arguments.clock == "wall" else REWARDS[:1]
    groups = arguments.steps * arguments.slots // GROUP_SIZE
    found: dict[tuple[str, float], list[tuple[float, float, float, float]]] = {}
    bench.full(99, groups)
    for streaming in (False, True):
        bench.run(streaming, 0.0, 99, FILLING_STEPS + 2)  # Compiles.
    for seed in map(int, arguments.seeds.split(",")):
        rollout_secs = 0.0
        for reward in rewards:
            for name, streaming in (("leases", False), ("streaming", True)):
                rate = bench.full(seed, groups)
                one = bench.run(streaming, reward * rollout_secs, seed, arguments.steps)
                if not streaming and not reward:
                    rollout_secs = one.rollout_secs
                tokens, secs = one.stats.decode_tokens, one.secs
                figures = (
                    one.stats.occupancy,
                    tokens / secs,
                    secs / one.groups,
                    secs * rate / tokens,
                )
                found.setdefault((name, reward), []).append(figures)
                print(
                    f"seed {seed}, {name}, reward {reward:g}:",
                    *(f"{f:.4g}" for f in figures),
                    flush=True,
                )
    print("\n| | reward, rollouts | occupancy | tokens/s | s a trained group | times the ideal |")
    print("|---|---|---|---|---|---|")
    for (name, reward), rows in found.items():
        cells = [_of(column) for column in zip(*rows, strict=True)]
        print(f"| {name} | {reward:g} | " + " | ".join(cells) + " |")


def _of(values: Sequence[float]) -> str:
    """Writes the median, and the least and the greatest."""
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


if __name__ == "__main__":
    main()
