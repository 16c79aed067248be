"""The master's journal: recovery gives the live state, whatever was written last."""

from __future__ import annotations

import json
import os
import random
import shutil
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_sync.messages.events import (
    BatchTrained,
    ExplorerDied,
    ExplorersSeen,
    GrantLeases,
    GroupsBuffered,
    GroupsJudged,
    GroupsRefused,
    GroupsScored,
    LeaseRequested,
    Position,
    SnapshotSaved,
    Started,
    StopRequested,
    Ticked,
    VersionPublished,
)
from rl_sync.records.json_lines import RecordsError
from rl_sync.roles.master import transition
from rl_sync.roles.master.journal import (
    Journal,
    JournalError,
    lasting,
    read_journal,
    recover,
    state_form,
)
from rl_sync.roles.master.server_memory import ServerMemory
from rl_sync.schedule import resolve
from rl_sync.tasks.curriculum import CurriculumSettings, PromptPool
from tests.roles.master.mastering import SAME, SPREAD, failed, needing_spread, settings_of

MEMORY = ServerMemory(0.0)
RECORDED = Path(__file__).parents[2] / "data" / "journal"


def without_deadlines(state):
    """Returns the JSON form of a state in which all deadlines are 0."""

    def cleared(form):
        if isinstance(form, dict):
            form = {name: cleared(one) for name, one in form.items()}
            return {**form, "deadline_secs": 0.0} if "deadline_secs" in form else form
        return [cleared(one) for one in form] if isinstance(form, list) else form

    return cleared(state_form(state))


class LiveMaster:
    """A master's state with its journal, as the server keeps them."""

    def __init__(self, directory, run):
        self.state, self.journal = transition.MasterState(run), Journal(directory)
        self.journal.begin(self.state, MEMORY)
        self.written = 0

    def take(self, event):
        before = self.state
        self.state, commands = transition.transition(before, event)
        if (entry := lasting(before, self.state, event, commands)) is not None:
            self.journal.append(entry)
            self.written += 1
        return commands


@pytest.mark.gate
@pytest.mark.parametrize("mode", ["synchronous", "asynchronous", "multi_explorer"])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), selection=st.sampled_from(["shuffled", "difficulty_band"]))
def test_recovery_gives_the_live_state_after_any_events(tmp_path_factory, mode, seed, selection):
    draw, directory = random.Random(seed), tmp_path_factory.mktemp("journal")
    run = settings_of(
        resolve(mode), 30, 3, 2, groups_per_lease=2, screening=needing_spread(2), max_leases=2
    )
    run = run.__class__(
        **{
            **vars(run),
            "curriculum": CurriculumSettings(selection=selection),
            "pool": PromptPool(40),
        }
    )
    master = LiveMaster(directory, run)
    master.take(Started(Position(0, 0, (), 0)))
    master.take(VersionPublished(0))
    now = 0.0
    for number in range(draw.randint(1, 150)):
        now += draw.choice([0.5, 4.0])
        live = master.state.live
        some = tuple(draw.sample(sorted(live), min(len(live), draw.randint(0, 3))))
        step = master.state.trained_steps + 1
        buffered = [i for i, lease in sorted(live.items()) if lease.buffered]
        fitting = [
            i for i in buffered if mode != "synchronous" or run.step_of(live[i].ordinal) == step
        ]
        events = [
            LeaseRequested(draw.randint(1, 2), now, request=number),
            LeaseRequested(draw.randint(1, 2), now, request=number // 2),
            GroupsJudged(
                tuple((i, draw.choice([SPREAD, SAME])) for i in some),
                tuple(failed(i) for i in some if draw.random() < 0.3),
            ),
            GroupsScored(tuple((i, draw.random()) for i in some)),
            GroupsBuffered(some),
            GroupsRefused(some[:1], "too stale"),
            ExplorersSeen({draw.randint(1, 2): now}),
            Ticked(now),
            *[ExplorerDied(draw.randint(1, 2))] * (draw.random() < 0.2),
            *[SnapshotSaved(step - 1)] * (draw.random() < 0.2),
            *[StopRequested("enough")] * (draw.random() < 0.01),
            *[BatchTrained(step, tuple(fitting[:3]))] * (2 * (len(fitting) >= 3)),
        ]
        event = draw.choice(events)
        master.take(event)
        if isinstance(event, BatchTrained):
            master.take(VersionPublished(step))
        if isinstance(event, SnapshotSaved):
            master.journal.begin(master.state, MEMORY)
    master.journal.commit()
    assert without_deadlines(recover(directory, run)) == without_deadlines(master.state)
    shutil.rmtree(directory)


def test_only_what_changes_more_than_deadlines_is_written(tmp_path):
    master = LiveMaster(tmp_path, settings_of(resolve("asynchronous")))
    master.take(LeaseRequested(1, 0.0))  # Held back: there are no weights.
    master.take(Started(Position(0, 0, (), 0)))
    master.take(VersionPublished(0))
    written = master.written
    (grant, _) = master.take(LeaseRequested(1, 0.0, request=7))
    assert isinstance(grant, GrantLeases)
    for event in (ExplorersSeen({1: 5.0}), Ticked(9.0), LeaseRequested(1, 9.0, request=7)):
        master.take(event)
    assert (written, master.written) == (2, 3)
    master.take(Ticked(99.0))
    master.journal.commit()
    (entry,) = read_journal(tmp_path).entries[-1:]
    assert entry.kind == "LeasesExpired"
    assert entry.fields == {"lease_ids": [one.lease_id for one in grant.leases]}


@pytest.fixture
def written(tmp_path):
    """The path of a journal with two events, and its settings."""
    master = LiveMaster(tmp_path, settings_of(resolve("asynchronous")))
    master.take(Started(Position(0, 0, (), 0)))
    master.take(VersionPublished(0))
    master.journal.commit()
    (path,) = tmp_path.glob("*.jsonl")
    return path, master.state.settings


@pytest.mark.parametrize("torn", [b'{"kind":"VersionPub', b"\0\0\0\0\n"])
def test_a_torn_last_line_is_left_out(written, torn):
    path, run = written
    path.write_bytes(path.read_bytes() + torn)
    assert recover(path.parent, run).newest == 0


def test_a_damaged_line_in_the_middle_is_an_error_that_names_it(written):
    path, run = written
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([lines[0], b"nonsense", *lines[2:]]))
    with pytest.raises(JournalError, match=rf"{path}, line 2 is damaged"):
        recover(path.parent, run)


def test_a_new_file_replaces_the_older_ones_only_once_its_beginning_is_whole(written):
    path, run = written
    newer = path.with_name("00000002.jsonl")
    newer.write_bytes(b'{"state":{"newest":5')
    assert recover(path.parent, run).newest == 0
    journal = Journal(path.parent)
    state = transition.transition(recover(path.parent, run), VersionPublished(3))[0]
    journal.begin(state, MEMORY)
    assert [one.name for one in path.parent.iterdir()] == ["00000003.jsonl"]
    assert recover(path.parent, run).newest == 3


def test_what_waits_for_the_disk_when_a_new_file_begins_is_in_its_beginning_alone(tmp_path):
    master = LiveMaster(tmp_path, settings_of(resolve("asynchronous")))
    master.take(Started(Position(0, 0, (), 0)))
    master.take(VersionPublished(0))
    assert master.written == 2
    master.journal.begin(master.state, MEMORY)
    master.journal.commit()
    assert not read_journal(tmp_path).entries
    master.take(VersionPublished(1))
    master.journal.commit()
    assert [entry.kind for entry in read_journal(tmp_path).entries] == ["VersionPublished"]
    recovered = recover(tmp_path, master.state.settings)
    assert without_deadlines(recovered) == without_deadlines(master.state)


def test_without_a_journal_recovery_says_what_to_do(tmp_path):
    with pytest.raises(JournalError, match=r"has no journal of a master. Start the run again"):
        recover(tmp_path, settings_of(resolve("asynchronous")))


def test_calls_at_the_same_time_share_a_flush(tmp_path):
    may_flush, flushes = threading.Event(), []

    def sync(descriptor):
        flushes.append(descriptor)
        assert may_flush.wait(20)

    journal = Journal(tmp_path, sync)
    may_flush.set()
    journal.begin(transition.MasterState(settings_of(resolve("asynchronous"))), MEMORY)
    may_flush.clear()
    flushes.clear()

    def call(version):
        journal.append(VersionPublished(version))
        journal.commit()

    threads = [threading.Thread(target=call, args=[version]) for version in range(50)]
    threads[0].start()
    while not flushes:
        pass
    for thread in threads[1:]:
        thread.start()
    while journal._appended < 50:
        pass
    assert all(thread.is_alive() for thread in threads), "a call has not waited for the disk"
    may_flush.set()
    for thread in threads:
        thread.join(20)
    assert len(flushes) == 2
    assert len(read_journal(tmp_path).entries) == 50


def test_a_journal_that_cannot_be_written_is_deleted_and_said_once(tmp_path):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    journal = Journal(tmp_path)
    journal.begin(transition.MasterState(settings_of(resolve("asynchronous"))), MEMORY)
    journal._sync = full
    journal.append(VersionPublished(1))
    with pytest.raises(RecordsError, match="No space left on device"):
        journal.commit()
    assert list(tmp_path.iterdir()) == []
    journal.append(VersionPublished(2))
    journal.commit()


def test_a_journal_of_an_earlier_version_is_still_read(tmp_path):
    """It was recorded by a real run; fields are added and taken away here."""
    (source,) = RECORDED.glob("*.jsonl")
    first, *rest = (json.loads(line) for line in source.read_text().splitlines())
    del first["state"]["batches"], first["memory"]["weights"]
    first["state"]["of_the_past"] = 1
    for line in rest:
        line["fields"]["of_the_past"] = [1, 2]
    lines = [json.dumps(line) for line in (first, *rest)]
    (tmp_path / os.path.basename(source)).write_text("\n".join([*lines, ""]))
    run = settings_of(resolve("asynchronous"), 100_000, 6, groups_per_lease=6)
    state = recover(tmp_path, run)
    trained = [line for line in rest if line["kind"] == "CountedStep"]
    assert len(trained) >= 3
    assert state.trained_steps == trained[-1]["fields"]["call"]["event"]["step"]
    leased = [line for line in rest if line["kind"] == "LeaseRequested"]
    assert len(leased) >= 3
    assert state.leased == state.trained + len(state.live) + sum(state.dropped.values())
    assert state.trained == 6 * state.trained_steps
