"""Streaming explorers compared with leasing explorers: occupancy, and time per trained group.

    python benchmarks/streaming.py [--seeds=0,1,2] [--steps=16] [--slots=16]
        [--max_staleness=24]
    python benchmarks/streaming.py --simulated [--seeds=0,1,2,3,4,5,6,7] [--steps=60] [--slots=16]

One process drives the explorer's own loop, its delivery and the master's `transition`. Stand-ins
take no time: a trainer that consumes a batch once it is there and publishes at once, and a buffer.
Completions have log-normal lengths (8 to 512 tokens, median 64, sigma 1), which depend on the
prompt and the row alone; the weights are random, and the model is small. A judgement takes no time,
or one, or five times the mean time of a leased rollout; any number of them are under way at once.

Each figure is one of the last trainer steps: the first four fill the pipeline. All cases take turns
within a seed.

- *occupancy*: tokens in each decode step, over the rows of the batch; the batch shrinks where the
  queue is empty.
- *steps*: decode steps over the fewest, those of full slots. An accelerator takes about as long for
  a step of few rows as for one of many, so there this is the ratio of times.
- *CPU*: CPU seconds over those of the ideal: the same tokens by an engine whose queue never ends,
  measured just before. They hardly depend on other load, and count no waits.
- *waited*: the share of the time in which the explorer waited.

With `--simulated` the loops run in virtual time, as for `tune`, with small bounds on staleness. A
decode step takes a second, and a judgement as long as full slots need for 0, 1 or 5 batches. Each
figure is the time of the steps after the first tenth over that of full slots.
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

from rl_sync.cluster.pending import Await, Pending
from rl_sync.cluster.session import RunStoppedError, Session
from rl_sync.configs import base
from rl_sync.messages import master_calls, scoring_calls
from rl_sync.messages.events import (
    BatchRequested,
    BatchTrained,
    GrantLeases,
    HoldBack,
    LeaseGrant,
    LeaseRequested,
    Position,
    Record,
    Started,
    StopRequested,
    VersionPublished,
)
from rl_sync.models.config import ModelConfig
from rl_sync.models.sharding import Layout
from rl_sync.models.transformer import init_params
from rl_sync.ports.clock_port import SystemClock
from rl_sync.records.spans import SpanKind, SpanRecorder, sync_kind
from rl_sync.records.summary import of_kind
from rl_sync.replay.client import ReplayClient
from rl_sync.roles.assembly import wiring
from rl_sync.roles.evaluation.evaluator import EvaluationSet
from rl_sync.roles.evaluation.pinned_evaluations import PinnedEvaluations
from rl_sync.roles.explorer.actor import Explorer
from rl_sync.roles.explorer.group_delivery import GroupDelivery
from rl_sync.roles.explorer.loop import ExplorerLoop
from rl_sync.roles.master import transition
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.engine_options import EngineOptions
from rl_sync.rollout.queue import Waiting
from rl_sync.rollout.request import CompletionRequest
from rl_sync.rollout.sampling import Sampling
from rl_sync.rollout.sequence import GrowingSequence
from rl_sync.rollout.slot_admission import Admission
from rl_sync.rollout.stats import Stats
from rl_sync.settings.config_reading import read_settings
from rl_sync.settings.run_settings import RunSettings
from rl_sync.simulation.speed.prediction import simulate
from rl_sync.simulation.speed.speed_plan import plan_of
from rl_sync.simulation.speed.workload import NOTHING, Decoding, Samples, TransferTimes, Workload
from rl_sync.tasks.task import Task
from rl_sync.transfer import TRANSFERS
from rl_sync.types import Lease, Params
from rl_sync.weights.ends_interface import Puller

GROUP_SIZE, LONGEST, SHORTEST, MEDIAN = 4, 512, 8, 64
FILLING_STEPS = 4
REWARDS = (0.0, 1.0, 5.0)  # In mean times of a leased rollout.
NAMES = ("occupancy", "steps", "CPU", "waited", "groups/s")


def length_of(seed: Sequence[int], row: int) -> int:
    """Returns the length of a completion, in tokens."""
    drawn = np.random.default_rng([*seed, row]).lognormal(np.log(MEDIAN), 1.0)
    return int(np.clip(round(drawn), SHORTEST, LONGEST))


class TimedAdmission(Admission):
    """An admission that gives completions the lengths of `length_of`."""

    def sequence(self, waiting: Waiting, unread: int) -> GrowingSequence:
        """Makes a sequence that ends after its own number of tokens."""
        made = super().sequence(waiting, unread)
        tokens = length_of(waiting.seed, made.index)
        sampling = dataclasses.replace(made.request.sampling, max_new_tokens=tokens)
        made.request = dataclasses.replace(made.request, sampling=sampling)
        return made


class TimedEngine(Engine):
    """An engine whose completions have the lengths of `length_of`."""

    def __init__(self, config: ModelConfig, layout: Layout, options: EngineOptions) -> None:
        """See `Engine`."""
        super().__init__(config, layout, options)
        self._admission = TimedAdmission(
            self._batch, self._queue, self._occupancy, self._continuations
        )


def settings_of(streaming: bool, slots: int, seed: int, max_staleness: int) -> RunSettings:
    """Returns the settings of a run whose batch is as many groups as there are slots for."""
    config = base.get_config()
    config.seed = seed
    config.workdir = "nowhere"
    config.model.update({"embed_dim": 128, "num_layers": 2, "mlp_dim": 384})
    config.task.max_completion_tokens = LONGEST
    config.sync.update({"mode": "asynchronous", "max_staleness": max_staleness})
    config.evaluation.every_steps = 0
    config.trainer.update({"steps": 10**6, "group_size": GROUP_SIZE})
    config.trainer.groups_per_step = slots // GROUP_SIZE
    config.optimizer.updates_per_batch = 1
    config.rollout.streaming = streaming
    return read_settings(config.to_dict())


class Measured(NamedTuple):
    """Figures of the steps that count.

    Attributes:
      secs, cpu_secs: the time of the measured steps.
      waited_secs: the part of it in which the explorer waited.
      groups: the groups that they trained on.
      stats: the engine's work.
      rollout_secs: the mean time of a rollout.
    """

    secs: float
    cpu_secs: float
    waited_secs: float
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
    clock = SystemClock()

    def __init__(
        self,
        settings: RunSettings,
        engine: Engine,
        params: Params,
        *,
        judging_secs: float,
        steps: int,
    ) -> None:
        self.settings, self._engine, self._params = settings, engine, params
        self._judging_secs, self._steps = judging_secs, steps
        self.task = wiring.load_task(settings)
        self.facts: dict[str, Any] = {}
        self.spans = Spans()
        self._changed = threading.Condition()
        self._state = transition.MasterState(
            wiring.master_settings(settings, wiring.prompt_pool(settings, self.task))
        )
        self._buffer: list[int] = []
        self._judging: dict[str, tuple[float, Any]] = {}
        self.marks: dict[int, tuple[float, float, Stats, int]] = {}
        self._apply(Started(Position(0, 0, (), 0)))
        self._apply(VersionPublished(0))

    # The session.

    def agree(self, what: str, thunk: Callable[[], Any]) -> Any:
        del what
        return thunk()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        yield

    @contextlib.contextmanager
    def showing(self, figures: Callable[[], Any]) -> Iterator[None]:
        del figures
        yield

    def settle(self) -> None:
        """Ends no preparations: there are none."""

    def check(self) -> None:
        if self._state.stopping is not None:
            raise RunStoppedError("the end")

    def deadline(self, what: str, whom: str) -> Callable[[], None]:
        del what, whom
        return self.check

    def call(self, call: Any) -> Any:
        match call:
            case master_calls.AskLease():
                return self._lease(call)
            case Await(key, judge, poll_secs):
                due, items = self._judging.setdefault(
                    key, (time.monotonic() + self._judging_secs, judge and judge.items)
                )
                left = due - time.monotonic()
                time.sleep(max(0.0, min(poll_secs, left)))
                if left > poll_secs:
                    return Pending(0)
                verdicts = [scoring_calls.ScoredCompletion(1.0, True)] * len(items)
                return scoring_calls.Scores(verdicts, [item.lease_id for item in items])
            case master_calls.Happened(event):
                self._buffered(event)
        return None

    def _lease(self, call: master_calls.AskLease) -> Any:
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
                    return LeaseGrant(answer.step, answer.version, answer.exactly, leases)
                if not isinstance(answer, HoldBack) or now >= deadline:
                    return answer
                self._changed.wait(deadline - now)

    def _apply(self, event: Any) -> list[Any]:
        with self._changed:
            self._state, commands = transition.transition(self._state, event)
            return [command for command in commands if not isinstance(command, Record)]

    def _buffered(self, event: Any) -> None:
        """Trains as soon as there is a batch."""
        size = self.settings.trainer.groups_per_step
        with self._changed:
            self._apply(event)
            self._buffer += event.lease_ids
            while self._state.stopping is None and (batch := self._batch(size)):
                self._buffer = [one for one in self._buffer if one not in batch]
                step = self._state.trained_steps + 1
                self._apply(BatchTrained(step, batch))
                self._apply(VersionPublished(step))
                stats, now = self._engine.stats, self.spans.now()
                self.marks[step] = now, time.process_time(), stats, step * size
                if step == self._steps:
                    self._apply(StopRequested("the end"))
            self._changed.notify_all()

    def _batch(self, size: int) -> tuple[int, ...]:
        if not self.settings.carries_over:
            return tuple(self._buffer[:size]) if len(self._buffer) >= size else ()
        request = BatchRequested(self._state.trained_steps + 1, tuple(self._buffer))
        (answer,) = self._apply(request)
        return answer.lease_ids

    # The puller.

    def newest(self, at_least: int = -1, timeout_secs: float = 0.0) -> int:
        del at_least, timeout_secs
        assert self._state.newest is not None
        return self._state.newest

    def pull(self, **_: Any) -> tuple[int, Params]:
        return self.newest(), self._params

    # The buffer.

    may_restart = False

    def insert_many(self, *_: Any, **__: Any) -> None:
        pass


class Spans(SpanRecorder):
    """Keeps the times of rollouts, and the waits of the explorer's main thread."""

    def __init__(self) -> None:
        super().__init__(None, "explorer1")
        self.rollouts: list[float] = []
        self.waits: list[tuple[float, float]] = []

    def record(
        self, kind: SpanKind, start_secs: float, end_secs: float, /, **attributes: Any
    ) -> None:
        if kind is SpanKind.ROLLOUT:
            self.rollouts.append(end_secs - start_secs)
        if kind is SpanKind.WAIT:
            self.waits.append((start_secs, end_secs))


class Bench:
    """The model and the engine that all cases share, so that programs are compiled once."""

    def __init__(self, slots: int, max_staleness: int) -> None:
        self._slots, self._max_staleness = slots, max_staleness
        settings = self._settings(True, 0)
        self._task: Task = wiring.load_task(settings)
        self._config = wiring.explorer_model(settings, self._task)
        self._params = jax.jit(init_params, static_argnums=0)(self._config, jax.random.key(0))
        self._sampling = Sampling(LONGEST, ())

    def _settings(self, streaming: bool, seed: int) -> RunSettings:
        return settings_of(streaming, self._slots, seed, self._max_staleness)

    def _engine(self, chunk_tokens: int) -> Engine:
        layout = Layout.single()
        return TimedEngine(
            self._config, layout, EngineOptions(slots=self._slots, chunk_tokens=chunk_tokens)
        )

    def run(self, streaming: bool, judging_secs: float, seed: int, steps: int) -> Measured:
        """Runs an explorer until so many steps are trained."""
        settings = self._settings(streaming, seed)
        engine = self._engine(settings.rollout.chunk_tokens)
        site = Standing(
            settings,
            engine,
            self._params,
            judging_secs=judging_secs,
            steps=steps,
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
            in_parts=streaming,
            streams=streaming,
        )
        ExplorerLoop(
            session=session,
            number=1,
            explorer=explorer,
            blank=lambda: self._params,
            puller=cast(Puller, site),
            began_secs=lambda: 0.0,
            at_hand=lambda: None,
            sync_kind=sync_kind("checkpoint"),
            delivery=GroupDelivery(
                session=session,
                task=site.task,
                explorer=explorer,
                replay=cast(ReplayClient, site),
                table="groups",
                beside=streaming or judging_secs > 0,
            ),
            evaluations=PinnedEvaluations(
                cast(EvaluationSet, None), lambda: engine, time.monotonic
            ),
        ).run()
        began, began_cpu, before, first = site.marks[FILLING_STEPS]
        ended, ended_cpu, after, last = site.marks[steps]
        waits = [max(0.0, min(end, ended) - max(start, began)) for start, end in site.spans.waits]
        return Measured(
            secs=ended - began,
            cpu_secs=ended_cpu - began_cpu,
            waited_secs=sum(waits),
            groups=last - first,
            stats=after - before,
            rollout_secs=statistics.mean(site.spans.rollouts),
        )

    def full(self, seed: int, groups: int) -> float:
        """Returns the tokens a CPU second of an engine whose queue never ends."""
        engine = self._engine(self._settings(True, seed).rollout.chunk_tokens)
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
                began, before = time.process_time(), engine.stats
        return (engine.stats - before).decode_tokens / (time.process_time() - began)


def simulated_time(
    streaming: bool, judging: float, max_staleness: int, seed: int, steps: int, slots: int
) -> float:
    """Returns the time of a simulated run, as a multiple of that of full slots.

    Args:
      judging: time of a judgement, in times in which full slots generate a batch.
    """
    lengths = tuple(
        tuple(length_of((seed, group), row) for row in range(GROUP_SIZE)) for group in range(200)
    )
    batch_secs = statistics.mean(itertools.chain(*lengths))
    work = Workload(
        lengths=lengths,
        decoding=Decoding(step_secs=1.0),
        train=NOTHING,
        groups_per_step=slots // GROUP_SIZE,
        judge=Samples.of(judging * batch_secs),
        transfers=dict.fromkeys(TRANSFERS, TransferTimes(NOTHING, NOTHING)),
    )
    settings = settings_of(streaming, slots, seed, max_staleness)
    trained = of_kind(simulate(plan_of(settings, steps=steps), work, seed), SpanKind.TRAIN)
    first = steps // 10
    tokens = sum(span.attributes["tokens"] for span in trained[first + 1 :])
    return (trained[-1].end_secs - trained[first].end_secs) * slots / tokens


def simulated_table(seeds: Sequence[int], steps: int, slots: int) -> Iterator[str]:
    """Yields the lines of a table: median of the seeds, the least and the greatest."""
    yield "| judgement, batches | `max_staleness` | leases | streaming |"
    yield "|---|---|---|---|"
    for judging, bound in itertools.product((0, 1, 5), (2, 4, 8)):
        cells = [
            _of([simulated_time(streams, judging, bound, seed, steps, slots) for seed in seeds])
            for streams in (False, True)
        ]
        yield f"| {judging} | {bound} | " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--simulated", action="store_true", help="simulate small bounds")
    parser.add_argument("--seeds")
    parser.add_argument("--steps", type=int, help="trainer steps of each run")
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--max_staleness", type=int, default=24)
    arguments = parser.parse_args()
    simulated, slots = arguments.simulated, arguments.slots
    steps = arguments.steps or (60 if simulated else 16)
    seeds = [
        *map(int, (arguments.seeds or ("0,1,2,3,4,5,6,7" if simulated else "0,1,2")).split(","))
    ]
    if simulated:
        for line in simulated_table(seeds, steps, slots):
            print(line, flush=True)
        return
    bench = Bench(slots, arguments.max_staleness)
    groups = steps * slots // GROUP_SIZE // 2
    found: dict[tuple[str, float], list[tuple[float, ...]]] = {}
    bench.full(99, groups)
    for streaming in (False, True):
        bench.run(streaming, 0.0, 99, FILLING_STEPS + 4)  # Compiles.
    for seed in seeds:
        rollout_secs = 0.0
        for reward in REWARDS:
            for name, streaming in (("leases", False), ("streaming", True)):
                rate = bench.full(seed, groups)
                one = bench.run(streaming, reward * rollout_secs, seed, steps)
                if not streaming and not reward:
                    rollout_secs = one.rollout_secs
                stats = one.stats
                figures = (
                    stats.occupancy,
                    stats.steps * slots / stats.decode_tokens,
                    one.cpu_secs * rate / stats.decode_tokens,
                    one.waited_secs / one.secs,
                    one.groups / one.secs,
                )
                found.setdefault((name, reward), []).append(figures)
                told = ", ".join(f"{n} {f:.3g}" for n, f in zip(NAMES, figures, strict=True))
                print(f"seed {seed}, {name}, reward {reward:g}: {told}", flush=True)
    print("\n| | reward, rollouts | " + " | ".join(NAMES) + " |\n|" + "---|" * (2 + len(NAMES)))
    for (name, reward), rows in found.items():
        cells = [_of(column) for column in zip(*rows, strict=True)]
        print(f"| {name} | {reward:g} | " + " | ".join(cells) + " |")


def _of(values: Sequence[float]) -> str:
    """Writes the median, and the least and the greatest."""
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


if __name__ == "__main__":
    main()
