"""Python as a tool, in a real sandbox."""

from __future__ import annotations

import socket

import pytest

from rl_sync.environments import validation
from rl_sync.environments.environment_catalog import reference_of
from rl_sync.environments.hosts.episode_limits import HostLimits
from rl_sync.environments.hosts.process_host import ProcessHost
from rl_sync.environments.interface import Message, Outcome, Reply, ToolCall, Turn
from rl_sync.environments.python import Python, python_tool
from rl_sync.environments.tools import Toolbox
from rl_sync.sandbox import sandbox_choice
from rl_sync.sandbox.interpreter import Interpreter
from rl_sync.sandbox.layer import SandboxError
from rl_sync.sandbox.program_process import START_SECS

MEMORY_MIB = 128
CHARACTERS = 600


def answer(code, **limits):
    """Returns the text that a call of Python gets."""
    interpreter = Interpreter(**{"seconds": 10.0, "memory_mib": MEMORY_MIB, **limits})
    tool = python_tool(interpreter, CHARACTERS)
    return Toolbox([tool]).answer(ToolCall("python", {"code": code})).content


def calls(*codes):
    return Reply("…", tuple(ToolCall("python", {"code": code}) for code in codes))


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("print('a')\n'é'", "a\n'é'"),
        ("x = 20\nx + 22", "42"),
        ("x = 3", "(no output)"),
        ("", "(no output)"),
        ("None", "(no output)"),
        ("__name__", "'__main__'"),
        ("import sys; sys.exit(3)", "Error: exit code 3."),
        ("import sys; sys.exit('enough')", "enough"),
        ("import os; os.kill(os.getpid(), 11)", "Error: signal 11 ended it."),
        ("1 +", '  File "<code>", line 1\n    1 +\n       ^\nSyntaxError: invalid syntax'),
        ("input()", "EOF"),
    ],
)
def test_output_the_last_value_and_errors_are_the_answer(code, text):
    found = answer(code)
    assert found == text or (text == "EOF" and found.endswith("EOFError: EOF when reading a line"))


def test_an_exception_follows_what_was_printed_with_a_traceback_of_the_code_alone():
    found = answer("print(1)\ndef half(x):\n    return x / 0\nhalf(2)")
    assert found.startswith('1\nTraceback (most recent call last):\n  File "<code>", line 4')
    assert "    return x / 0\n" in found
    assert found.endswith("ZeroDivisionError: division by zero")
    assert found.count("File") == 2


def test_what_was_printed_before_the_time_limit_is_kept():
    code = "import time\nprint('begun')\ntime.sleep(1.2)\nprint('over')"
    found = answer(code, seconds=0.5)
    assert found == "begun\nError: it took longer than 0.5 s."


def test_memory_beyond_the_limit_is_refused():
    assert answer(f"len(bytearray({MEMORY_MIB // 2} << 20))") == str(MEMORY_MIB // 2 << 20)
    assert answer(f"len(bytearray({MEMORY_MIB} << 20))").endswith("MemoryError")


def test_the_network_is_unreachable():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        socket.create_connection(("127.0.0.1", port)).close()
        code = f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 2)"
        assert "Error: " in answer(code).splitlines()[-1]


def test_files_outside_cannot_be_written_and_nothing_is_kept(tmp_path):
    target = tmp_path / "file"
    target.write_text("ours")
    assert "Error: " in answer(f"open({str(target)!r}, 'w').write('theirs')").splitlines()[-1]
    assert target.read_text() == "ours"
    assert answer("y = 1\nopen('/tmp/kept', 'w').write('x')") == "1"
    assert "No such file" in answer("open('/tmp/kept')")
    assert "NameError: name 'y' is not defined" in answer("y")


def test_a_long_answer_keeps_its_beginning_and_its_end():
    found = answer("print('a' * 3000 + 'b' * 3000)")
    assert len(found) <= CHARACTERS
    head, note, tail = found.splitlines()
    assert (set(head), set(tail)) == ({"a"}, {"b"})
    assert note == f"[{6000 - len(head) - len(tail)} characters left out]"


def test_a_flood_is_stopped():
    found = answer("while True: print('x' * 999)")
    assert len(found) <= CHARACTERS
    assert found.endswith("\nError: it wrote more than 1 MiB.")


def test_packages_are_there_if_they_are_asked_for():
    assert "No module named 'numpy'" in answer("import numpy")
    found = answer("import numpy; int(numpy.arange(4).sum())", packages=True, memory_mib=1024)
    assert found == "6"


def test_wrong_limits_are_refused():
    for options, message in (
        ({"seconds": 0}, "seconds of an interpreter must be positive, not 0"),
        ({"memory_mib": -1}, "memory_mib of an interpreter must be positive"),
        ({"layer": "bublewrap"}, "did you mean 'bubblewrap'"),
        ({"characters": 9}, "characters=9 of Python's answers must be at least 100"),
        ({"seconds": 30}, "must be at most reply_secs=20; raise reply_secs, and environment.lim"),
    ):
        with pytest.raises(ValueError, match=message):
            Python.check(**options)
    assert python_tool(Interpreter(seconds=2.0)).call_secs > 2.0 + START_SECS


def test_a_reply_without_a_call_is_left_to_the_tasks_reward():
    environment = Python()
    turn = environment.reset({"prompt": "7 * 6?"}, 0)
    assert turn == Turn((Message("user", "7 * 6?"),), tools=environment.toolbox.schemas)
    turn = environment.step(calls("7 * 6", "7 *"))
    assert turn.messages[0].content == "42"
    assert environment.step(Reply("", malformed=("a",))).messages == (Message("user", "Error: a"),)
    outcome = environment.step(Reply("42"))
    assert validation.check_answer(environment, outcome) is outcome
    assert (outcome.rewards, outcome.metrics) == ({}, {"calls": 2, "malformed": 1})
    assert environment.reset({"prompt": "?"}, 0).messages
    assert environment.step(Reply("")).metrics == {"calls": 0, "malformed": 0}


def no_sandbox(monkeypatch):
    monkeypatch.setattr(sandbox_choice, "_choose", lambda kind: (None, "None is installed."))


def test_without_a_sandbox_a_run_is_refused_with_the_way_out(monkeypatch):
    no_sandbox(monkeypatch)
    with pytest.raises(ValueError, match=r"No sandbox .* works.*None is installed.*bubblewrap"):
        Python.check()


def test_a_failure_of_the_sandbox_is_no_answer_of_the_tool(monkeypatch):
    environment = Python()
    environment.reset({"prompt": "?"}, 0)
    no_sandbox(monkeypatch)
    with pytest.raises(SandboxError, match="No sandbox"):
        environment.step(calls("1"))


@pytest.mark.gate
def test_code_runs_in_a_worker_within_its_limits():
    limits = HostLimits(workers=1, memory_bytes=1 << 30)
    with ProcessHost(reference_of("python(seconds=2.0, reply_secs=2.5)"), limits) as host:

        def heard():
            ((_, result),) = host.answers(60.0)
            return result

        for episode in (1, 2):  # A worker is used again.
            host.begin(episode, {"prompt": "?"}, 0)
            assert heard().tools[0]["function"]["name"] == "python"
            host.step(episode, calls("6 * 7", "open('/etc/passwd')"))
            texts = [message.content for message in heard().messages]
            assert texts[0] == "42"
            assert "Error: " in texts[1].splitlines()[-1]
            host.step(episode, Reply("42"))
            assert isinstance(heard(), Outcome)
        host.begin(3, {"prompt": "?"}, 0)
        heard()
        host.step(3, calls(*["while True: pass"] * 4))
        texts = [message.content for message in heard().messages]
        assert all(text.startswith("Error: ") for text in texts)
        assert texts[-1] == "Error: python was not called: no time was left for this reply's calls."
