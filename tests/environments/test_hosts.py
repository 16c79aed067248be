"""Hosts of environments: their answers, their limits, and the ends of their processes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rl_sync.environments.hosts.episode_limits import HostLimits
from rl_sync.environments.hosts.host import Failure
from rl_sync.environments.hosts.host_choice import host_of
from rl_sync.environments.hosts.inline_host import InlineHost
from rl_sync.environments.hosts.process_host import ProcessHost
from rl_sync.environments.interface import Outcome, Reply, Turn
from tests.processes import lives

ROOT = Path(__file__).parents[2]
OWN = "tests.environments.own"
LATEST = 60.0
linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
HOLDER = """
import os, signal, sys, time
from rl_sync.environments.hosts.episode_limits import HostLimits
from rl_sync.environments.hosts.process_host import ProcessHost
from rl_sync.environments.interface import Reply

host = ProcessHost("tests.environments.own:Hostile", HostLimits(workers=3))
texts = {0: "ok", 1: "loop", 2: "leave"}
for episode in texts:
    host.begin(episode, {"folder": sys.argv[1]}, 0)
turns = []
while len(turns) < 3:
    turns += host.answers(60.0)
for episode, turn in turns:
    print(turn.messages[0].content, flush=True)
    host.step(episode, Reply(texts[episode]))
turns = []
while len(turns) < 2:
    turns += host.answers(60.0)
if sys.argv[2] == "interrupted":
    # It may have been started where interrupts are ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        print(host._pool._server._process.pid, flush=True)
        while True:
            host.answers(1.0)
    except KeyboardInterrupt:
        host.close()
        sys.exit(5)
print(host._pool._server._process.pid, flush=True)
if sys.argv[2] == "held" and os.fork() == 0:
    os.closerange(0, 3)
    time.sleep(20)  # It holds the sockets to the workers, though the holder is gone.
    os._exit(0)
time.sleep(1000)
"""


def assert_end(processes):
    deadline = time.monotonic() + 10
    while any(map(lives, processes)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [process for process in processes if lives(process)]


@contextlib.contextmanager
def hosting(name, **limits):
    with ProcessHost(f"{OWN}:{name}", HostLimits(**{"workers": 2} | limits)) as host:
        yield host


def next_answers(host, count=1):
    """Returns results by episode, when there are as many."""
    found, deadline = {}, time.monotonic() + LATEST
    while len(found) < count:
        assert time.monotonic() < deadline, f"only {found}"
        for episode, result in host.answers(1.0):
            assert episode not in found
            found[episode] = result
    return found


def begun(host, *episodes, **task):
    """Begins episodes, and returns the texts of their first turns."""
    for episode in episodes:
        host.begin(episode, task, seed=episode)
    found = next_answers(host, len(episodes))
    return [found[episode].messages[0].content for episode in episodes]


def stepped(host, episode, text):
    host.step(episode, Reply(text))
    return next_answers(host)[episode]


def text_of(result):
    assert isinstance(result, Turn), result
    return result.messages[0].content


@pytest.mark.parametrize("name", ["Counting", "Asynchronous"])
@pytest.mark.parametrize("kind", ["inline", "processes"])
def test_an_episode_goes_from_its_first_turn_to_its_outcome(kind, name):
    reference = f"{OWN}:{name}(start=1)"
    make = InlineHost if kind == "inline" else ProcessHost
    with make(reference) as host:
        (process,) = begun(host, 7, turns=3)
        assert (int(process) == os.getpid()) is (kind == "inline")
        turn = stepped(host, 7, "a")
        assert (text_of(turn), turn.reward) == ("2 a", 0.5)
        outcome = stepped(host, 7, "abc")
        assert outcome == Outcome({"count": 3.0}, metrics={"length": 3})
        assert host.answers(0.0) == []
        with pytest.raises(ValueError, match="Episode 7 is not under way"):
            host.step(7, Reply("a"))
        host.end(7)  # Nothing is left to end.
        begun(host, 7, turns=3)


@pytest.mark.gate
@pytest.mark.parametrize("make", [InlineHost, ProcessHost])
def test_an_episode_is_asked_one_thing_at_a_time(make):
    with make(f"{OWN}:Counting") as host:
        host.begin(1, {"turns": 9}, 0)
        with pytest.raises(ValueError, match="Episode 1 is under way already"):
            host.begin(1, {"turns": 9}, 0)
        with pytest.raises(ValueError, match="fetch its answer"):
            host.step(1, Reply("a"))
        next_answers(host)
        host.step(1, Reply("a"))
        host.end(1)
        assert host.answers(0.5) == []
        assert begun(host, 1, turns=9)


def test_the_class_chooses_the_host():
    for name, kind in (("Counting", InlineHost), ("Hostile", ProcessHost)):
        with host_of(f"{OWN}:{name}") as host:
            assert type(host) is kind
    with pytest.raises(ValueError, match="give its class the attribute inline = True"):
        InlineHost(f"{OWN}:Hostile")


@pytest.mark.gate
def test_a_hundred_episodes_share_four_workers():
    turns, steps, processes = (
        {e: 1 + e % 5 for e in range(100)},
        dict.fromkeys(range(100), 0),
        set(),
    )
    with hosting("Counting", workers=4) as host:
        for episode in turns:
            host.begin(episode, {"turns": turns[episode]}, seed=episode)
        ended, deadline = {}, time.monotonic() + LATEST
        while len(ended) < 100 and time.monotonic() < deadline:
            for episode, result in host.answers(5.0):
                if isinstance(result, Turn):
                    processes |= set() if steps[episode] else {text_of(result)}
                    host.step(episode, Reply("x"))
                    steps[episode] += 1
                else:
                    ended[episode] = result
    assert {e: result.rewards["count"] for e, result in ended.items()} == turns
    assert steps == turns
    assert 1 <= len(processes) <= 4


# What each fault is called, and a part of what is said about it.
FAULTS = {
    "raise": ("raised", "ArithmeticError: a fault of mine"),
    "exit": ("raised", "SystemExit: 3"),
    "die": ("died", "ended with exit code 3"),
    "crash": ("died", "killed by SIGSEGV"),
    "sleep": ("time-out", "step took longer than 3 s"),
    "loop": ("time-out", "step took longer than 3 s"),
    "memory": ("memory", "MemoryError"),
    "none": ("nonsense", "must return a Turn or an Outcome"),
    "nan": ("nonsense", "finite number"),
    "no messages": ("nonsense", "must return a Turn with a message"),
    "object": ("nonsense", "tool_call_id is a object, not plain data"),
    "tool": ("nonsense", "tools[0]['function']['odd'] is a set, not plain data"),
    "recursive": ("nonsense", "nested more than 32 deep"),
    "garbage": ("nonsense", "bytes that are no record"),
    "long frame": ("nonsense", "which is no answer"),
    "close everything": ("died", "closed the channel"),
    "unknown": ("raised", "KeyError: 'unknown'"),
}


@pytest.mark.gate
@pytest.mark.samples("step")
@linux
@pytest.mark.parametrize("method", ["reset", "step"])
def test_a_fault_costs_its_own_episode_alone(method):
    limits = {"workers": 3, "limit_secs": 3.0, "memory_bytes": 256 << 20}
    with hosting("Hostile", **limits) as host:
        (process,) = begun(host, -1)
        for episode, (text, (kind, why)) in enumerate(FAULTS.items()):
            if method == "reset":
                host.begin(episode, {"reset": text}, 0)
                failure = next_answers(host)[episode]
            else:
                begun(host, episode)
                failure = stepped(host, episode, text)
            assert isinstance(failure, Failure), (text, failure)
            assert failure.kind == kind, (text, failure)
            if method == "reset" and text in ("none", "nan", "object"):
                why = "must return a Turn, not"
            assert why.replace("step", method) in failure.why
            assert "Hostile" in failure.why or text in ("garbage", "long frame")
        assert text_of(stepped(host, -1, "process")) == process


@linux
def test_an_environment_that_kills_the_other_workers_ends_their_episodes_and_no_more():
    with hosting("Hostile", workers=3) as host:
        begun(host, 1, 2, 3)
        assert text_of(stepped(host, 1, "kill siblings")) == "killed"
        host.step(2, Reply("ok"))
        host.step(3, Reply("ok"))
        found = next_answers(host, 2)
        assert [found[e].kind for e in (2, 3)] == ["died", "died"]
        assert "killed by SIGKILL" in found[2].why
        assert text_of(stepped(host, 1, "ok")) == "ok"
        assert begun(host, 4, 5)


@pytest.mark.gate
@linux
def test_a_host_starts_workers_again_after_an_environment_has_killed_their_parent():
    with hosting("Hostile", workers=2) as host:
        before = begun(host, 1, 2)
        host.step(1, Reply("kill parent"))
        assert next_answers(host)[1].kind == "died"
        failure = stepped(host, 2, "ok")
        assert failure.kind == "died"
        assert "its worker ended with the process that had started it" in failure.why
        assert not set(begun(host, 3, 4)) & set(before)
        assert_end(map(int, before))


@pytest.mark.gate
@linux
def test_a_host_gives_up_where_the_parent_is_killed_again_and_again(tmp_path):
    file = tmp_path / "harmful.py"
    file.write_text(
        "import os\n"
        "def harm():\n    os.kill(os.getppid(), 9)\n    os._exit(1)\n"
        "os.register_at_fork(after_in_child=harm)\n"
        "class E: pass\n"
    )
    with ProcessHost(f"{file}:E", HostLimits(workers=1)) as host:
        for episode in range(4):
            host.begin(episode, {}, 0)
            assert next_answers(host)[episode].kind == "died"
        host.begin(4, {}, 0)
        with pytest.raises(RuntimeError, match="ended 4 times in a row"):
            host.answers(LATEST)


def test_a_worker_in_which_an_episode_left_a_thread_is_replaced():
    with hosting("Hostile", workers=1) as host:
        (process,) = begun(host, 1)
        host.end(1)
        assert begun(host, 2) == [process]
        assert text_of(stepped(host, 2, "thread")) == "thread"
        host.end(2)
        assert begun(host, 3) != [process]


@pytest.mark.gate
def test_workers_are_used_again_and_only_lost_ones_are_replaced():
    with hosting("Hostile", workers=1, limit_secs=2.0, memory_bytes=256 << 20) as host:
        (process,) = begun(host, 1)
        assert stepped(host, 1, "raise").kind == "raised"
        assert begun(host, 2) == [process]
        assert stepped(host, 2, "none").kind == "nonsense"
        assert begun(host, 3) == [process]
        host.end(3)
        assert begun(host, 4) == [process]
        assert stepped(host, 4, "memory").kind == "memory"
        (process_after_memory,) = begun(host, 5)
        assert process_after_memory != process
        assert stepped(host, 5, "loop").kind == "time-out"
        (process_after_loop,) = begun(host, 6)
        assert process_after_loop != process_after_memory
        assert text_of(stepped(host, 6, "thread")) == "thread"
        host.end(6)
        assert begun(host, 7) != [process_after_loop]


def test_a_worker_that_dies_between_requests_fails_the_next_one():
    with hosting("Hostile") as host:
        begun(host, 1)
        assert text_of(stepped(host, 1, "die later")) == "soon"
        assert host.answers(1.0) == []
        failure = stepped(host, 1, "ok")
        assert (failure.kind, "exit code 7" in failure.why) == ("died", True)


def test_the_clock_starts_when_a_worker_takes_the_request():
    with hosting("Hostile", workers=1, limit_secs=1.5) as host:
        for episode in range(4):
            host.begin(episode, {"reset": "wait 0.6"}, 0)
        for episode in range(4):  # The last waits 1.8 s for its turn.
            assert text_of(next_answers(host)[episode]) == "waited"
            host.end(episode)


def test_an_episode_waits_for_a_worker_no_longer_than_allowed():
    with hosting("Hostile", workers=2, queue_secs=0.5) as host:
        begun(host, 1, 2)
        host.begin(3, {}, 0)
        failure = next_answers(host)[3]
        assert failure.kind == "time-out"
        assert "waited 0.5 s (queue_secs) for one of 2 workers, taken by the episodes 1, 2" in (
            failure.why
        )
        host.begin(4, {}, 0)
        host.end(1)
        assert isinstance(next_answers(host)[4], Turn)


def test_deadlines_do_not_punish_a_caller_that_looks_late():
    with hosting("Hostile", workers=1, limit_secs=1.0, queue_secs=0.5) as host:
        begun(host, 1)
        host.step(1, Reply("done"))
        host.begin(2, {}, 0)
        time.sleep(2.0)  # As while a program is compiled.
        found = next_answers(host, 2)
    assert found[1] == Outcome({"score": 1.0})
    assert isinstance(found[2], Turn)


def test_environments_are_closed_once_whatever_happens_to_their_episode(tmp_path):
    with hosting("Hostile", workers=1, limit_secs=5.0) as host:
        for number, text in enumerate(["done", "raise", "none", "wait 0.3", ""]):
            closed = tmp_path / f"closed{number}"
            begun(host, number, closed=str(closed))
            if text:
                host.step(number, Reply(text))
            if text.startswith("wait"):
                host.end(number)  # Its environment is closed once it has answered.
            elif text:
                next_answers(host)
            host.end(number)
            begun(host, 100 + number)  # There is one worker, so the former episode's is closed.
            host.end(100 + number)
            assert closed.exists(), text
        begun(host, 7, closed=str(tmp_path / "closed at the end"))
    assert (tmp_path / "closed at the end").exists()


def test_a_fault_of_close_concerns_nobody_else(caplog):
    with hosting("Hostile", workers=1, limit_secs=1.0) as host:
        for number, text in enumerate(["raise", "sleep", "die"]):
            begun(host, number, close=text)
            host.end(number)
            begun(host, 10 + number)
            host.end(10 + number)
        with InlineHost(f"{OWN}:Counting") as inline:
            inline.end(5)
    said = " ".join(record.getMessage() for record in caplog.records)
    for part in ("a fault of mine", "close took longer than 1 s", "ended with exit code 3"):
        assert part in said


def test_each_episode_draws_from_its_seed_alone():
    with hosting("Drawing", workers=2) as host:
        draws = {}
        for episode, seed in enumerate([5, 6, 5, 6, 5]):
            host.begin(episode, {}, seed)
            next_answers(host)
            draws.setdefault(seed, set()).add(text_of(stepped(host, episode, "")))
            if episode % 2:
                host.end(episode - 1)
                host.end(episode)
    assert {seed: len(texts) for seed, texts in draws.items()} == {5: 1, 6: 1}
    assert draws[5] != draws[6]


def test_output_of_environments_goes_to_the_errors(capfd):
    with hosting("Hostile") as host:
        begun(host, 1)
        assert text_of(stepped(host, 1, "print")) == "printed"
        assert text_of(stepped(host, 1, "ok")) == "ok"
    out, errors = capfd.readouterr()
    assert out == ""
    for line in ("to the output", "to the errors", "straight to the output", "by another program"):
        assert line in errors


@pytest.mark.gate
def test_long_answers_and_long_tasks_arrive():
    with hosting("Hostile") as host:
        begun(host, 1, folder="x" * (8 << 20))
        assert len(text_of(stepped(host, 1, f"say {8 << 20}"))) == 8 << 20
        failure = stepped(host, 1, f"say {65 << 20}")
        assert failure.kind == "nonsense"
        assert "65 MiB, more than the 64 that are sent" in failure.why
        with pytest.raises(ValueError, match=r"The task of episode 2 has 65 MiB, more than the 64"):
            host.begin(2, {"folder": "x" * (65 << 20)}, 0)
        with pytest.raises(ValueError, match="The task of episode 2 cannot be sent to a worker"):
            host.begin(2, {"x": lambda: 1}, 0)
        begun(host, 2)


def test_scalars_of_numpy_become_numbers():
    with hosting("Hostile") as host:
        begun(host, 1)
        outcome = stepped(host, 1, "numpy")
    assert outcome == Outcome({"score": 0.5}, metrics={"n": 3})
    assert type(outcome.rewards["score"]) is float
    assert type(outcome.metrics["n"]) is int


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import time; time.sleep(1000)", "took longer than start_secs=3"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("import os; os._exit(4)", "ended with exit code 4"),
        ("import sys; sys.exit('no')", "SystemExit: no"),
        ("import jax\nclass E: pass", "imports jax with its module"),
        ("class D: pass", "has no 'E'"),
        ("class E:\n    def __init__(self, level): pass", "missing a required argument: 'level'"),
    ],
)
def test_an_environment_that_cannot_be_imported_is_refused_at_once(source, message, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(source)
    limits = HostLimits(start_secs=60.0 if "jax" in source else 3.0)
    with pytest.raises(ValueError, match=message):
        ProcessHost(f"{file}:E", limits)


@pytest.mark.gate
def test_wrong_options_are_refused_with_the_right_ones():
    with pytest.raises(ValueError, match=r"no option 'stat': it has start; did you mean 'start'\?"):
        ProcessHost(f"{OWN}:Counting(stat=3)")
    with pytest.raises(ValueError, match="workers of environments must be above 0, not 0"):
        HostLimits(workers=0)
    with ProcessHost("pathlib:Path") as host:
        host.begin(1, {}, 0)
        why = next_answers(host)[1].why
    assert "lacks reset, step, close" in why


@pytest.mark.gate
def test_a_class_checks_its_options_before_its_first_episode():
    with pytest.raises(ValueError, match="start=-1 is below 0"):
        ProcessHost(f"{OWN}:Checked(start=-1)")
    with ProcessHost(f"{OWN}:Checked(start=1)") as host:
        begun(host, 1, turns=3)


def test_workers_hold_no_jax():
    module = "rl_sync.environments.hosts.episode_worker"
    code = f"import sys, {module}; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


@pytest.mark.gate
@linux
def test_a_worker_that_takes_too_long_ends_with_all_that_it_started(tmp_path):
    with hosting("Hostile", limit_secs=1.5) as host:
        (process,) = begun(host, 1, folder=str(tmp_path))
        assert stepped(host, 1, "leave and loop").kind == "time-out"
        processes = [int(process), *(int(path.name) for path in tmp_path.iterdir())]
        assert len(processes) == 3
        assert_end(processes)


@linux
def test_close_leaves_no_processes(tmp_path):
    with hosting("Hostile", workers=3) as host:
        processes = [int(text) for text in begun(host, 1, 2, folder=str(tmp_path))]
        host.step(1, Reply("leave"))
        next_answers(host)
        host.step(2, Reply("sleep"))
        left = [int(path.name) for path in tmp_path.iterdir()]
        assert len(left) == 2
        processes += [*left, host._pool._server._process.pid]
        assert all(map(lives, processes))
        start = time.monotonic()
    assert time.monotonic() - start < 10
    assert_end(processes)


@pytest.mark.nightly
@linux
@pytest.mark.parametrize("case", ["killed", "held", "interrupted"])
def test_workers_end_with_the_process_that_hosts_them(case, tmp_path):
    script = tmp_path / "holder.py"
    script.write_text(HOLDER)
    folder = tmp_path / "left"
    folder.mkdir()
    holder = subprocess.Popen(
        [sys.executable, str(script), str(folder), case],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    processes = [int(holder.stdout.readline()) for _ in range(4)]
    processes += [int(path.name) for path in folder.iterdir()]
    assert len(processes) == 6
    assert all(map(lives, processes))
    holder.send_signal(2 if case == "interrupted" else 9)
    holder.communicate(timeout=30)
    assert holder.returncode == (5 if case == "interrupted" else -9)
    assert_end(processes)


def test_episodes_beyond_the_workers_are_queued_until_others_end():
    with hosting("Hostile", workers=2) as host:
        assert host.queued == 0
        for episode in range(5):
            host.begin(episode, {}, 0)
        assert host.queued == 3
        first = []
        while len(first) < 2:
            first += [answer.episode for answer in host.answers(30.0)]
        assert sorted(first) == [0, 1]
        assert host.queued == 3
        host.end(0)
        assert host.queued == 2
        assert _answered(host).episode == 2


def _answered(host):
    (answer,) = host.answers(30.0)
    return answer


@pytest.mark.gate
def test_a_long_answer_that_is_ready_at_once_is_in_time_however_late_the_caller_looks():
    with hosting("Hostile", workers=3, limit_secs=1.0) as host:
        begun(host, 1, 2, 3)
        for episode, characters in ((1, 2_000_000), (2, 30_000_000), (3, 150_000)):
            host.step(episode, Reply(f"say {characters}"))
        time.sleep(3.0)  # As while a chunk is decoded.
        found = next_answers(host, 3)
        assert [len(text_of(found[episode])) for episode in (1, 2, 3)] == [
            2_000_000,
            30_000_000,
            150_000,
        ]


@pytest.mark.gate
def test_a_long_request_goes_out_while_nobody_looks():
    with hosting("Counting(start=1)", workers=1, limit_secs=1.0) as host:
        begun(host, 1, turns=9)
        host.step(1, Reply("ä" * 8_000_000))
        time.sleep(3.0)
        assert len(text_of(next_answers(host)[1])) == 8_000_002


def test_an_answer_that_never_ends_is_late_all_the_same():
    with hosting("Hostile", workers=1, limit_secs=0.6) as host:
        begun(host, 1)
        failure = stepped(host, 1, "half a frame")
        assert failure.kind == "time-out"
        assert "the answer to step took longer than 0.6 s to arrive" in failure.why
