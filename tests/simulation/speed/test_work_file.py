"""The work of a run is a file that can be edited."""

import json

import pytest

from rl_sync.settings.records import ConfigError
from rl_sync.simulation.speed.measured_work import MeasuredWork
from rl_sync.simulation.speed.work_file import read_work_file, write_work
from rl_sync.simulation.speed.workload import (
    NOTHING,
    Decoding,
    Samples,
    SharedCores,
    Workload,
    rows_of_secs,
)
from tests.simulation.speed.plans import work_with


def test_a_file_gives_back_the_same_work(tmp_path):
    for shared in (None, SharedCores(2.0, 1.5, 0.5)):
        more = {"judge": Samples.of(0.1, 0.2), "waiting": Samples.of(0.3), "shared": shared}
        work = work_with(lengths=((1, 2), (3, 4)), **more)
        found = MeasuredWork(work, True, 20, ("server",))
        write_work(tmp_path / "work.json", found)
        assert read_work_file(tmp_path / "work.json") == found


def test_a_number_stands_for_a_constant(tmp_path):
    path = tmp_path / "work.json"
    write_work(path, MeasuredWork(work_with(), False, 20, ()))
    fields = json.loads(path.read_text())
    fields["work"]["train"] = 3.5
    del fields["work"]["waiting"]  # Files of earlier versions lack it.
    path.write_text(json.dumps(fields))
    assert read_work_file(path).work.train == Samples.of(3.5)
    assert read_work_file(path).work.waiting == NOTHING


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda fields: fields["work"].pop("train"), "lacks the field 'train'"),
        (lambda fields: fields["work"].update(train=[]), "one or more values"),
        (lambda fields: fields["work"].update(train="fast"), "could not convert"),
        (lambda fields: fields["work"].update(lengths=[]), "at least one token"),
        (lambda fields: fields.update(work=3), "is not the work of a run"),
    ],
)
def test_a_broken_file_is_refused_in_one_line(tmp_path, change, said):
    path = tmp_path / "work.json"
    write_work(path, MeasuredWork(work_with(), False, 20, ()))
    fields = json.loads(path.read_text())
    change(fields)
    path.write_text(json.dumps(fields))
    with pytest.raises(ConfigError, match=said) as refused:
        read_work_file(path)
    assert "\n" not in str(refused.value)
    path.write_text("{")
    with pytest.raises(ConfigError, match="is not the work of a run"):
        read_work_file(path)


def test_given_durations_are_completions():
    lengths, decoding = rows_of_secs([1.5, 0.25])
    assert [decoding.secs(max(rows), sum(rows)) for rows in lengths] == [1.5, 0.25]


def test_samples_are_values_of_at_least_zero():
    for values in ((), (-1.0,)):
        with pytest.raises(ValueError, match="one or more values"):
            Samples(values)
    assert Samples.of(1.0, 3.0).mean == 2.0
    assert Samples.of(1.0, 3.0).scaled(2.0) == Samples.of(2.0, 6.0)


def test_other_devices_change_times_and_may_end_sharing():
    work = work_with(shared=SharedCores(2.0, 2.0, 2.0), evaluate=Samples.of(4.0))
    other = work.on_devices(trainer=2.0, explorer=4.0, apart=False)
    assert isinstance(other, Workload)
    assert other.train == Samples.of(0.5)
    assert other.decoding == Decoding(0.0005)
    assert other.evaluate == Samples.of(1.0)
    assert other.shared == work.shared
    assert work.on_devices(1.0, 1.0, apart=True).shared is None
