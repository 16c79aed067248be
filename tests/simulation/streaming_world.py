"""A run of streaming explorers in virtual time: the master's decisions, and the trainer's reader.

Everything else is random: durations, deaths, silence, judgements, the travel of weights, and the
order of what happens at once.
"""

import contextlib
import dataclasses
import functools
import random
from types import SimpleNamespace

import numpy as np

from rl_sync.algorithms.screening import NO_SCREENING
from rl_sync.messages.events import (
    BatchRequested,
    BatchTrained,
    ExplorerDied,
    ExplorersSeen,
    Finish,
    GrantLeases,
    GroupsBuffered,
    GroupsJudged,
    HoldBack,
    LeaseRequested,
    Position,
    Started,
    Ticked,
    VersionPublished,
)
from rl_sync.messages.master_calls import AskBatch, Happened
from rl_sync.ports.clock_port import SystemClock
from rl_sync.replay.replay_interface import ReplayTimeoutError
from rl_sync.roles.master import transition
from rl_sync.roles.master.state import MasterSettings
from rl_sync.roles.trainer.batch_reader import BatchReader
from rl_sync.schedule import resolve
from rl_sync.simulation.event_queue import EventQueue
from rl_sync.types import Group
from tests.roles.master.mastering import SAME, SPREAD, accounted, failed, needing_spread
from tests.settings.changed import settings_with

LEASE_SECS = 5.0
LONGEST_SECS = 5_000.0


@functools.cache
def settings_of(needed, generated):
    return settings_with(
        sync__mode="asynchronous",
        rollout__streaming=True,
        trainer__groups_per_step=needed,
        algorithm__over_sampling=generated / needed,
        algorithm__filter_zero_variance=generated > needed,
        optimizer__updates_per_batch=1,
    )


class World:
    """A run.

    Attributes:
      trained: groups that each step trained on or left out.
    """

    def __init__(self, seed):
        self.draw = draw = random.Random(seed)
        interval = draw.choice([1, 1, 2, 3])
        self.schedule = resolve("custom", interval, 0, interval - 1 + draw.randint(0, 4), "latest")
        self.needed = draw.randint(1, 4)
        self.generated = self.needed + draw.choice([0, 0, 1, 3])
        self.steps = draw.randint(2, 7)
        self.slots = draw.randint(1, 2 * self.generated + 2)
        self.streams = draw.random() < 0.7
        self.trouble = draw.choice(["", "", "silence", "death", "screening", "failures", "all"])
        self.tail = draw.choice([0.3, 1.0, 2.0])
        self.paces = draw.choice([0.1, 1.0, 5.0]), draw.choice([0.0, 1.0, 20.0])
        self.sampler = draw.choice(["fifo", "fifo", "lifo", "uniform"])
        explorers = draw.randint(1, 3)
        ahead = self.schedule.batches_ahead * self.generated + explorers * self.slots
        self.capacity = draw.choice([1, self.generated, ahead])
        screens = self.has("screening")
        self.queue = EventQueue(seed)
        self.state = transition.MasterState(
            MasterSettings(
                self.schedule,
                self.steps,
                self.generated,
                explorers,
                groups_per_lease=self.slots,
                lease_secs=LEASE_SECS,
                carries_over=True,
                screening=needing_spread(draw.randint(2, 4)) if screens else NO_SCREENING,
                max_leases=draw.randint(2, 3),
            )
        )
        self.buffer, self.trained = [], []
        self.tell(Started(Position(0, 0, (), 0)))
        self.tell(VersionPublished(0))
        self.explorers = [Explorer(self, number) for number in range(1, explorers + 1)]
        self.tick()

    def has(self, trouble):
        return self.trouble in (trouble, "all")

    def run(self):
        """Trains on all steps; at most two of them are in flight, as in `StepsInFlight`."""
        session = Session(settings_of(self.needed, self.generated), self.answer, self.check)
        reader = BatchReader(session, self, "groups", self.schedule, self.idle)
        for step in range(1, self.steps + 1):
            batch = reader.next(step)
            self.trained.append([*batch.groups, *batch.left_out])
            event = BatchTrained(
                step,
                tuple(group.lease_id for group in batch.groups),
                tuple(batch.left_out),
                tuple(batch.kept),
            )
            for group in batch.groups:
                assert self.schedule.accepts(step, group.oldest_version), "the bound is broken"
            while self.state.trained_steps < step - 1:
                self.idle()
            self.queue.after(self.draw.expovariate(1 / self.paces[0]), lambda e=event: self.end(e))
        while self.state.trained_steps < self.steps:
            self.idle()
        self.state, _ = transition.end(self.state)

    def end(self, event):
        """Ends a trainer step: its report and its version may come in any order."""
        if self.state.trained_steps < event.step - 1:
            self.queue.after(0.1, lambda: self.end(event))
            return
        parts = [lambda: self.tell(event)]
        if self.schedule.publishes_after(event.step):
            parts.append(lambda: self.tell(VersionPublished(event.step)))
        self.draw.shuffle(parts)
        for part in parts:
            part()

    def tell(self, event):
        self.state, commands = transition.transition(self.state, event)
        assert accounted(self.state) == self.state.leased, "the ledger does not balance"
        assert self.fits(), f"not all groups can meet their deadlines after {event}"
        return commands

    def fits(self):
        """Says whether steps train on all live groups in time, the oldest versions first."""
        live = self.state.live.values()
        taken = max([self.state.trained_steps, *(one.taken for one in live)])
        last = [
            min(self.steps, one.version + self.schedule.max_staleness + 1)
            for one in live
            if not one.taken
        ]
        return all(
            number <= (step - taken) * self.generated
            for number, step in enumerate(sorted(last), start=1)
        )

    def idle(self):
        assert self.queue.now_secs < LONGEST_SECS, "the run came to a halt"
        self.queue.step()

    def check(self):
        """The reader's deadline, which it checks in each turn."""

    def tick(self):
        now = self.queue.now_secs
        self.tell(Ticked(now))
        for one in self.explorers:
            if now >= one.silent_until:
                self.tell(ExplorersSeen({one.number: now}))
        self.queue.after(1.0, self.tick)

    def answer(self, call):
        match call:
            case AskBatch(step, at_hand):
                return self.tell(BatchRequested(step, tuple(at_hand)))[-1]
            case Happened(event):
                self.tell(event)

    def sample(self, table, count, timeout_secs):
        del table, timeout_secs
        if not self.buffer:
            raise ReplayTimeoutError
        order = {"fifo": lambda: 0, "lifo": lambda: -1}
        order = order.get(self.sampler, lambda: self.draw.randrange(len(self.buffer)))
        taken = [self.buffer.pop(order()) for _ in range(min(count, len(self.buffer)))]
        return [SimpleNamespace(columns=group.to_columns()) for group in taken]

    def duration(self, median):
        return median * min(self.draw.lognormvariate(0.0, self.tail), 40.0)


@dataclasses.dataclass
class Explorer:
    """An explorer, to which weights travel for some time.

    Attributes:
      held: lease id of each unfinished group, and the version that it began with.
      life: number of its deaths.
      waits: whether it waits for weights.
      travels: whether weights travel to it, of which it gets one version after the other.
    """

    world: World
    number: int
    version: int | None = None
    at_hand: int = -1
    silent_until: float = 0.0
    life: int = 0
    waits: bool = False
    travels: bool = False

    def __post_init__(self):
        self.held = {}
        self.look(self.life)

    def after(self, secs, act, *arguments):
        """Acts later, unless it has died by then."""
        life = self.life
        self.world.queue.after(secs, lambda: self.life == life and act(*arguments))

    def look(self, life):
        """Asks for work now and then, and has its troubles."""
        if life != self.life:
            return
        world, draw = self.world, self.world.draw
        newest = world.state.newest
        if newest > self.at_hand and not self.travels:
            self.travels = True
            self.after(world.duration(world.paces[1]), self.arrive, newest)
        if world.has("silence") and draw.random() < 0.02:
            self.silent_until = world.queue.now_secs + draw.choice([3.0, 15.0])
        if world.has("death") and draw.random() < 0.02:
            world.tell(ExplorerDied(self.number))
            self.life += 1
            self.held, self.version, self.at_hand = {}, None, -1
            self.waits = self.travels = False
            world.queue.after(2.0, lambda life=self.life: self.look(life))
            return
        if not self.waits:
            self.ask()
        self.after(draw.uniform(0.1, 0.6), self.look, life)

    def arrive(self, version):
        self.at_hand, self.travels = version, False

    def ask(self):
        world, mine = self.world, len(self.held)
        room = max(0, self.world.slots - mine) if world.streams else None
        has = None if self.version is None else max(self.version, self.at_hand)
        request = LeaseRequested(self.number, world.queue.now_secs, mine, room, has)
        answer = world.tell(request)[0]
        assert not (mine and isinstance(answer, HoldBack)), "an explorer with groups was held back"
        if isinstance(answer, GrantLeases):
            self.begin(answer)
        else:
            assert isinstance(answer, HoldBack | Finish)

    def begin(self, grant):
        """Begins groups once it has the weights; it takes the newest that it has."""
        world = self.world
        has = self.version is not None and self.version >= grant.version
        self.waits = not has and self.at_hand < grant.version
        if self.waits:
            self.after(0.1, self.begin, grant)
            return
        if not has:
            self.version = self.at_hand
        for one in grant.leases:
            self.held[one.lease_id] = self.version
            self.after(world.duration(1.0), self.finish, one)

    def finish(self, one):
        began = self.held.pop(one.lease_id)
        self.after(self.world.duration(self.world.paces[0]), self.judge, one, began)

    def judge(self, one, began):
        world, draw = self.world, self.world.draw
        rewards = SAME if world.has("screening") and draw.random() < 0.3 else SPREAD
        lost = world.has("failures") and draw.random() < 0.2
        told = (failed(one.lease_id),) if lost else ()
        admit = world.tell(GroupsJudged(((one.lease_id, rewards),), told))[0]
        if one.lease_id in admit.lease_ids:
            self.insert(one, began)

    def insert(self, one, began):
        """Inserts a group once there is room, and tells the master, unless it dies before."""
        world = self.world
        if len(world.buffer) >= world.capacity:
            self.after(0.1, self.insert, one, began)
            return
        world.buffer.append(
            Group(
                lease_id=one.lease_id,
                ordinal=one.ordinal,
                prompt_id=0,
                explorer=self.number,
                tokens=np.zeros((1, 1), np.int32),
                completion_mask=np.ones((1, 1), bool),
                behavior_logprobs=np.zeros((1, 1), np.float32),
                policy_versions=np.full((1, 1), began, np.int32),
                rewards=np.zeros(1, np.float32),
            )
        )
        self.after(world.draw.choice([0.0, 0.3]), self.tell_buffered, one.lease_id)

    def tell_buffered(self, lease_id):
        self.world.tell(GroupsBuffered((lease_id,)))


@dataclasses.dataclass
class Session:
    """The trainer's session, whose calls the world answers."""

    settings: object
    call: object
    check: object
    leads = True
    clock = SystemClock()
    spans = SimpleNamespace(span=lambda *_, **__: contextlib.nullcontext({}))

    def agree(self, what, thunk):
        del what
        return thunk()

    def deadline(self, what, whom):
        del what, whom
        return self.check
