"""The study of schedules: its cells, and its comparison seed by seed."""

import json

import pytest

pytestmark = pytest.mark.gate


@pytest.fixture
def schedules(benchmarks):
    return benchmarks("schedules")


@pytest.fixture
def sentences(benchmarks):
    return benchmarks("short_sentences")


def line(schedule, seed, accuracy, correction="none", staleness=(0.0, 0.0, 1.0, 3.0)):
    return {
        "task": "sums",
        "trained": "adapters",
        "schedule": schedule,
        "correction": correction,
        "seed": seed,
        "accuracy": [0.1, accuracy],
        "steps": [0, 24],
        "secs": [0.0, 60.0 + seed],
        "staleness_mean": list(staleness),
        "logprob_gap": [None, None, 0.5, None],
        "effective_sample_share": [1.0, 1.0, 0.5, 0.7],
    }


def test_a_cell_is_compared_seed_by_seed_with_the_synchronous_schedule(schedules):
    lines = [line("synchronous", seed, 0.5 + seed / 10) for seed in (0, 1, 2)]
    lines += [line("custom:1:4", seed, 0.4 + seed / 10) for seed in (0, 1, 2)]
    told, _, heads, _, synchronous, custom = schedules.report(lines)
    assert told == "sums, adapters trained:"
    assert heads.split(" | ")[2:4] == ["none", "staleness"]
    assert synchronous == "| `synchronous` | 3 | 60.0 | 2.00 | 0.5000 | 0.600 | 61 |"
    assert custom.split(" | ")[2] == "50.0 (-10.0, -10.0 to -10.0)"


def test_other_seeds_are_not_compared(schedules):
    lines = [line("synchronous", 0, 0.5), line("synchronous", 1, 0.6)]
    lines += [line("asynchronous:2", seed, 0.4) for seed in (2, 3)]
    assert schedules.report(lines)[-1].split(" | ")[1:3] == ["2", "40.0"]


def test_corrections_are_compared_with_fresh_data_which_need_none(schedules):
    lines = [line("synchronous", seed, 0.5) for seed in (0, 1)]
    lines += [line("asynchronous:2", seed, 0.6, "truncated") for seed in (0, 1)]
    assert schedules.report(lines)[-1].split(" | ")[2:4] == ["", "60.0 (+10.0, +10.0 to +10.0)"]
    needed = {
        (one, other): schedules.Cell("sums", "all", one, other).is_needed
        for one in schedules.SCHEDULES
        for other in schedules.CORRECTIONS
    }
    assert [cell for cell, is_needed in needed.items() if not is_needed] == [
        ("synchronous", "truncated"),
        ("synchronous", "centered"),
    ]


def test_accuracy_is_drawn_over_steps_and_seconds_for_each_kind_of_run(schedules):
    lines = [line("synchronous", seed, 0.5) for seed in (0, 1)]
    lines += [line("custom:1:4", seed, 0.7) | {"trained": "all"} for seed in (0, 1)]
    lines.append(line("custom:1:4", 0, 0.1, "truncated"))
    panels = schedules.figure(lines).axes
    titles = [panel.get_title() for panel in panels]
    assert titles == ["sums, adapters trained"] * 2 + ["sums, all trained"] * 2
    (drawn,) = panels[2].lines
    assert drawn.get_label() == "custom:1:4"
    assert [*drawn.get_ydata()] == pytest.approx([0.1, 0.7])
    assert panels[3].lines[0].get_xdata()[-1] == 61.0


def test_runs_of_another_size_do_not_go_into_one_file(schedules, monkeypatch, tmp_path):
    results = tmp_path / "schedules.jsonl"
    size = schedules.Size(24, 8)
    one = line("synchronous", 0, 0.5) | {"settings": [*size.settings]}
    results.write_text(json.dumps(one) + "\n")
    monkeypatch.setattr("sys.argv", ["schedules.py", f"--results={results}", "--model=nowhere"])
    told = r"runs without trainer.steps=24 and trainer.groups_per_step=4: give --results="
    with pytest.raises(SystemExit, match=told):
        schedules.main()


def test_the_interval_is_that_of_the_mean(schedules):
    low, high = schedules.interval([0.0, 1.0] * 50)
    # 1.96 standard errors of 0.05 beside the mean.
    assert low == pytest.approx(0.4, abs=0.02)
    assert high == pytest.approx(0.6, abs=0.02)
    assert schedules.interval([3.0, 3.0]) == (3.0, 3.0)


def test_cells_are_runs_with_a_bound_and_a_loss(schedules):
    cell = schedules.Cell("sentences", "all", "asynchronous:8", "centered")
    size = schedules.Size(12, 4)
    flags = cell.case(7, "smollm2", size).flags()
    assert "--config.trainer.groups_per_step=4" in flags
    assert "--config.sync.max_staleness=8" in flags
    assert "--config.model.lora.rank=0" in flags
    assert "--config.algorithm.score_centering=topk" in flags
    offset = schedules.Cell("sums", "adapters", "custom:1:4", "none").case(7, "smollm2", size)
    assert {"--config.sync.interval=1", "--config.sync.offset=4"} <= {*offset.flags()}


@pytest.mark.parametrize(
    ("text", "score"),
    [
        (" The rain is cold.", 1.0),
        ("Cold, the rain falls.", 1.0),
        ("The rain is cold", 0.0),
        ("The rain is cold!", 0.0),
        ("Rain is cold.", 0.0),
        ("The rain is colder.", 0.0),
        ("The rain that fell on the old town was cold and grey.", 1.0),
        ("The rain that fell on the old town was very cold and grey.", 0.0),
        ("", 0.0),
    ],
)
def test_a_sentence_keeps_all_rules_or_none(sentences, text, score):
    from rl_sync.rewards.judgement import Completion

    row = {"prompt": "?", "answer": "cold"}
    assert sentences.rules_kept(row, Completion(text)) == score


def test_requests_of_a_seed_have_each_topic_with_each_word(sentences):
    one, other = sentences.requests(1), sentences.requests(2)
    assert len({row["prompt"] for row in one}) == len(one) == 400
    assert one != other
    assert sorted(row["prompt"] for row in one) == sorted(row["prompt"] for row in other)
