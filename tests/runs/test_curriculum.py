"""Runs that choose what to train on: by the history of prompts, and by functions of the user's."""

import collections
import json

import pytest

from rl_sync.checkpoints.snapshots import read_metadata
from rl_sync.messages.events import Position
from rl_sync.records.metrics import read_metrics
from rl_sync.roles.assembly import wiring
from rl_sync.tasks.curriculum import IN_BAND, OUTSIDE, UNSEEN
from tests.runs.conftest import EMBEDDED, assert_same_bits, flags, launch, what_was_trained_on
from tests.runs.living import ended

# Few problems, so that they come again, and a reward that an untrained policy earns now and then.
FEW = (
    EMBEDDED,
    "--config.task.name=tests/runs/parrot.py:rows(count=40)",
    "--config.task.dataset.held_out_fraction=0.2",
    "--config.task.reward=format(pattern='..?')",
    "--config.trainer.group_size=4",
    "--config.evaluation.problems=4",
)
BAND = (*FEW, "--config.curriculum.selection=difficulty_band", "--config.curriculum.explore=0.25")
ONE_STEP = flags("one_step_off_policy")


def prompts(run):
    return [[group["prompt_id"] for group in step["groups"]] for step in run.consumed]


def uses(run):
    """Returns (step, success) of each prompt's trained groups, as the ledger tells of them."""
    found = collections.defaultdict(list)
    for entry in run.ledger:
        if entry["event"] == "trained":
            step = int(entry["reason"].removeprefix("step "))
            for lease in entry["leases"]:
                found[lease["prompt_id"]].append((step, lease["success"]))
    return found


@pytest.mark.nightly
def test_a_run_in_a_difficulty_band_trains_on_the_band_and_keeps_its_history(runs):
    run = runs.get(*ONE_STEP, *BAND)
    steps, found = run.settings.trainer.steps, uses(run)
    position = Position.of_json(read_metadata(run.workdir.snapshots, steps)["position"])
    kept = collections.Counter({one.prompt: one.uses for one in position.seen})
    kept.update(one.prompt for one in position.pending)
    assert kept == {prompt: len(of) for prompt, of in found.items()}
    # A choice knows what came of the steps up to the version that generates the group.
    rates = {}
    leased = {
        lease["lease_id"]: lease
        for entry in run.ledger
        if entry["event"] == "leased"
        for lease in entry["leases"]
    }
    whys = collections.Counter()
    by_step = {step["step"]: step["groups"] for step in run.consumed}
    results = {(s, p): rate for p, of in found.items() for s, rate in of}
    counted = 0
    for step in range(1, steps + 1):
        known = run.settings.schedule.exact_version(step)
        while counted < known:
            counted += 1
            for group in by_step[counted]:
                prompt, rate = group["prompt_id"], results[counted, group["prompt_id"]]
                rates[prompt] = (rates[prompt] + rate) / 2 if prompt in rates else rate
        for group in by_step[step]:
            rate, why = rates.get(group["prompt_id"]), leased[group["lease_id"]]["why"]
            whys[why] += 1
            assert why == (UNSEEN if rate is None else IN_BAND if 0.2 <= rate <= 0.8 else OUTSIDE)
    assert len(whys) == 3, whys
    lines = read_metrics(run.workdir, "rl")
    assert all(
        {"prompts/in_band", "prompts/seen", "prompts/success_rate"} <= {*line} for line in lines
    )
    assert lines[-1]["prompts/seen"] == pytest.approx(len(found) / 32)
    assert sum(line["prompts/in_band"] for line in lines) * 6 == pytest.approx(whys[IN_BAND])


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["synchronous", "one_step_off_policy"])
def test_exact_modes_give_the_same_bits_whatever_chooses_the_prompts(runs, mode):
    once = runs.get(*flags(mode), *BAND)
    again = runs.get(*flags(mode), *BAND, "--config.launch.compile_ahead=2")
    other = runs.get(*flags(mode, transfer="checkpoint"), *BAND)
    assert_same_bits(once, again)
    assert_same_bits(once, other)
    assert prompts(once) != prompts(runs.get(*flags(mode), *FEW))


@pytest.mark.nightly
@pytest.mark.parametrize("selection", ["easy_to_hard", "least_seen"])
def test_two_explorers_in_lockstep_give_the_same_bits_as_their_repetition(memory_runs, selection):
    several = (*flags("synchronous", count=2), *FEW, f"--config.curriculum.selection={selection}")
    once, again = memory_runs(*several), memory_runs(*several, "--config.name=again")
    assert once.digest == again.digest
    assert what_was_trained_on(once) == what_was_trained_on(again)


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["asynchronous", "multi_explorer"])
def test_latest_pulls_choose_by_the_history_too(memory_runs, mode):
    streaming = flags(mode, streaming=True, slots=9, chunk_tokens=1, steps=30)
    run = memory_runs(*streaming, *BAND)
    lines = [json.loads(line) for line in run.workdir.ledger.read_text().splitlines()]
    whys = collections.Counter(
        lease["why"] for line in lines if line["event"] == "leased" for lease in line["leases"]
    )
    assert whys[IN_BAND] > 20
    assert sum(map(len, uses(run).values())) == 30 * 6


PIPELINE = (
    "--config.experience.pipeline=tests/runs/cleaning.py:unique,"
    " tests/runs/cleaning.py:shorter(price=0.01)"
)


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["synchronous", "one_step_off_policy"])
def test_a_pipeline_gives_exact_modes_the_same_bits_with_each_transfer(runs, mode):
    once = runs.get(*flags(mode), *FEW, PIPELINE)
    assert_same_bits(once, runs.get(*flags(mode, transfer="checkpoint"), *FEW, PIPELINE))
    assert once.digest != runs.get(*flags(mode), *FEW).digest
    lines = read_metrics(once.workdir, "rl")
    assert all(0 <= line["pipeline/copies"] == line["pipeline/left_out"] < 1 for line in lines)
    assert any(line["pipeline/copies"] for line in lines)


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["asynchronous", "multi_explorer"])
def test_a_pipeline_works_with_episodes_and_streaming(memory_runs, mode):
    run = memory_runs(
        *flags(mode, streaming=True, slots=9, chunk_tokens=1, steps=20),
        *(EMBEDDED, PIPELINE),
        "--config.task.name=tests/runs/parrot.py:rows",
        "--config.environment.name=tests/runs/parrot.py:Parrot",
        "--config.environment.max_tokens=24",
        "--config.task.max_completion_tokens=3",
    )
    lines = read_metrics(run.workdir, "rl")
    assert len(lines) == 20
    assert any(line["pipeline/left_out"] for line in lines)


@pytest.mark.nightly
def test_a_pipeline_that_fails_ends_the_run_with_its_name(tmp_path):
    process = launch(
        *ONE_STEP,
        *FEW,
        "--config.experience.pipeline=tests/runs/cleaning.py:fails(at=3)",
        workdir=tmp_path / "run",
    )
    output = ended(process)
    assert process.returncode == 1
    assert "cleaning.py:fails (1) of experience.pipeline failed: LookupError: no such" in output


MIXTURE = (
    EMBEDDED,
    "--config.task.name=mixture",
    "--config.task.mixture.sets=2 * arithmetic(least_operand=70)"
    " + tests/runs/parrot.py:rows(set='parrots')",
    "--config.environment.name=by_set(parrots='tests/runs/parrot.py:Parrot')",
    "--config.environment.max_tokens=24",
    "--config.task.max_completion_tokens=3",
)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("seed", "weights", "mode"),
    [
        (1, "fixed", "one_step_off_policy"),
        (2, "progress", "one_step_off_policy"),
        (3, "progress", "asynchronous"),
    ],
)
def test_each_set_of_a_mixture_has_its_own_reward_and_environment(memory_runs, seed, weights, mode):
    run = memory_runs(
        *flags(mode), *MIXTURE, f"--config.seed={seed}", f"--config.task.mixture.weights={weights}"
    )
    task = wiring.load_task(run.settings)
    judged = run.judged
    of_sets = collections.Counter()
    for one in judged:
        fields = (task.held_out if one["held_out"] else task.train)[one["problem"]].fields
        parrots = fields["task_set"] == "parrots"
        of_sets[fields["task_set"], one["held_out"]] += 1
        assert one["score"] is not None, one
        assert ("by_set/arithmetic/exact" in one["components"]) == (not parrots)
        if parrots and one["episode"]["reason"] == "done":
            assert one["episode"]["metrics"]["kind"] == fields["kind"]
            assert one["score"] == pytest.approx(sum(one["episode"]["rewards"].values()))
    assert len(of_sets) == 4
    lines = read_metrics(run.workdir, "rl")
    shares = [line["prompts/share/parrots"] for line in lines]
    assert 0.1 < sum(shares) / len(shares) < 0.9


@pytest.mark.nightly
def test_a_mixture_by_progress_gives_exact_modes_the_same_bits_with_each_transfer(runs):
    more = (*MIXTURE, "--config.task.mixture.weights=progress", "--config.seed=2")
    once = runs.get(*ONE_STEP, *more)
    assert_same_bits(once, runs.get(*flags("one_step_off_policy", transfer="checkpoint"), *more))
