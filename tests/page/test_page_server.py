import asyncio
import csv
import io
import re
import time

import numpy as np
import pytest
from starlette.testclient import TestClient

from rl_sync.display import text
from rl_sync.display.span_styles import SPAN_STYLES
from rl_sync.images import Image
from rl_sync.page.page_server import changes, make_app, stamp
from rl_sync.records.rollouts.recorded_images import ImageFiles
from rl_sync.records.run_outcome import RunOutcome, record_end
from rl_sync.records.run_records import open_runs
from rl_sync.records.span_reader import read_spans
from rl_sync.records.spans import SpanKind
from rl_sync.workdir import Workdir
from tests.page.small_run import append, metrics, rollout, write_run, write_step

TOKEN = "a-token"
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    path = write_run(tmp_path_factory.mktemp("page") / "run")
    write_step(path, 5, completion=HOSTILE, prompt=HOSTILE, why=HOSTILE, tokens=[HOSTILE, HOSTILE])
    (path / "logs").mkdir()
    (path / "logs" / "explorer1.log").write_text("a log of the trainer\n")
    (path / "logs" / "master.log").write_text(HOSTILE + "\x1b[2J\n")
    return path


def client_of(*workdirs, **more):
    return TestClient(make_app(open_runs(workdirs), **more), base_url="http://127.0.0.1:1")


@pytest.fixture(scope="module")
def client(workdir):
    return client_of(workdir)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("/", "trainer step <b"),
        ("/", "explorer1"),
        ("/curves", "Mean reward of all trajectories"),
        ("/rollouts?text=4%2B1", "2 of 20 recorded completions"),
        ("/rollouts?sort=-reward&from=2&to=3&least=1", "4 of 20 recorded completions"),
        ("/group?step=2&lease=4", "token 1, id 6, logprob -9, version 2, not learned from"),
        ("/prompt?prompt=4", "Problem 4 over the steps"),
        ("/timeline", 'id="timeline"'),
        ("/flow", "The bound is 2 trainer steps."),
        ("/curves?x=seconds&smooth=0.9&log=1", 'data-unit="s"'),
        ("/curves?x=tokens", "nothing yet"),
        ("/settings?find=alarm steps", "observe.alarm_steps"),
        ("/logs", "a log of the trainer"),
        ("/logs?name=master", "&lt;script&gt;"),
        ("/static/page.js", "EventSource"),
    ],
)
def test_a_view_shows_the_run(client, address, said):
    response = client.get(address)
    assert response.status_code == 200
    assert said in response.text


@pytest.mark.parametrize("address", ["/rollouts", "/group?step=5&lease=10", "/prompt?prompt=10"])
def test_what_the_policy_wrote_is_escaped(client, address):
    text = client.get(address).text
    assert HOSTILE not in text
    assert "&lt;script&gt;" in text


def test_the_images_of_a_prompt_are_shown_or_their_faults(tmp_path):
    path = write_run(tmp_path / "run")
    images = ImageFiles(path, 1 << 20).store([Image.of_array(np.zeros((9, 7), np.uint8))])
    write_step(path, 5, images=[*images, {"error": HOSTILE}])
    response = client_of(path).get("/group?step=5&lease=10")
    assert response.text.count('<img src="data:image/png;base64,') == 1
    assert "image 1: 7x9, " in response.text
    assert "image 2: &lt;script&gt;" in response.text
    assert HOSTILE not in response.text
    assert "img-src 'self' data:;" in response.headers["content-security-policy"]


def test_names_of_directories_are_escaped(tmp_path):
    (tmp_path / "<b>").mkdir()
    (tmp_path / "c").mkdir()
    assert "<b>&" not in client_of(tmp_path / "<b>", tmp_path / "c").get("/").text
    assert "&lt;b&gt;" in client_of(tmp_path / "<b>", tmp_path / "c").get("/").text


def test_every_view_of_an_empty_directory_can_be_seen(tmp_path):
    client = client_of(tmp_path)
    for address in (
        *("/", "/curves", "/curves?x=seconds&log=1&smooth=0.5", "/rollouts", "/timeline", "/flow"),
        *("/settings", "/logs", "/data/timeline", "/data/metrics.csv"),
    ):
        assert client.get(address).status_code == 200, address


@pytest.mark.parametrize(
    ("address", "status"),
    [
        ("/?run=1", 404),
        ("/?run=-1", 404),
        ("/rollouts?from=x", 400),
        ("/rollouts?sort=path", 400),
        ("/group?step=1", 400),
        ("/static/..%2Frun.py", 404),
        ("/static/../../run.py", 404),
        ("/config.json", 404),
        ("/curves?x=hours", 400),
        ("/curves?smooth=1", 400),
        ("/curves?smooth=nan", 400),
        ("/data/timeline?start=inf&end=1", 400),
        ("/data/timeline?start=0&end=-inf", 400),
        ("/data/timeline?start=0&end=nan", 400),
        ("/data/timeline?start=1e308&end=1", 400),
        ("/data/timeline?start=-1e308&end=1e308", 400),
        ("/logs?name=../config", 404),
        ("/logs?name=", 404),
    ],
)
def test_other_addresses_are_refused(client, address, status):
    assert client.get(address).status_code == status


def test_an_alarm_about_completions_shows_three_of_them(tmp_path):
    path = write_run(tmp_path / "run", steps=8)
    assert "examples" not in client_of(path).get("/").text
    append(Workdir(path).metrics, *(metrics(step, reward_max=0.0) for step in range(9, 12)))
    for step in (9, 10):
        write_step(path, step, completion=HOSTILE, why="no number at the end")
    text = client_of(path).get("/").text
    table = text[text.index('class="examples ') : text.index("</table>")]
    assert table.count("<tr><td") == 3
    assert table.count("no number at the end") == 3
    assert "step=10" in table
    assert HOSTILE not in table
    assert table.index("lease=20") < table.index("lease=21"), "they are of other problems first"


def test_metrics_are_found_by_words_of_their_names_and_meanings(client):
    named = client.get("/curves?find=reward MEAN").text
    assert ">reward_mean</figcaption>" in named
    assert ">reward_min</figcaption>" not in named
    assert ">staleness_max</figcaption>" in client.get("/curves?find=greatest staleness").text
    nothing = client.get("/curves?find=no such thing").text
    assert "<figcaption" not in nothing
    assert "No metric has these words." in nothing


def test_a_smoothed_curve_stands_before_the_faint_one_of_its_numbers(client):
    text = client.get("/curves?find=reward_mean&smooth=0.9").text
    assert text.count("<polyline") == 2
    assert text.count("faint") == 1
    assert "faint" not in client.get("/curves?find=reward_mean").text


def test_metrics_can_be_downloaded_as_a_table(client):
    response = client.get("/data/metrics.csv")
    assert response.headers["content-disposition"] == 'attachment; filename="run-metrics.csv"'
    rows = list(csv.DictReader(io.StringIO(response.text)))
    assert [row["step"] for row in rows] == ["1", "2", "3", "4"]
    assert [float(row["reward_mean"]) for row in rows] == [0.01, 0.02, 0.03, 0.04]


def test_a_run_that_has_ended_or_gone_silent_does_not_count_as_live(tmp_path):
    path = write_run(tmp_path / "run")
    silent = client_of(path).get("/")
    assert silent.headers["x-state"].startswith("no record for ")
    for outcome, state, said in (
        (RunOutcome(1.0, "0f"), "finished", "<b>finished</b>"),
        (RunOutcome(1.0, stopped="Ctrl-C"), "stopped", "stopped: Ctrl-C"),
        (RunOutcome(1.0, failed=HOSTILE), "failed", "&lt;script&gt;"),
    ):
        record_end(path, outcome)
        response = client_of(path).get("/")
        assert (response.headers["x-state"], said in response.text) == (state, True)
    Workdir(path).outcome.unlink()
    now = time.time()
    append(Workdir(path).metrics, *(metrics(step, time=now - 11 + 2 * step) for step in (5, 6)))
    live = client_of(path).get("/")
    assert live.headers["x-state"] == "live"
    assert " left" in live.text


def test_an_open_page_is_told_when_a_run_goes_silent(tmp_path, monkeypatch):
    path = write_run(tmp_path / "run")
    append(Workdir(path).metrics, metrics(5, time=time.time()))
    (run,) = runs = open_runs([path])
    run.refresh()
    before, now = stamp(runs), time.time()
    assert (text.state(run), stamp(runs)) == ("live", before)
    monkeypatch.setattr("rl_sync.records.run_records.time.time", lambda: now + 310)
    assert text.state(run) == "no record for 5 minutes"
    assert stamp(runs) != before
    monkeypatch.setattr("rl_sync.records.run_records.time.time", lambda: now + 86400)
    assert text.state(run) == "no record for 24 hours"


def test_a_run_whose_processes_record_their_use_of_the_machine_is_live(tmp_path):
    path = write_run(tmp_path / "run")
    usage = Workdir(path).usage / "trainer.jsonl"
    append(usage, {"time": time.time(), "cpu_secs": 1.0, "memory_bytes": 1})
    (run,) = open_runs([path])
    run.refresh()
    assert run.state == "live", "it may compile for long"
    before = run.stamp()
    append(usage, {"time": time.time(), "cpu_secs": 2.0, "memory_bytes": 1})
    assert run.stamp() != before


def test_the_use_of_the_machine_is_shown_for_each_process(tmp_path):
    path = write_run(tmp_path / "run")
    lines = [{"time": 10.0 * i, "cpu_secs": 15.0 * i, "memory_bytes": 300 << 20} for i in range(4)]
    append(Workdir(path).usage / "trainer.jsonl", *lines)
    text = client_of(path).get("/").text
    assert "<tr><th>trainer</th><td>1.5</td><td>300 MiB</td></tr>" in text


def test_runs_are_overlaid(workdir, tmp_path):
    other = write_run(tmp_path / "other")
    text = client_of(workdir, other).get("/curves").text
    figure = text[text.index("reward_mean</figcaption>") :]
    figure = figure[: figure.index("</svg>")]
    assert 'data-name="run"' in figure
    assert 'data-name="other"' in figure


def test_a_fragment_is_the_inside_of_a_view_alone(client):
    response = client.get("/flow", headers={"X-Fragment": "1"})
    assert "<html" not in response.text
    assert "The bound is 2" in response.text
    assert response.headers["x-stamp"]


def test_the_timeline_is_the_picture_of_a_window(client):
    data = client.get("/data/timeline?width=960&start=10&end=14").json()
    assert (data["start"], data["end"]) == (10, 14)
    assert data["left"] + data["width"] < 960
    assert data["svg"].startswith("<svg")
    blocks = re.findall(r'id="(\w+) [^":]*: ([\d.]+) to ([\d.]+) s, [\d.]+ s long"', data["svg"])
    assert {"rollout", "train"} <= {kind for kind, *_ in blocks}
    assert all(10 <= float(start) < float(end) <= 14 for _, start, end in blocks)
    assert SPAN_STYLES["train"].colour.lower() in data["svg"]
    assert not re.search("<style| style=|<script", data["svg"]), "the page forbids them"


def test_without_a_window_the_timeline_follows_the_end(client):
    data = client.get("/data/timeline?secs=3&dark=1").json()
    assert data["end"] == data["duration"]
    assert data["end"] - data["start"] == pytest.approx(3)
    assert "#18181b" in data["svg"], "waits on a dark ground"
    assert client.get("/data/timeline?start=5000&end=5001").status_code == 200


def test_other_names_in_the_host_header_are_refused(client):
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", ""):
        assert client.get("/", headers={"host": host}).status_code == 421, host
    for host in ("localhost:5", "127.0.0.1", "[::1]:8", "192.168.0.9:1"):
        assert client.get("/", headers={"host": host}).status_code == 200, host


def test_the_page_can_only_be_read(client):
    assert client.post("/").status_code == 405


def test_responses_forbid_all_that_is_loaded_from_elsewhere(client):
    headers = client.get("/").headers
    assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
    assert headers["x-content-type-options"] == "nosniff"
    assert "http://" not in client.get("/").text


def test_a_token_is_asked_for_once(workdir):
    client = client_of(workdir, token=TOKEN)
    assert client.get("/").status_code == 401
    assert client.get("/static/page.js").status_code == 401
    assert client.get("/?token=wrong").status_code == 401
    assert client.get("/", headers={"cookie": b"rl_sync_page=\xfc"}).status_code == 401
    response = client.get(f"/rollouts?token={TOKEN}&from=2", follow_redirects=False)
    assert response.headers["location"] == "/rollouts?from=2"
    assert "HttpOnly" in response.headers["set-cookie"]
    assert client.get("/").status_code == 200


def test_a_token_does_not_lead_to_another_host(workdir):
    response = client_of(workdir, token=TOKEN).get(
        f"http://127.0.0.1:1//evil.example/?token={TOKEN}", follow_redirects=False
    )
    assert response.headers["location"] == "/evil.example/"


def test_events_tell_of_each_change():
    stamps = iter(["a", "a", "b", "b", "b", "b"])

    async def take(count):
        stream = changes(lambda: next(stamps), poll_secs=0.001, keep_alive_secs=0.002)
        return [await anext(stream) for _ in range(count)]

    retry, first, second, quiet = asyncio.run(take(4))
    assert retry.startswith("retry:")
    assert first == "event: change\ndata: a\n\n"
    assert second == "event: change\ndata: b\n\n"
    assert quiet.startswith(":")


def test_a_view_is_as_new_as_the_files(tmp_path):
    path = write_run(tmp_path / "run")
    client = client_of(path)
    assert 'id="step0">4<' in client.get("/").text
    append(Workdir(path).metrics, metrics(5))
    append(Workdir(path).rollouts / "step-00000009.jsonl", rollout(9, 99))
    assert 'id="step0">5<' in client.get("/").text
    assert "99/0" in client.get("/rollouts").text


def test_nothing_is_written(tmp_path):
    path = write_run(tmp_path / "run")
    before = {one: one.stat() for one in path.rglob("*")}
    client = client_of(path)
    for address in ("/", "/curves", "/rollouts?text=1", "/flow", "/data/timeline"):
        client.get(address)
    after = {one: one.stat() for one in path.rglob("*")}
    assert {p: (s.st_size, s.st_mtime_ns) for p, s in before.items()} == {
        p: (s.st_size, s.st_mtime_ns) for p, s in after.items()
    }


def test_the_share_of_time_that_counts_is_shown_once_a_role_was_started_again(tmp_path):
    path = write_run(tmp_path / "run", steps=8)
    assert "effective" not in client_of(path).get("/").text
    first = min(span.start_secs for span in read_spans(path) if span.kind == SpanKind.TRAIN)
    append(Workdir(path).restarts, {"role": "trainer", "time": first + 0.01, "why": "killed"})
    (run,) = open_runs([path])
    run.read()
    shown = client_of(path).get("/").text
    assert 0 < run.lost.effective_share < 1
    assert f"<dd>{100 * run.lost.effective_share:.1f} %</dd>" in shown
    assert "1 restart lost" in shown


def test_views_of_completions_say_which_have_gone(tmp_path):
    at = Workdir(write_run(tmp_path / "run", steps=4))
    client = client_of(at.path)
    line = {"part": "step-00000001.jsonl", "first": 1, "last": 3, "bytes": 5}
    assert "no longer there" not in client.get("/rollouts").text
    append(at.removed(at.rollouts), line)
    for address in ("/rollouts", "/prompt?prompt=4", "/group?step=99&lease=4"):
        said = client.get(address).text
        assert "The completions of steps 1 to 3 are no longer there" in said, address
