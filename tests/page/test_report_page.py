"""The report on a run as one page, and the comparison of runs, from records that runs leave."""

import json
import re
import shutil

import numpy as np
import pytest

from rl_sync.images import Image
from rl_sync.launcher.commands import compare, report
from rl_sync.page import run_comparison
from rl_sync.records.rollouts.recorded_images import ImageFiles
from rl_sync.records.run_outcome import RunOutcome, record_end, record_start
from rl_sync.records.run_records import open_runs
from rl_sync.records.span_reader import read_spans
from rl_sync.records.spans import SpanKind
from rl_sync.settings.records import ConfigError
from rl_sync.workdir import Workdir
from tests.page.small_run import append, metrics, rollout, write_run
from tests.settings.changed import settings_with


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A run with evaluations, an end, and a completion that would be a script."""
    path = write_run(tmp_path_factory.mktemp("runs") / "first", steps=4)
    at = Workdir(path)
    before = {"phase": "evaluation", "step": 0, "time": 1.7e9, "problems": 50}
    before |= {"accuracy": 0.25, "accuracy_low": 0.2, "accuracy_high": 0.3}
    append(at.metrics, before, {**before, "step": 4, "accuracy": 0.75, "accuracy_high": 0.9})
    wicked = "<script>alert(1)</script>\u202e\x07"
    append(at.rollouts / "step-00000005.jsonl", rollout(5, 90, completion=wicked, reward=-1.0))
    record_start(path)
    record_end(path, RunOutcome(1.7e9 + 60, "abc123"))
    return path


@pytest.fixture
def workdir(recorded, tmp_path):
    """A copy of the run."""
    return shutil.copytree(recorded, tmp_path / "first")


def _page(workdir, **flags):
    assert report.write({"workdir": str(workdir), **flags}) == 0
    return (workdir / "report.html").read_text()


def _text(page):
    return " ".join(re.sub(r"<[^>]*>", " ", page).split())


def test_a_report_has_the_results_of_the_run(workdir, capsys):
    text = _text(page := _page(workdir))
    assert capsys.readouterr().out == f"{workdir}/report.html\n"
    assert "accuracy before RL 25.0% 95% interval 20.0% to 30.0%" in text
    assert "accuracy last 75.0% 95% interval 20.0% to 90.0%" in text
    assert "trainer steps 4 of 50" in text
    assert "greatest staleness 1 trainer steps, of at most 2" in text
    assert "digest abc123" in text
    assert "The bound of the schedule is 2 trainer steps." in text
    assert "leased 8 trained 8" in text
    assert (
        "1.50 tokens generated for each trained token: 1.00 trained, 0.50 evaluation. 48 tokens"
        " generated; 20 tokens of prompts computed, and 7 reused. Device hours: explorer1 0.02."
    ) in text
    assert "tokens: trained 32 tokens: evaluation 16" in text
    assert re.search(r"explorer1 \d+ % \d+ %", text)
    assert re.search(r"Trainer step 4 least · reward 0 .*? greatest · reward 1 ", text)
    assert 'class="bad"' not in page
    assert re.search(r"jax \d+\.\d+", text)
    assert page.count('<svg class="chart"') >= 3
    assert 'src="data:image/svg+xml;base64,' in page


def test_a_report_needs_nothing_but_itself(workdir):
    page = _page(workdir)
    links = re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?([^"')\s>]+)""", page)
    assert links
    assert all(link.startswith("data:") for link in links)
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "\\u{202e}" in page
    assert "\u202e" not in page


def test_a_report_shows_the_images_of_a_prompt_in_itself(workdir):
    at = Workdir(workdir)
    images = ImageFiles(workdir, 1 << 20).store([Image.of_array(np.zeros((9, 7), np.uint8))])
    append(at.rollouts / "step-00000006.jsonl", rollout(6, 91, images=images))
    page = _page(workdir)
    assert page.count('<img src="data:image/png;base64,') == 3
    assert "image 1: 7x9, " in page


def test_a_report_on_parts_of_a_run(workdir, tmp_path):
    at = Workdir(workdir)
    for path in (at.spans, at.rollouts):
        shutil.rmtree(path)
    at.outcome.unlink()
    at.config.unlink()
    text = _text(_page(workdir))
    assert "its end is not recorded: it goes on, or was killed" in text
    assert "Timeline" not in text
    assert "Completions" not in text
    assert "trainer steps 4" in text
    with at.metrics.open("a") as file:
        file.write('{"phase":"rl","st')  # Killed in the middle of a line.
    assert "trainer steps 4" in _text(_page(workdir))


def test_a_run_that_failed_says_why_and_alarms_are_shown(workdir):
    record_end(workdir, RunOutcome(1.7e9, None, "no more <disk>", "trainer died"))
    poor = {"reward_min": 0.0, "reward_max": 0.0, "reward_mean": 0.0}
    append(Workdir(workdir).metrics, *(metrics(step, **poor) for step in range(5, 9)))
    append(Workdir(workdir).metrics, metrics(9, staleness_max=3.0))
    text = _text(page := _page(workdir))
    assert '<dd class="bad">3</dd>' in page, "the bound is 2"
    assert re.search(r"stopped at [-\d: ]+: trainer died", text)
    assert "The run failed : no more &lt;disk&gt;" in text
    assert "no reward , trainer steps 7 to 8: No completion earned a reward" in text


def test_settings_that_are_not_defaults_are_those_that_the_user_changed():
    changed = settings_with(sync__mode="synchronous", trainer__steps=7)
    assert report.deviations(json.loads(json.dumps(changed.resolved()))) == {
        "algorithm.name": "grpo",
        "sync.mode": "synchronous",
        "trainer.steps": 7,
    }


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"workdir": "TMP/none"}, "none is not a directory"),
        ({"workdir": "TMP"}, "is not the work directory of a run"),
        ({"workdir": "TMP/young"}, "has recorded nothing yet"),
        ({"workdir": "TMP/first", "out": "TMP/no/x.html"}, "x.html cannot be written: No such"),
    ],
)
def test_mistakes_about_a_report_get_one_line(workdir, tmp_path, flags, said):
    (tmp_path / "young").mkdir()
    (tmp_path / "young/config.json").write_text("{}")
    shutil.copytree(workdir, tmp_path / "copy")
    with pytest.raises(ConfigError, match=said):
        report.write({name: value.replace("TMP", str(tmp_path)) for name, value in flags.items()})


def _runs(workdir, tmp_path):
    """Three seeds of one config, and a run of another one, which ends as the first."""
    made = []
    for name, seed, most, reward in (
        ("a", 0, 2, 0.1),
        ("b", 1, 2, 0.5),
        ("c", 2, 2, 0.2),
        ("d", 0, 4, 0.1),
    ):
        path = shutil.copytree(workdir, tmp_path / name)
        config = json.loads(Workdir(path).config.read_text())
        config |= {"seed": seed, "name": name, "workdir": str(path)}
        config["sync"]["max_staleness"] = most
        Workdir(path).config.write_text(json.dumps(config))
        append(Workdir(path).metrics, metrics(5, reward_mean=reward, entropy=1.5))
        record_end(path, RunOutcome(1.7e9, "same" if seed == 0 else f"digest{seed}"))
        made.append(str(path))
    return made


def test_runs_that_differ_in_the_seed_are_one_group(workdir, tmp_path, capsys):
    paths = _runs(workdir, tmp_path)
    assert compare.show({}, paths) == 0
    said = re.sub(r" +", " ", capsys.readouterr().out)
    assert "runs 3 (seeds 0, 1, 2) 1 (seeds 0)" in said
    assert "sync.max_staleness 2 4" in said
    assert "name" not in said.replace("names", "")
    assert "reward 0.1 / 0.2 / 0.5 0.1" in said
    assert "tokens for a trained one 1.5 1.5" in said
    assert "cost of a million trained tokens – – " in said
    assert "accuracy after 75.0% 75.0% (20.0% to 90.0%)" in said
    assert "staleness bound 2 4" in said
    assert "Equal to the bit (digest same): a, d." in said


def test_the_page_draws_how_far_explorers_and_trainer_are_apart(workdir):
    assert "mismatch" not in _text(_page(workdir))
    for step in (5, 6):
        append(Workdir(workdir).metrics, metrics(step, mismatch=1e-7))
    assert "mismatch" in _text(_page(workdir))


def test_a_price_gives_costs(workdir, tmp_path, capsys):
    """0.02 device hours at 2.5 cost 0.05, for 32 trained tokens."""
    config = json.loads(Workdir(workdir).config.read_text())
    config["observe"]["price_per_device_hour"] = 2.5
    Workdir(workdir).config.write_text(json.dumps(config))
    told = "at 2.5 an hour they cost 0.05 (explorer1 0.05), 1,562.50 for a million trained tokens"
    assert told in _text(_page(workdir))
    capsys.readouterr()
    compare.show({"json": "True"}, [str(workdir), str(shutil.copytree(workdir, tmp_path / "b"))])
    run, _ = json.loads(capsys.readouterr().out)["groups"][0]["runs"]
    assert run["values"]["cost of a million trained tokens"] == pytest.approx(1562.5)


@pytest.mark.gate
def test_compared_runs_as_json_and_as_pictures(workdir, tmp_path, capsys):
    paths = _runs(workdir, tmp_path)
    page, picture = tmp_path / "c.html", tmp_path / "c.png"
    assert compare.show({"json": "True", "out": str(page)}, paths) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["digests_equal"] is False
    first, second = found["groups"]
    assert first["spread"]["reward"] == {"least": 0.1, "median": 0.2, "greatest": 0.5}
    assert (first["seeds"], second["settings"]) == ([0, 1, 2], {"sync.max_staleness": "4"})
    assert second["runs"][0]["digest"] == "same"
    html = page.read_text()
    assert html.count('<polygon class="area') == 4, "a band for each metric of the seeds"
    assert "<script" not in html
    assert not re.search(r"(src|href)=", html)
    assert compare.show({"out": str(picture)}, paths) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def _lengths(workdir, tmp_path):
    """Runs of 5 and of 9 steps, both evaluated after steps 4 and 8, if they came so far."""
    made = []
    for name, steps, tokens in (("short", 5, 100.0), ("long", 9, 40.0)):
        path = shutil.copytree(workdir, tmp_path / name)
        at = Workdir(path)
        at.metrics.unlink()
        for step in range(1, steps + 1):
            append(at.metrics, metrics(step, entropy=1.0, num_tokens=tokens * step))
            if step % 4 == 0:
                line = {"phase": "evaluation", "step": step, "time": 1.7e9, "problems": 50}
                append(at.metrics, {**line, "accuracy": step / 10})
        config = json.loads(at.config.read_text()) | {"seed": 1, "trainer": {"steps": steps}}
        at.config.write_text(json.dumps(config))
        made.append(str(path))
    return made


@pytest.mark.parametrize(
    ("at", "until", "reward", "accuracy"),
    [
        ("steps", [5, 5], [0.05, 0.05], [0.4, 0.4]),
        ("tokens", [3, 9], [0.03, 0.09], [None, 0.8]),
        ("seconds", [5, 5], [0.05, 0.05], [0.4, 0.4]),
        ("end", [5, 9], [0.05, 0.09], [0.4, 0.8]),
    ],
)
def test_runs_of_different_length_are_compared_as_far_as_all_have_come(
    workdir, tmp_path, capsys, at, until, reward, accuracy
):
    paths = _lengths(workdir, tmp_path)
    assert compare.show({"json": "True", "at": at}, paths) == 0
    runs = [one for of in json.loads(capsys.readouterr().out)["groups"] for one in of["runs"]]
    assert [one["until_step"] for one in runs] == until
    assert [one["values"]["reward"] for one in runs] == reward
    assert [one["values"]["accuracy after"] for one in runs] == accuracy
    assert [one["values"]["trainer steps"] for one in runs] == [5, 9]
    assert compare.show({"at": at}, paths) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert ("as far as all of these runs have come" in said) == (at != "end")
    assert ("Trainer steps of each run: short 5, long 9." in said) == (at != "end")
    assert ("Compared at trainer step: short 3, long 9." in said) == (at == "tokens")
    assert ("Accuracy is that after step: short 4, long 4." in said) == (at in ("steps", "seconds"))


def test_a_band_is_from_the_least_to_the_greatest_of_the_seeds(workdir, tmp_path):
    paths = _runs(workdir, tmp_path)
    runs = open_runs(paths)
    for one in runs:
        one.read(rollouts=False)
    seeds, _ = run_comparison.group(runs)
    assert seeds.curve("rl", "reward_mean")[5] == (0.1, 0.2, 0.5)
    assert seeds.curve("rl", "none") == {}


def test_a_run_without_a_config_is_a_group_of_its_own(workdir, tmp_path, capsys):
    first, second, *_ = _runs(workdir, tmp_path)
    Workdir(second).config.unlink()
    Workdir(second).outcome.unlink()
    assert compare.show({}, [str(first), str(second)]) == 0
    said = capsys.readouterr().out
    assert "No digest was recorded for: b." in said


@pytest.mark.parametrize(
    ("words", "flags", "said"),
    [
        ("TMP/first", {}, "two runs or more"),
        ("TMP/first TMP/none", {}, "none is not a directory"),
        ("TMP/first TMP/first/", {}, "All of these are the same run"),
        ("TMP/first TMP/young", {}, "recorded nothing yet: .*young"),
        ("TMP/first TMP/young", {"out": "x.pdf"}, r"--out=x.pdf must end with .html or .png"),
    ],
)
def test_mistakes_about_compared_runs_get_one_line(workdir, tmp_path, words, flags, said):
    (tmp_path / "young").mkdir()
    (tmp_path / "young/config.json").write_text("{}")
    shutil.copytree(workdir, tmp_path / "copy")
    with pytest.raises(ConfigError, match=said):
        compare.show(flags, words.replace("TMP", str(tmp_path)).split())


def test_the_time_that_restarts_cost_is_told_if_there_were_any(workdir):
    assert "led to steps that count" not in _text(_page(workdir))
    first = min(span.start_secs for span in read_spans(workdir) if span.kind == SpanKind.TRAIN)
    restart = {"role": "trainer", "time": first + 0.01, "why": "killed"}
    append(Workdir(workdir).restarts, restart, {**restart, "time": first + 0.02})
    (run,) = open_runs([workdir])
    run.read()
    told = f"effective {run.summary.lost.effective_share:.1%} of the time led to steps that count;"
    assert f"{told} 2 restarts lost" in _text(_page(workdir))


def test_a_report_says_which_completions_have_gone(workdir):
    at = Workdir(workdir)
    assert "no longer there" not in _page(workdir)
    line = {"part": "step-00000001.jsonl", "first": 1, "last": 3, "bytes": 5}
    append(at.removed(at.rollouts), line)
    gone = "The completions of steps 1 to 3 are no longer there"
    assert gone in _text(_page(workdir))
