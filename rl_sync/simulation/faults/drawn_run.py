"""Runs drawn from seeds: the schedule, the way of generating, and the faults of each."""

from __future__ import annotations

import dataclasses
import random
from typing import NamedTuple

from rl_sync.algorithms.screening import UNBOUNDED, Screening
from rl_sync.schedule import SyncSchedule, resolve

MASTER, TRAINER, REPLAY = "master", "trainer", "replay"
KINDS = (
    "crash",
    "outage",
    "power",
    "stall",
    "partition",
    "full disk",
    "delay",
    "duplicate",
    "loss",
    "damage",
)
"""Kinds of faults.

In an `outage` all processes die at once. With `power`, a death also costs writes that were not
flushed. With `damage`, weights arrive with wrong bytes now and then.
"""

_LISTED = ("crash", "outage", "stall", "partition", "full disk")
_OF_ALL = {"outage": "all", "full disk": "the disk"}
_COMMANDS = {MASTER: 300, REPLAY: 150, TRAINER: 60}
_COMMANDS_OF_OTHERS = 100
_SHARE_JOINT, _SHARE_SCREENED, _SHARE_TOLD, _SHARE_PLAYED, _ATTEMPTS = 0.3, 0.3, 0.5, 0.5, 3
"""Crashes come at one of this many first commands of a process."""

FAULTY_SECS = 40.0
"""Time after which all faults have ended."""


class DrawnFault(NamedTuple):
    """A fault at a certain time, or command of a process.

    Attributes:
      kind: one of `KINDS`.
      process: name of the process; `all`, or `the disk`.
      at: number of the command at which it crashes; for other kinds the time, in seconds.
      secs: time that it lasts.
    """

    kind: str
    process: str
    at: float
    secs: float = 0.0

    def __str__(self) -> str:
        when = f"at command {self.at:.0f}" if self.kind == "crash" else f"at {self.at:.1f} s"
        lasts = f" for {self.secs:.1f} s" if self.secs else ""
        return f"{self.kind} of {self.process} {when}{lasts}"


@dataclasses.dataclass(frozen=True)
class DrawnRun:
    """A run to simulate.

    Attributes:
      seed: seed of everything that is random in the run.
      schedule, steps, groups_per_step, explorers, times_sampled: see `MasterSettings`.
      left_over: number of groups that are generated for a step beyond those that it trains on.
      screens: whether groups of equal rewards are generated anew; under latest pulls.
      tells: whether the master is told the tokens of groups in flight, which then go on.
      plays: whether groups in flight are episodes, which may begin again, and may go on otherwise
        elsewhere.
      groups: maximum number of groups that an explorer has in flight.
      style: `whole` rollouts, rollouts that leave groups to the next (`carry`), or `stream`.
      swaps: whether weights may change while completions are in flight.
      transfer: `server` or `checkpoint`: weights in the trainer's memory, or in files.
      save_every_steps, memory_every_steps, evaluate_every_steps: see `TrainerPlan`.
      keep: number of newest snapshots that are kept.
      restarts: number of restarts that each role may have before the run ends, and is resumed.
      kinds: kinds of faults that happen.
      faults: faults at certain times or commands, in any order.
    """

    seed: int
    schedule: SyncSchedule
    steps: int
    groups_per_step: int
    explorers: int
    groups: int
    times_sampled: int
    style: str
    swaps: bool
    transfer: str
    save_every_steps: int
    keep: int
    memory_every_steps: int
    evaluate_every_steps: int
    restarts: int
    fanout: int
    kinds: frozenset[str]
    faults: tuple[DrawnFault, ...]
    left_over: int = 0
    screens: bool = False
    tells: bool = False
    plays: bool = False

    @property
    def is_joint(self) -> bool:
        """True if trainer and explorers are processes of one cluster."""
        return self.transfer == "collective"

    @property
    def is_exact(self) -> bool:
        """True if the run's result is the same whatever happens."""
        return self.schedule.pull == "exact"

    @property
    def screening(self) -> Screening:
        """The rule by which groups are generated anew."""
        attempts = _ATTEMPTS if self.screens else 1
        return Screening(self.screens, -UNBOUNDED, UNBOUNDED, attempts)

    @property
    def groups_generated(self) -> int:
        """Number of groups that are generated for a step."""
        return self.groups_per_step + self.left_over

    @property
    def processes(self) -> tuple[str, ...]:
        """Names of the processes, in the order in which they are started."""
        explorers = (f"explorer{n}" for n in range(1, self.explorers + 1))
        return MASTER, REPLAY, TRAINER, *explorers

    def __str__(self) -> str:
        schedule = self.schedule
        how = f"interval {schedule.interval}, offset {schedule.offset}, {schedule.pull} pulls"
        return (
            f"seed {self.seed}: {how}, bound {schedule.staleness_bound}, {self.steps} steps of"
            f" {self.groups_per_step} groups of {self.groups_generated}"
            f"{' (screened)' if self.screens else ''}, {self.explorers} explorers ({self.style},"
            f" swaps {self.swaps}, {self.groups} groups each), {self.transfer} transfer (fanout"
            f" {self.fanout}), groups sampled {self.times_sampled} times, snapshots every"
            f" {self.save_every_steps} steps, in memory every {self.memory_every_steps}"
            f"{', tokens told' if self.tells else ''}{', episodes' if self.plays else ''}"
        )


def draw(seed: int) -> DrawnRun:
    """Draws the run of a seed."""
    chance = random.Random(f"run {seed}")
    exact = chance.random() < 0.5
    interval = chance.choice((1, 1, 2, 3))
    offset = chance.choice((0, 0, 1, 2)) if exact else 0
    bound = None if exact else interval - 1 + chance.choice((0, 1, 2, 3))
    pull = "exact" if exact else "latest"
    schedule = resolve("custom", interval, offset, bound, pull)
    explorers = chance.choice((1, 2, 2, 3))
    groups_per_step = chance.choice((1, 2, 3, 4))
    style = "whole" if exact else chance.choice(("whole", "carry", "stream"))
    times = 1 if exact or interval + 1 > schedule.max_staleness else chance.choice((1, 1, 2))
    run = DrawnRun(
        seed=seed,
        schedule=schedule,
        steps=chance.randint(3, 6),
        groups_per_step=groups_per_step,
        explorers=explorers,
        groups=chance.randint(1, groups_per_step),
        times_sampled=times,
        style=style,
        swaps=not exact and chance.random() < 0.3,
        transfer=chance.choice(("server", "checkpoint")),
        save_every_steps=chance.choice((1, 2, 3)),
        keep=chance.choice((1, 2)),
        memory_every_steps=random.Random(f"memory {seed}").choice((0, 1, 2)),
        evaluate_every_steps=0 if exact else chance.choice((0, 0, 2)),
        restarts=random.Random(f"restarts {seed}").choice((1, 3, 100)),
        fanout=0,
        kinds=frozenset(),
        faults=(),
    )
    if random.Random(f"cluster {seed}").random() < _SHARE_JOINT:
        run = dataclasses.replace(run, transfer="collective", swaps=False)
        if run.is_exact:  # Each explorer comes to each version.
            run = dataclasses.replace(run, explorers=min(explorers, groups_per_step))
    if run.transfer == "server" and explorers > 1:
        fanout = random.Random(f"fanout {seed}").choice((0, 1, 2))
        run = dataclasses.replace(run, fanout=fanout)
    if not exact:
        screening = random.Random(f"screening {seed}")
        left_over, screens = screening.choice((0, 0, 1, 2)), screening.random() < _SHARE_SCREENED
        run = dataclasses.replace(run, left_over=left_over, screens=screens)
    run = dataclasses.replace(
        run,
        tells=random.Random(f"progress {seed}").random() < _SHARE_TOLD,
        plays=random.Random(f"episodes {seed}").random() < _SHARE_PLAYED,
    )
    kinds = [kind for kind in KINDS if chance.random() < 0.5]
    return dataclasses.replace(run, kinds=frozenset(kinds), faults=_faults(run, kinds, chance))


def _faults(run: DrawnRun, kinds: list[str], chance: random.Random) -> tuple[DrawnFault, ...]:
    found = []
    for kind in kinds:
        if kind not in _LISTED:
            continue
        for _ in range(chance.randint(1, 6 if kind == "crash" else 2)):
            process = _OF_ALL.get(kind) or chance.choice(run.processes)
            if kind == "crash":
                most = _COMMANDS.get(process, _COMMANDS_OF_OTHERS)
                found.append(DrawnFault(kind, process, chance.randint(1, most)))
            else:
                at, secs = chance.uniform(0.0, FAULTY_SECS - 10), chance.uniform(0.5, 10.0)
                found.append(DrawnFault(kind, process, at, 0.0 if kind == "outage" else secs))
    return tuple(found)
