"""The same tests for every mode, on real runs, reading only what the runs recorded."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from rl_sync.records.metrics import read_metrics
from rl_sync.records.spans import SYNC_KINDS, SpanKind, sync_kind
from rl_sync.records.summary import overlap_secs, union_secs
from rl_sync.roles.assembly import wiring
from tests.runs.conftest import (
    EMBEDDED,
    ROOT,
    TEAMS,
    RunRecord,
    Runs,
    assert_every_token_is_accounted_for,
    assert_nothing_is_lost_or_doubled,
    assert_same_bits,
    assert_within_the_staleness_bound,
    flags,
)

CHECKPOINT = f"--config.model.path={ROOT / 'tests' / 'data' / 'models' / 'qwen2'}"
EPISODES = (
    "--config.task.name=tests/runs/parrot.py:rows",
    "--config.environment.name=tests/runs/parrot.py:Parrot",
    "--config.environment.max_tokens=24",
    "--config.task.max_completion_tokens=3",
    "--config.sft.steps=0",
)
SYNCHRONOUS = flags("synchronous")
DELTA = "--config.sync.delta=on"
AHEAD = "--config.launch.compile_ahead=2"
ONE_STEP = flags("one_step_off_policy")
ASYNCHRONOUS = flags("asynchronous")
IN_PARTS = (
    "--config.task.reward=exact + 0 * format(pattern='.')",
    "--config.rollout.chunk_tokens=1",
    "--config.rollout.slots=5",
)
RUNS = {
    "synchronous": SYNCHRONOUS,
    "synchronous by checkpoint": flags("synchronous", transfer="checkpoint"),
    "synchronous by checkpoint, in processes": flags("synchronous", transfer="checkpoint"),
    "synchronous by server": flags("synchronous", transfer="server"),
    "synchronous, interval 2": flags("synchronous", interval=2),
    "synchronous, interval 4, two explorers": flags("synchronous", interval=4, count=2),
    "one step off-policy": ONE_STEP,
    "one step off-policy by checkpoint": flags("one_step_off_policy", transfer="checkpoint"),
    "one step off-policy by server": flags("one_step_off_policy", transfer="server"),
    # The reward is the same, but not a quick one: groups are delivered one by one.
    "one step off-policy, in few slots": (*ONE_STEP, *IN_PARTS[1:]),
    "synchronous, in few slots": (*SYNCHRONOUS, *IN_PARTS[1:]),
    "one step off-policy, judged in parts": (*ONE_STEP, *IN_PARTS),
    "synchronous, judged in parts": (*SYNCHRONOUS, *IN_PARTS),
    "one step off-policy, episodes": (*ONE_STEP, *EPISODES),
    "one step off-policy, episodes by checkpoint": (
        *flags("one_step_off_policy", transfer="checkpoint"),
        *EPISODES,
    ),
    "synchronous, episodes": (*flags("synchronous", steps=6), *EPISODES),
    "custom (1, 4)": flags("custom", interval=1, offset=4),
    "custom (2, 3) by checkpoint": flags("custom", interval=2, offset=3, transfer="checkpoint"),
    "custom (2, 3) by server": flags("custom", interval=2, offset=3, transfer="server"),
    "asynchronous": ASYNCHRONOUS,
    "asynchronous by server, in flight": flags(
        "asynchronous", transfer="server", swap="in_flight", chunk_tokens=1
    ),
    "asynchronous by server, in processes": flags("asynchronous", transfer="server"),
    "asynchronous, interval 2, collective": flags(
        "asynchronous", interval=2, transfer="collective"
    ),
    "asynchronous, with a token budget": flags(
        "asynchronous", budget_tokens=4, slots=5, chunk_tokens=1, steps=20
    ),
    # Far enough ahead that it is seldom held back.
    "asynchronous, streaming": (
        *flags("asynchronous", streaming=True, slots=5, chunk_tokens=1, steps=20),
        "--config.sync.max_staleness=4",
    ),
    "asynchronous, streaming in flight, by server": flags(
        "asynchronous", streaming=True, swap="in_flight", transfer="server", slots=5, chunk_tokens=1
    ),
    "asynchronous, streaming episodes": (
        *flags("asynchronous", streaming=True, slots=5, chunk_tokens=1, steps=20),
        *EPISODES,
    ),
    "synchronous, episodes, in teams": (*flags("synchronous", steps=6), *TEAMS, *EPISODES),
    "two explorers, episodes": (*flags("multi_explorer", count=2, steps=20), *EPISODES),
    "asynchronous, streaming, in teams": (
        *flags("asynchronous", streaming=True, chunk_tokens=1, steps=12),
        *TEAMS,
    ),
    "one step off-policy by server, what changed": (
        *flags("one_step_off_policy", transfer="server"),
        DELTA,
    ),
    "synchronous by checkpoint, what changed": (
        *flags("synchronous", transfer="checkpoint"),
        DELTA,
    ),
    "custom (2, 3) by server, what changed": (
        *flags("custom", interval=2, offset=3, transfer="server"),
        DELTA,
    ),
    "asynchronous by checkpoint, what changed": (*flags("asynchronous"), DELTA),
    "two explorers by server, what changed": (
        *flags("multi_explorer", count=2, transfer="server", steps=24),
        DELTA,
        "--config.sync.fanout=1",
    ),
    "two explorers": flags("multi_explorer", count=2, steps=16),
    "two explorers, streaming": flags("multi_explorer", count=2, streaming=True, steps=16),
    # Long enough for an explorer that starts seconds after the others.
    "two explorers by server": flags("multi_explorer", count=2, transfer="server", steps=50),
    "three explorers": flags("multi_explorer", count=3, steps=24),
    "synchronous, in one process": flags("synchronous", colocate=True),
    "one step off-policy, on shared devices": flags(
        "one_step_off_policy", colocate=True, share_devices=True
    ),
    # Both threads need what the checkpoint's tokenizer takes, which nobody has imported.
    "one step off-policy from a checkpoint, on shared devices": (
        *flags("one_step_off_policy", colocate=True, share_devices=True, steps=4),
        CHECKPOINT,
    ),
    "two explorers from a checkpoint, in one process": (
        *flags("multi_explorer", count=2, transfer="collective", colocate=True, steps=20),
        CHECKPOINT,
    ),
    "two explorers, collective": flags("multi_explorer", count=2, transfer="collective", steps=60),
    "one step off-policy, in teams": (*flags("one_step_off_policy", steps=6), *TEAMS),
    "asynchronous, in teams": (*flags("asynchronous", steps=6), *TEAMS),
    "two explorers, in teams": (*flags("multi_explorer", count=2, steps=60), *TEAMS),
}
# The others do with the embedded replay server, which is up at once.
WITH_REVERB = ("one step off-policy", "one step off-policy, in teams", "two explorers by server")
RUNS = {name: some if name in WITH_REVERB else (*some, EMBEDDED) for name, some in RUNS.items()}
EXACT = [name for name in RUNS if name.startswith(("synchronous", "one step", "custom"))]
LATEST = [name for name in RUNS if name not in EXACT]
PLAYED = [name for name in RUNS if "episodes" in name]


# In these each role is a process, so that each mode and each transfer is in one; so are all teams.
# In the others each role is a thread.
APART = {
    "one step off-policy",
    "synchronous by checkpoint, in processes",
    "asynchronous by server, in processes",
    "two explorers by server",
    "custom (1, 4)",
    "two explorers, collective",
    "asynchronous, interval 2, collective",
    "synchronous, interval 4, two explorers",
}

# Each way to pull, and two transfers.
OF_README = {
    "synchronous",
    "custom (2, 3) by server",
    "asynchronous",
    "two explorers",
}

# Processes start slowly, and other runs, or tests of teams and of transfers, go these ways.
NIGHTLY = {
    "synchronous by checkpoint",
    "synchronous by checkpoint, what changed",
    "synchronous, interval 2",
    "one step off-policy, episodes by checkpoint",
    "one step off-policy, in few slots",
    "one step off-policy, judged in parts",
    "custom (2, 3) by checkpoint",
    "synchronous, episodes",
    "synchronous, in few slots",
    "synchronous, judged in parts",
    "custom (2, 3) by server, what changed",
    "synchronous by checkpoint, in processes",
    "asynchronous, interval 2, collective",
    "asynchronous by server, in processes",
    "asynchronous, streaming episodes",
    "custom (1, 4)",
    "one step off-policy from a checkpoint, on shared devices",
    "two explorers, collective",
    "two explorers by server",
    "two explorers by server, what changed",
    "two explorers, episodes",
    "two explorers, streaming",
    "two explorers from a checkpoint, in one process",
    "three explorers",
    "synchronous, interval 4, two explorers",
    "synchronous, episodes, in teams",
    "asynchronous, in teams",
    "asynchronous, streaming, in teams",
    "two explorers, in teams",
}


def marks(*names: str) -> Sequence[pytest.MarkDecorator]:
    """Returns the marks of a test of these runs."""
    if NIGHTLY.intersection(names):
        return [pytest.mark.nightly]
    return [] if OF_README.issuperset(names) else [pytest.mark.gate]


def of(*names: str) -> pytest.MarkDecorator:
    """Parametrizes a test by runs."""
    cases = [pytest.param(name, marks=marks(name)) for name in names]
    return pytest.mark.parametrize("name", cases)


every_run, exact_runs, latest_runs = of(*RUNS), of(*EXACT), of(*LATEST)


def run_of(runs: Runs, name: str) -> RunRecord:
    """Returns a run of `RUNS`, which a test session makes once."""
    return runs.get(*RUNS[name], apart=name in APART)


@every_run
def test_every_step_consumes_a_whole_batch_within_the_staleness_bound(runs, name):
    assert_within_the_staleness_bound(run_of(runs, name))


@every_run
def test_every_step_changes_the_weights(runs, name):
    run = run_of(runs, name)
    steps = read_metrics(run.workdir, "rl")
    assert [step["step"] for step in steps] == list(range(1, run.settings.trainer.steps + 1))
    assert all(step["gradient_norm"] > 0 for step in steps)


@exact_runs
def test_every_batch_has_exactly_the_version_of_the_formula(runs, name):
    run = run_of(runs, name)
    schedule = run.settings.schedule
    for step in run.consumed:
        assert run.versions(step) == {schedule.exact_version(step["step"])}
        ordinals = [group["ordinal"] for group in step["groups"]]
        size = run.settings.trainer.groups_per_step
        assert ordinals == list(range((step["step"] - 1) * size, step["step"] * size))


@every_run
def test_nothing_is_lost_or_doubled(runs, name):
    assert_nothing_is_lost_or_doubled(run_of(runs, name))
    assert_every_token_is_accounted_for(run_of(runs, name))


@of(*PLAYED)
def test_environments_get_all_fields_of_their_row_in_training_and_in_evaluations(runs, name):
    run = run_of(runs, name)
    task = wiring.load_task(run.settings)
    judged = run.judged
    kinds: dict[bool, set[int]] = {False: set(), True: set()}
    for one in judged:
        prompts = task.held_out if one["held_out"] else task.train
        assert one["episode"]["reason"] in ("done", "context"), one["episode"]
        if one["episode"]["reason"] == "done":
            kind = one["episode"]["metrics"]["kind"]
            assert kind == (prompts[one["problem"]].row or {})["kind"]
            kinds[one["held_out"]].add(kind)
    assert all(len(of) >= 5 for of in kinds.values()), kinds


@every_run
def test_each_explorer_generates_and_its_groups_arrive(runs, name):
    run = run_of(runs, name)
    consumed = {group["explorer"] for step in run.consumed for group in step["groups"]}
    assert consumed == set(range(1, run.settings.explorers + 1))


@every_run
def test_weights_travel_in_the_way_that_was_asked_for(runs, name):
    run = run_of(runs, name)
    wanted = sync_kind(run.settings.transfer)
    for role in run.settings.roles:
        assert run.spans(wanted, role=role), role
    assert not run.spans(*(SYNC_KINDS - {wanted}))


@of(
    "synchronous",
    "synchronous by checkpoint",
    "synchronous by server",
    "synchronous, in one process",
)
def test_in_synchronous_mode_rollout_and_train_never_overlap(runs, name):
    run = run_of(runs, name)
    assert overlap_secs(run.spans(SpanKind.ROLLOUT), run.spans(SpanKind.TRAIN)) == 0.0


@pytest.mark.nightly
def test_one_step_off_policy_generates_the_next_batch_while_it_trains(runs):
    """Train steps overlap with a rollout: that of the next batch.

    The model is so large that a train step takes longer than a message. A machine may delay a
    process by as much, so not every single step must overlap.
    """
    bigger = {"embed_dim": 128, "num_layers": 2, "mlp_dim": 512}
    sizes = [f"--config.model.{name}={value}" for name, value in bigger.items()]
    run = runs.get(*ONE_STEP, *sizes, "--config.trainer.groups_per_step=96")
    rollouts, trains = run.spans(SpanKind.ROLLOUT), run.spans(SpanKind.TRAIN)
    starts = {span.step: span.start_secs for span in rollouts}
    beside = [starts[train.step + 1] < train.end_secs for train in trains[:-1]]
    assert sum(beside) >= 0.7 * len(beside)
    assert overlap_secs(rollouts, trains) > 0


@latest_runs
def test_nobody_waits_for_weights_to_be_taken(runs, name):
    """Once running, the trainer waits only for experiences, and explorers only for the trainer."""
    run = run_of(runs, name)
    trained = max(span.end_secs for span in run.spans(SpanKind.TRAIN))
    for role in ("trainer", "explorer"):
        for wait in run.spans(SpanKind.WAIT, role=role):
            reason, whom = wait.attributes["reason"], wait.attributes.get("for_whom")
            if reason == "evaluations to be judged":
                assert wait.start_secs >= trained, "an evaluation held the run up"
            elif role == "trainer":
                assert reason in ("experiences", "the replay server", "a snapshot")
            else:
                assert whom in ("the trainer", "replay", "the reward")
    kinds = SYNC_KINDS - {SpanKind.SYNC_COLLECTIVE}
    publishing = [s for s in run.spans(*kinds, role="trainer")]
    blocking = [s for s in publishing if not s.attributes.get("background")]
    # In a team it may have to wait for the step that it publishes.
    beside = overlap_secs(blocking, run.spans(SpanKind.TRAIN))
    assert union_secs(blocking) - beside < 0.2 * len(publishing) + 0.5


def assert_begun_once_and_finished_with_newer_weights(run):
    begun = [lease for span in run.spans(SpanKind.ROLLOUT) for lease in span.leases]
    assert sorted(begun) == sorted(run.leases("leased")), "a lease was begun twice, or never"
    groups = [group for step in run.consumed for group in step["groups"]]
    mixed = [g for g in groups if len({version for row in g["versions"] for version, _ in row}) > 1]
    assert mixed, "no group has tokens of two versions"
    assert not run.leases("dropped"), "a group came too late"


@of("asynchronous, with a token budget")
def test_groups_that_a_token_budget_leaves_unfinished_go_on_with_newer_weights(runs, name):
    run = run_of(runs, name)
    rollouts = run.spans(SpanKind.ROLLOUT)
    carried = [span.attributes["carried_over"] for span in rollouts]
    assert max(carried) > 0
    assert [0, *carried[:-1]] == [span.attributes["resumed"] for span in rollouts]
    most = run.settings.groups_per_lease
    assert all(s.attributes["resumed"] + len(s.leases) <= most for s in rollouts)
    assert_begun_once_and_finished_with_newer_weights(run)


@of("asynchronous, streaming")
def test_streaming_explorers_take_groups_while_others_are_in_flight(runs, name):
    run = run_of(runs, name)
    rollouts = run.spans(SpanKind.ROLLOUT)
    beside = [one for one in rollouts if one.attributes["resumed"] and one.leases]
    assert len(beside) > len(rollouts) / 3
    assert_begun_once_and_finished_with_newer_weights(run)
    inserted = [span.leases for span in run.spans(SpanKind.INSERT)]
    assert all(len(leases) == 1 for leases in inserted), "groups wait for each other's judgement"


@of("one step off-policy, judged in parts", "synchronous, judged in parts")
def test_within_a_lease_groups_are_judged_and_inserted_while_others_are_generated(runs, name):
    run = run_of(runs, name)
    inserts = run.spans(SpanKind.INSERT)
    assert all(len(insert.leases) == 1 for insert in inserts)
    # A busy machine may judge a group after its rollout's end, but is asked to before.
    ends = {
        lease: rollout.end_secs
        for rollout in run.spans(SpanKind.ROLLOUT)
        for lease in rollout.leases
    }
    early = [
        lease
        for score in run.spans(SpanKind.SCORE)
        for lease in score.leases
        if score.start_secs < ends[lease]
    ]
    assert len(early) > len(inserts) / 10


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(*pair, marks=marks(*pair))
        for pair in (
            ("one step off-policy", "one step off-policy by checkpoint"),
            ("one step off-policy", "one step off-policy by server"),
            ("one step off-policy, judged in parts", "one step off-policy, in few slots"),
            ("synchronous, judged in parts", "synchronous, in few slots"),
            ("one step off-policy, episodes", "one step off-policy, episodes by checkpoint"),
            ("synchronous", "synchronous by checkpoint"),
            ("synchronous", "synchronous by server"),
            ("synchronous by checkpoint", "synchronous by checkpoint, in processes"),
            ("synchronous, in one process", "synchronous"),
            ("custom (2, 3) by checkpoint", "custom (2, 3) by server"),
            ("one step off-policy", "one step off-policy, on shared devices"),
            ("one step off-policy by server", "one step off-policy by server, what changed"),
            ("synchronous by checkpoint", "synchronous by checkpoint, what changed"),
            ("custom (2, 3) by server", "custom (2, 3) by server, what changed"),
        )
    ],
)
def test_every_transfer_gives_the_same_bits(runs, one, other):
    assert_same_bits(run_of(runs, one), run_of(runs, other))


@pytest.mark.gate
def test_explorers_that_evaluate_need_no_program_that_was_not_listed(runs):
    run = runs.get(
        "--config.sync.mode=asynchronous",
        EMBEDDED,
        AHEAD,
        "--config.evaluation.every_steps=2",
        "--config.evaluation.slots=3",
    )
    assert "evaluations by explorers" in run.output
    assert_all_were_listed(run, "explorer1")


@pytest.mark.gate
@pytest.mark.parametrize("role", ["trainer", "explorer1"])
def test_a_run_needs_no_program_that_was_not_listed_before_it_began(runs, role):
    run = runs.get(*ONE_STEP, EMBEDDED, AHEAD)
    assert_all_were_listed(run, role)
    assert_same_bits(run_of(runs, "one step off-policy"), run)


def assert_all_were_listed(run, role):
    log = run.workdir.log(role).read_text()
    counts = re.search(
        r"Of (\d+) listed programs, (\d+) were compiled before their first use, (\d+) were being"
        r" compiled .*, and (\d+) were not started\. (\d+) used programs were not listed\.",
        log,
    )
    assert counts, log
    listed, *used, others = map(int, counts.groups())
    assert 0 < sum(used) <= listed
    assert others == 0


@pytest.mark.gate
def test_two_runs_with_one_seed_give_the_same_bits_and_another_seed_does_not(runs):
    again = runs.get(*ONE_STEP, EMBEDDED)
    assert_same_bits(run_of(runs, "one step off-policy"), again)
    other = runs.get(*ONE_STEP, "--config.seed=1", "--config.replay.backend=embedded")
    assert other.digest != again.digest
