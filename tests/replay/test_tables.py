"""Specifications of tables."""

import pytest

from rl_sync.replay import tables
from rl_sync.replay.tables import TableSpec


def test_a_queue_is_reverbs_queue():
    spec = tables.queue("q", 4)
    assert (spec.sampler, spec.max_times_sampled) == ("fifo", 1)
    limits = (spec.samples_per_insert, spec.min_size_to_sample, spec.min_diff, spec.max_diff)
    assert limits == (1.0, 1, 0.0, 4.0)


def test_a_queue_of_several_draws_has_room_for_as_many_items_and_never_removes_one():
    spec = tables.queue("q", 4, "uniform", times=3)
    assert (spec.sampler, spec.max_times_sampled, spec.samples_per_insert) == ("uniform", 3, 3.0)
    assert spec.max_size == spec.max_diff == 12, "an item with one draw left is an item"


def test_json_round_trip():
    specs = [tables.queue("q", 4), TableSpec("p", 10, "prioritized", priority_exponent=0.6)]
    assert tables.from_json(tables.to_json(specs)) == specs


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": ""}, "needs a name"),
        ({"sampler": "random"}, "'random', but it is one of fifo"),
        ({"max_size": 0}, "at least 1 item"),
        ({"max_times_sampled": -1}, "max_times_sampled=-1"),
        ({"min_size_to_sample": 11}, "max_size=10"),
        ({"min_size_to_sample": 0}, "min_size_to_sample=0"),
        ({"samples_per_insert": 0.0}, "above 0"),
        ({"min_diff": 0.0, "max_diff": 0.5}, "wait for ever"),
        ({"priority_exponent": -1.0}, "priority_exponent=-1"),
    ],
)
def test_a_senseless_table_is_refused_with_field_value_and_rule(fields, message):
    with pytest.raises(ValueError, match=message):
        TableSpec(**{"name": "t", "max_size": 10, **fields})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "one table or more"),
        ("{}", "one table or more"),
        ('[{"name": "q", "max_size": 1, "size": 2}]', "fields name, max_size"),
        ('[{"name": "q", "max_size": 1}, {"name": "q", "max_size": 2}]', "different names"),
    ],
)
def test_wrong_json_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        tables.from_json(text)
