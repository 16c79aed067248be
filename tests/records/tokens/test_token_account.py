"""The account of tokens: hand-computed sums, and whatever happens, it closes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_sync.algorithms.screening import FAULTS
from rl_sync.ending import FAILURES
from rl_sync.messages.events import EXPLORER_DIED, LEFT_OUT, TOO_STALE
from rl_sync.records.flow import BUFFERED, DROPPED, GENERATING, TRAINED, Fate
from rl_sync.records.run_records import RunRecords
from rl_sync.records.tokens.token_account import TokenAccount, account
from rl_sync.records.tokens.token_lives import EVALUATION, GroupTokens, TokenLife
from rl_sync.workdir import Workdir
from tests.page.small_run import append


def life(role="explorer1", **fields):
    return TokenLife(role, 0.0, 9.0, **fields)


def test_tokens_that_went_on_elsewhere_are_in_the_groups_that_they_went_on_in():
    """An explorer died with 70 tokens in flight, of which another one went on with 50."""
    dead = life(generated=70, in_flight=70)
    other = life("explorer2", generated=40, given=50, grouped=90)
    groups, fates = {1: GroupTokens(90, 0)}, {1: Fate(TRAINED)}
    found = account([dead, other], groups, fates, {1: [90]}, is_over=True)
    assert found.places == {"trained": 90, "lost with a process": 20}
    assert found.generated == 110
    unaware = dead._replace(generated=30, in_flight=30)  # Its last record is older.
    found = account([unaware, other], groups, fates, {1: [90]}, is_over=True)
    assert found.places == {"trained": 90}
    assert found.generated == 90


def test_a_run_with_every_kind_of_token_is_described_in_one_line():
    """Of 1,000 tokens 200 are trained on, one group of them twice, and 40 could not be scored."""
    groups = {
        1: GroupTokens(100, 10),  # Trained on twice.
        2: GroupTokens(140, 10),  # Trained on, but for 40 tokens.
        3: GroupTokens(100, 0),
        4: GroupTokens(150, 0),
        5: GroupTokens(80, 0),
        6: GroupTokens(90, 10),
        7: GroupTokens(30, 0),
    }
    fates = {
        1: Fate(TRAINED),
        2: Fate(TRAINED),
        3: Fate(DROPPED, "no spread"),
        4: Fate(DROPPED, LEFT_OUT),
        5: Fate(DROPPED, TOO_STALE),
        6: Fate(BUFFERED),
        7: Fate(GENERATING),
    }
    uses = {1: [100, 100], 2: [100]}
    first = life(generated=720, grouped=720)
    second = life(generated=60, in_flight=60)
    trainer = life("trainer", generated=220, to={EVALUATION: 220})
    found = account([first, second, trainer], groups, fates, uses, is_over=False)
    assert (found.trained, found.uses, found.buffered, found.in_flight) == (200, 300, 90, 90)
    assert found.dropped == {
        "evaluation": 220,
        "over-sampled": 150,
        "no spread": 100,
        "stale": 80,
        "not scored": 40,
        "greedy baselines": 30,
    }
    assert found.generated == sum(found.places.values()) == 1000
    assert found.describe() == (
        "5.00 tokens generated for each trained token: 1.00 trained, 1.10 evaluation, 0.75"
        " over-sampled, 0.50 no spread, 0.40 stale, 0.20 not scored, 0.15 greedy baselines, 0.45 in"
        " the buffer, 0.45 in flight; each was trained on 1.50 times"
    )


@pytest.mark.parametrize(
    ("lives", "is_over", "places"),
    [
        ([life(generated=9, in_flight=9)], False, {"in flight": 9}),
        ([life(generated=9, in_flight=9, is_over=True)], True, {"cut at the end": 9}),
        ([life(generated=9, in_flight=9)], True, {"lost with a process": 9}),
        (
            [life(generated=9, in_flight=9), life(generated=2, in_flight=2)],
            False,
            {"lost with a process": 9, "in flight": 2},
        ),
    ],
    ids=["goes on", "has ended", "was killed", "was killed and goes on"],
)
def test_tokens_of_no_group_go_where_their_process_went(lives, is_over, places):
    assert account(lives, {}, {}, {}, is_over).places == places


@pytest.mark.parametrize("reason", [*FAULTS, *FAILURES, TOO_STALE, EXPLORER_DIED, LEFT_OUT])
def test_each_reason_of_the_ledger_but_the_end_has_words_of_its_own(reason):
    lives = [life(generated=5, grouped=5)]
    found = account(lives, {1: GroupTokens(5, 0)}, {1: Fate(DROPPED, reason)}, {}, True)
    assert found.unrecorded == 0
    assert found.dropped.keys().isdisjoint({"cut at the end"})


def test_before_the_first_trained_token_the_numbers_are_told():
    assert TokenAccount().describe() == "0 tokens generated, none of them trained"
    found = account([life(generated=1234, in_flight=1234)], {}, {}, {}, is_over=False)
    assert found.describe() == "1,234 tokens generated, none of them trained: 1,234 in flight"


def test_tokens_whose_records_were_lost_are_told_as_such():
    """The line with the group's tokens could not be written, or the ledger lacks the lease."""
    found = account([life(generated=10, grouped=10)], {3: GroupTokens(10, 0)}, {}, {}, True)
    assert found.unrecorded == 10
    assert "10 not recorded" in found.describe()


COUNT = st.integers(0, 99)
GROUPS = st.dictionaries(st.integers(0, 20), st.builds(GroupTokens, COUNT, COUNT))
FATES = st.builds(
    Fate,
    st.sampled_from([GENERATING, BUFFERED, TRAINED, DROPPED]),
    st.sampled_from([*FAULTS, *FAILURES, TOO_STALE, LEFT_OUT, "the user pressed Ctrl-C"]),
)


@given(data=st.data(), groups=GROUPS, is_over=st.booleans())
def test_it_closes_whatever_became_of_groups_and_processes(data, groups, is_over):
    """Groups are spread over processes of two explorers, each of which may end in order or not."""
    fates = {lease: data.draw(FATES) for lease in groups}
    steps = st.lists(st.integers(0, 120), min_size=1, max_size=3)
    uses = {lease: data.draw(steps) for lease in groups if data.draw(st.booleans())}
    lives, left = [], [sum(tokens) for tokens in groups.values()]
    for role in data.draw(st.lists(st.sampled_from(["explorer1", "explorer2"]), min_size=1)):
        to, in_flight, grouped = {EVALUATION: data.draw(COUNT)}, data.draw(COUNT), sum(left)
        left = []
        lives.append(
            life(
                role,
                generated=grouped + in_flight + sum(to.values()),
                to=to,
                grouped=grouped,
                in_flight=in_flight,
                is_over=data.draw(st.booleans()),
            )
        )
    found = account(lives, groups, fates, uses, is_over)
    assert found.unrecorded == 0
    assert found.generated == sum(found.places.values())
    assert found.uses >= found.trained


def line(life="a", generated=0, grouped=0, to=None, **fields):
    counts = {"prompt_computed": 3 * generated, "prompt_reused": generated}
    return {"time": 1.0, "life": life, "generated": generated, "grouped": grouped} | (
        {"to": to or {}} | counts | fields
    )


def test_an_explorer_that_dies_loses_what_its_last_record_does_not_explain(tmp_path):
    """The trainer dies, too: what step 2 has trained on is generated again."""
    at = Workdir(tmp_path)
    append(
        at.tokens_of("explorer1"),
        line(devices=["here:0"], in_flight=0),
        line(generated=40, grouped=30, in_flight=10, groups=[[1, 10, 0], [2, 20, 0]]),
        line(generated=75, grouped=30),  # In the middle of its work.
        line("b", devices=["here:0"], in_flight=0),
        line("b", generated=25, grouped=25, in_flight=0, groups=[[3, 25, 0]]),
        line("b", generated=25, grouped=25, is_over=True),
    )
    leases = [{"lease_id": lease} for lease in range(4)]
    append(
        at.ledger,
        {"time": 1.0, "event": "leased", "leases": leases[1:3]},
        {"time": 2.0, "event": "buffered", "leases": leases[1:3]},
        {"time": 3.0, "event": "trained", "leases": leases[1:2], "reason": "step 1"},
        {"time": 4.0, "event": "trained", "leases": leases[2:3], "reason": "step 2"},
        {"time": 5.0, "event": "resumed", "resumed_at": 1},
        {
            "time": 5.0,
            "event": "dropped",
            "leases": leases[2:3],
            "reason": "not trained when the run went on from step 1",
        },
        {"time": 6.0, "event": "leased", "leases": leases[3:]},
        {"time": 7.0, "event": "buffered", "leases": leases[3:]},
        {"time": 8.0, "event": "trained", "leases": leases[3:], "reason": "step 2"},
    )
    row = {"ordinal": 0, "prompt_id": 0, "explorer": 1}
    append(
        at.consumed,
        {"step": 1, "groups": [{**row, "lease_id": 1, "versions": [[[0, 4]], [[0, 6]]]}]},
        {"step": 2, "groups": [{**row, "lease_id": 2, "versions": [[[0, 20]]]}]},
        {"time": 5.0, "resumed_at": 1},
        {"step": 2, "groups": [{**row, "lease_id": 3, "versions": [[[0, 5], [1, 20]]]}]},
    )
    run = RunRecords(tmp_path)
    run.read()
    assert run.tokens.places == {
        "trained": 35,
        "lost with a process": 45,
        "undone by a restart": 20,
    }
    assert (run.tokens.prompt_computed, run.tokens.prompt_reused) == (300, 100)


@pytest.mark.parametrize(
    "wrong", [{}, {"life": "a"}, line(to=3), line(to={"evaluation": "many"}), line(groups=[[1]])]
)
def test_lines_of_other_programs_are_left_out(tmp_path, caplog, wrong):
    append(Workdir(tmp_path).tokens_of("explorer1"), wrong, line("b", generated=7, in_flight=7))
    run = RunRecords(tmp_path)
    run.read()
    assert run.tokens.places == {"in flight": 7}
    assert "the first of them line 1" in caplog.text


def test_a_group_that_two_steps_trained_on_stays_trained_when_the_second_is_undone(tmp_path):
    at, leases = Workdir(tmp_path), [{"lease_id": 7}]
    append(at.tokens_of("explorer1"), line(generated=8, grouped=8, groups=[[7, 8, 0]]))
    append(
        at.ledger,
        {"time": 1.0, "event": "leased", "leases": leases},
        {"time": 2.0, "event": "buffered", "leases": leases},
        {"time": 3.0, "event": "trained", "leases": leases, "reason": "step 3"},
        {"time": 4.0, "event": "trained", "leases": leases, "reason": "step 5"},
        {"time": 5.0, "event": "resumed", "resumed_at": 4},
    )
    run = RunRecords(tmp_path)
    run.read()
    assert run.tokens.places == {"trained": 8}
