"""Cost of the control plane by the number of explorers: the master's decisions, and its calls.

    python benchmarks/control_plane.py [--explorers=10,100,1000,10000] [--schedules='NAME; NAME']
        [--seeds=0,1,2] [--steps=4] [--profile]
    python benchmarks/control_plane.py --calls [--explorers=8,64,256] [--seeds=0,1,2] [--secs=3]
    python benchmarks/control_plane.py --paced [--explorers=1,10,100,1000] [--lease=16] [--secs=60]

The first form simulates runs in virtual time, with the real master, and then hands the same events
to `transition` again, with each lasting one written to a journal, and counts CPU time. A trainer
step takes 60 s, and trains on two groups of each explorer. Every explorer has a lease of two
groups, which takes it about as long as a step, with log-normal lengths. Beside the simulated events
there are signs of life as often as explorers send them, and the requests that an explorer repeats
every second while it is held back. The disk is left out: the journal is written, but not flushed.

The second form starts the real server of the master in a process, and calls it over its real
connections; see `control_plane_calls`. The third lets explorers work at a pace; see
`control_plane_pace`.

All CPU times are of one thread, so other work on the machine makes them longer only by its use of
caches. The first step, which fills the buffer, is left out.
"""

from __future__ import annotations

import argparse
import collections
import cProfile
import dataclasses
import gc
import json
import math
import pstats
import random
import statistics
import sys
import tempfile
import time
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from control_plane_calls import figures, measure_calls
from control_plane_pace import figures as pace_figures
from control_plane_pace import paced

from rl_sync.cluster.session import heartbeat_secs
from rl_sync.configs import base
from rl_sync.isolation.machine_limits import allow_open_files
from rl_sync.messages.events import (
    BatchTrained,
    Command,
    Event,
    ExplorersSeen,
    GroupsJudged,
    GroupsScored,
    HoldBack,
    LeaseRequested,
    Ticked,
)
from rl_sync.records.spans import Span, SpanKind
from rl_sync.role_names import is_explorer
from rl_sync.roles.master.journal import Journal, lasting, state_form
from rl_sync.roles.master.state import MasterState
from rl_sync.roles.master.transition import transition
from rl_sync.settings.config_reading import read_settings
from rl_sync.simulation.speed.prediction import simulate, with_steps
from rl_sync.simulation.speed.speed_plan import SpeedPlan, plan_of
from rl_sync.simulation.speed.workload import Decoding, Samples, TransferTimes, Workload
from rl_sync.transfer import TRANSFERS

STEP_SECS, GROUPS_EACH, TICK_SECS, POLL_SECS = 60.0, 2, 0.5, 1.0
MEDIAN, TAIL, SHORTEST, LONGEST = 256, 0.25, 16, 2048
PACED = (1, 10, 100, 1000)
_GROUPS_A_MINUTE = 64
COUNTS, CONNECTIONS = (10, 100, 1000, 10_000), (8, 64, 256)

SCHEDULES: dict[str, dict[str, Any]] = {
    "synchronous": {"mode": "synchronous"},
    "one-step off-policy": {"mode": "one_step_off_policy"},
    "bound 2": {"mode": "multi_explorer", "max_staleness": 2},
    "bound 8": {"mode": "multi_explorer", "max_staleness": 8},
    "streaming, bound 4": {"mode": "multi_explorer", "max_staleness": 4, "streaming": True},
}


def plan_named(name: str, explorers: int, steps: int) -> SpeedPlan:
    """Returns the plan of a schedule."""
    asked = dict(SCHEDULES[name])
    config = base.get_config()
    config.workdir = "nowhere"
    config.trainer.update({"groups_per_step": GROUPS_EACH * explorers, "group_size": 4})
    config.checkpoint.every_steps = 0
    config.evaluation.every_steps = 0
    config.explorer.update({"count": explorers, "groups_per_lease": GROUPS_EACH})
    config.rollout.slots = 4 * GROUPS_EACH
    config.rollout.streaming = asked.pop("streaming", False)
    config.sync.update({**asked, "transfer": "server"})
    return with_steps(plan_of(read_settings(config.to_dict())), steps)


def work_of(explorers: int) -> Workload:
    """Returns the work: a lease takes about as long as a trainer step."""
    source = random.Random(7)

    def length() -> int:
        return int(min(LONGEST, max(SHORTEST, source.lognormvariate(math.log(MEDIAN), TAIL))))

    lengths = tuple(tuple(length() for _ in range(4)) for _ in range(512))
    longest = statistics.fmean(max(rows) for rows in lengths)
    times = TransferTimes(Samples.of(1.0), Samples.of(1.0))
    return Workload(
        lengths=lengths,
        decoding=Decoding(step_secs=0.8 * STEP_SECS / longest),
        train=Samples.of(STEP_SECS),
        groups_per_step=GROUPS_EACH * explorers,
        transfers=dict.fromkeys(TRANSFERS, times),
        judge=Samples.of(0.1),
        insert=Samples.of(0.01),
    )


class Told(NamedTuple):
    """An event of a run, and its virtual time."""

    time_secs: float
    event: Event


class SimulatedRun(NamedTuple):
    """The events of a simulated run, and the spans of its roles."""

    plan: SpeedPlan
    events: list[Told]
    spans: list[Span]

    def held_back_secs(self, after_secs: float) -> float:
        """Returns the seconds in which explorers were held back, after a time, in all."""
        waits = [one for one in self.spans if one.kind is SpanKind.WAIT and is_explorer(one.role)]
        return sum(
            max(0.0, one.end_secs - max(one.start_secs, after_secs))
            for one in waits
            if one.attributes.get("reason") != "judgements"
        )


def run_of(name: str, explorers: int, steps: int, seed: int) -> SimulatedRun:
    """Simulates a run of a schedule."""
    plan, events = plan_named(name, explorers, steps), list[Told]()
    spans = simulate(plan, work_of(explorers), seed, lambda *told: events.append(Told(*told)))
    return SimulatedRun(plan, events, spans)


def as_served(told: Event, number: int, screens: bool) -> Event:
    """Returns the event that the master's server makes of a call.

    Requests have numbers. Where no group is replaced, the server scores groups and does not ask for
    their admission.
    """
    match told:
        case LeaseRequested():
            return told._replace(request=number)
        case GroupsJudged(judged) if not screens:
            return GroupsScored(
                tuple((lease_id, statistics.fmean(rewards)) for lease_id, rewards in judged)
            )
    return told


class Cost(NamedTuple):
    """CPU time of events of one kind, with their entries in the journal."""

    events: int
    secs: float


@dataclasses.dataclass
class Handled:
    """The master's work in the steps after the first.

    Attributes:
      costs: of each kind of event; requests that were held back are a kind of their own.
      steps: number of steps.
      state_bytes: greatest size of the state, just before a step.
      file_bytes, file_secs: greatest size of the state in the line with which a file of the
        journal begins, and the CPU time of making it.
      journal_bytes: bytes that were added to the journal.
      polls: number of requests that explorers repeat every second while they are held back.
    """

    costs: dict[str, Cost]
    steps: int
    state_bytes: int
    file_bytes: int
    file_secs: float
    journal_bytes: int
    polls: float

    @property
    def events(self) -> float:
        """Events a step; each sign of life of an explorer counts as one."""
        return (sum(cost.events for cost in self.costs.values()) + self.polls) / self.steps

    @property
    def secs(self) -> float:
        """CPU seconds a step."""
        held = self.costs.get(HELD)
        poll_secs = held.secs / held.events if held else 0.0
        whole = sum(cost.secs for cost in self.costs.values())
        return (whole + self.polls * poll_secs) / self.steps

    @property
    def life_secs(self) -> float:
        """CPU seconds a step for signs of life and expiry."""
        names = (ExplorersSeen.__name__, Ticked.__name__)
        return sum(self.costs[name].secs for name in names if name in self.costs) / self.steps


HELD = "LeaseRequested, held back"


class Master:
    """Handles events as the master's server does, with a journal, and counts what they cost."""

    def __init__(self, plan: SpeedPlan, journal: Journal) -> None:
        self.state, self._journal = MasterState(plan.master), journal
        self._spent: dict[str, list[float]] = collections.defaultdict(lambda: [0, 0.0])
        journal.begin(self.state, None)

    def take(self, event: Event, count: int = 1) -> Sequence[Command]:
        """Handles an event, which counts as `count` events."""
        began = time.thread_time()
        before = self.state
        self.state, commands = transition(before, event)
        if (entry := lasting(before, self.state, event, commands)) is not None:
            self._journal.append(entry)
            self._journal.commit()
        secs = time.thread_time() - began
        held = any(isinstance(one, HoldBack) for one in commands)
        spent = self._spent[HELD if held else type(event).__name__]
        spent[0] += count
        spent[1] += secs
        return commands

    def costs(self) -> dict[str, Cost]:
        """Returns the costs since the last call, by kind."""
        found = {name: Cost(int(count), secs) for name, (count, secs) in self._spent.items()}
        self._spent.clear()
        return found


def handle(run: SimulatedRun, directory: Path) -> Handled:
    """Hands the events of a run to the master, with signs of life in between."""
    journal = Journal(directory, sync=lambda file: None)
    master, explorers = Master(run.plan, journal), run.plan.master.explorers
    screens = run.plan.master.screening.replaces
    tick, began_secs, began_bytes = 1, 0.0, 0
    ticks = round(heartbeat_secs(explorers) / TICK_SECS)
    state_bytes = file_bytes = steps = 0
    file_secs = 0.0
    for number, (now_secs, event) in enumerate(run.events):
        while (tick_secs := tick * TICK_SECS) <= now_secs:
            heard = range(1 + tick % ticks, explorers + 1, ticks)
            master.take(ExplorersSeen(dict.fromkeys(heard, tick_secs)), count=len(heard))
            master.take(Ticked(tick_secs))
            tick += 1
        if isinstance(event, BatchTrained):
            state_bytes = max(state_bytes, size_of(master.state))
            began = time.thread_time()
            file_bytes = max(file_bytes, len(json.dumps(state_form(master.state))))
            file_secs = max(file_secs, time.thread_time() - began)
        master.take(as_served(event, number, screens))
        if isinstance(event, BatchTrained):
            steps += 1
            if steps == 1:
                master.costs()
                began_secs, began_bytes = now_secs, journal_bytes(directory)
    costs, added = master.costs(), journal_bytes(directory) - began_bytes
    journal.close()
    polls = run.held_back_secs(began_secs) / POLL_SECS
    return Handled(
        costs=costs,
        steps=steps - 1,
        state_bytes=state_bytes,
        file_bytes=file_bytes,
        file_secs=file_secs,
        journal_bytes=added,
        polls=polls,
    )


def journal_bytes(directory: Path) -> int:
    """Returns the size of a journal."""
    return sum(path.stat().st_size for path in directory.glob("*.jsonl"))


def size_of(state: MasterState) -> int:
    """Returns the bytes of all objects of a state except its settings."""
    found: set[int] = {id(state.settings)}
    todo: list[Any] = [
        getattr(state, field.name)
        for field in dataclasses.fields(state)
        if field.name != "settings"
    ]
    whole = 0
    while todo:
        one = todo.pop()
        if id(one) in found or isinstance(one, type | types.ModuleType | types.FunctionType):
            continue
        found.add(id(one))
        whole += sys.getsizeof(one)
        todo += gc.get_referents(one)
    return whole


def spread(values: Sequence[float], form: Callable[[float], str]) -> str:
    """Writes the least, the median and the greatest value."""
    return " / ".join(form(one) for one in (min(values), statistics.median(values), max(values)))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Writes a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


HEAD = (
    "schedule", "explorers", "events a step", "events a CPU second", "CPU seconds a step",
    "of it signs of life", "state, MB", "journal, kB a step", "first line, MB",
    "CPU seconds for it",
)  # fmt: skip


def row(name: str, explorers: int, found: Sequence[Handled]) -> list[str]:
    """Writes the figures of some seeds."""
    return [
        name,
        f"{explorers:,}",
        spread([one.events for one in found], "{:,.0f}".format),
        spread([one.events / one.secs for one in found], "{:,.0f}".format),
        spread([one.secs for one in found], "{:.3g}".format),
        spread([one.life_secs for one in found], "{:.3g}".format),
        spread([one.state_bytes / 1e6 for one in found], "{:.3g}".format),
        spread([one.journal_bytes / one.steps / 1e3 for one in found], number),
        spread([one.file_bytes / 1e6 for one in found], "{:.2g}".format),
        spread([one.file_secs for one in found], "{:.2g}".format),
    ]


def kinds(found: Sequence[Handled]) -> str:
    """Writes the microseconds of an event of each kind, and the number of such events a step."""
    names = sorted({name for one in found for name in one.costs})
    rows = []
    for name in names:
        costs = [(one.costs[name], one.steps) for one in found if name in one.costs]
        rows.append(
            [
                name,
                spread([cost.events / steps for cost, steps in costs], "{:,.0f}".format),
                spread([1e6 * cost.secs / cost.events for cost, _ in costs], "{:,.3g}".format),
            ]
        )
    return table(["event", "a step", "µs each"], rows)


def measure(name: str, explorers: int, steps: int, seeds: Sequence[int]) -> list[Handled]:
    """Simulates and measures runs of a schedule."""
    found = []
    for seed in seeds:
        run = run_of(name, explorers, steps, seed)
        with tempfile.TemporaryDirectory() as directory:
            found.append(handle(run, Path(directory)))
    return found


def profile(name: str, explorers: int, steps: int, seed: int) -> None:
    """Prints the functions of the master in which a run spends its time."""
    run = run_of(name, explorers, steps, seed)
    with tempfile.TemporaryDirectory() as directory, cProfile.Profile() as profiled:
        handle(run, Path(directory))
    pstats.Stats(profiled).sort_stats("tottime").print_stats("rl_sync/|json", 16)


def calls_table(counts: Sequence[int], repeats: int, secs: float) -> str:
    """Measures the real server with several numbers of explorers; returns the table."""
    found = {
        count: [figures(measure_calls(count, secs)) for _ in range(repeats)] for count in counts
    }
    heads = [*found[counts[0]][0]]
    rows = [
        [head, *(spread([one[head] for one in found[count]], number) for count in counts)]
        for head in heads
    ]
    return table(["explorers", *map(str, counts)], rows)


def pace_table(counts: Sequence[int], repeats: int, secs: float, lease: int) -> str:
    """Measures the real server at a pace of 64 groups a minute; returns the table."""
    found = {
        count: [pace_figures(paced(count, _GROUPS_A_MINUTE, lease, secs)) for _ in range(repeats)]
        for count in counts
    }
    rows = [
        [head, *(spread([one[head] for one in found[count]], number) for count in counts)]
        for head in found[counts[0]][0]
    ]
    return table(["explorers", *(f"{count:,}" for count in counts)], rows)


def number(value: float) -> str:
    """Writes three significant digits, and whole numbers from 100 on."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def main() -> None:
    """Measures, and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--explorers", help="numbers of explorers, such as 10,100")
    parser.add_argument("--schedules", default="; ".join(SCHEDULES), help="names, by semicolons")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--steps", type=int, default=4, help="trainer steps of a simulated run")
    parser.add_argument("--calls", action="store_true", help="measure the real server")
    parser.add_argument("--paced", action="store_true", help="the real server at a run's pace")
    parser.add_argument("--lease", type=int, default=16, help="groups of a lease with --paced")
    parser.add_argument("--secs", type=float, default=3.0, help="seconds of a part with --calls")
    parser.add_argument("--profile", action="store_true", help="profile the master")
    arguments = parser.parse_args()
    seeds = [*map(int, arguments.seeds.split(","))]
    given = arguments.explorers and [*map(int, arguments.explorers.split(","))]
    counts = given or (CONNECTIONS if arguments.calls else PACED if arguments.paced else COUNTS)
    if arguments.paced:
        allow_open_files()
        print(pace_table(counts, len(seeds), arguments.secs, arguments.lease))
        return
    if arguments.calls:
        print(calls_table(counts, len(seeds), arguments.secs))
        return
    names = [name.strip() for name in arguments.schedules.split(";")]
    rows = []
    for name in names:
        for explorers in counts:
            if arguments.profile:
                profile(name, explorers, arguments.steps, seeds[0])
                continue
            found = measure(name, explorers, arguments.steps, seeds)
            rows.append(row(name, explorers, found))
            print(f"{name}, {explorers} explorers\n\n{kinds(found)}\n", flush=True)
    if rows:
        print(table(HEAD, rows))


if __name__ == "__main__":
    main()
