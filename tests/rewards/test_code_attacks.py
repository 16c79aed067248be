"""Programs that attack the code reward neither score nor escape nor hang, in any sandbox."""

import concurrent.futures
import os
import socket
import time

import pytest

from rl_sync.rewards.code import Code
from rl_sync.rewards.judgement import Completion
from rl_sync.sandbox import sandbox_choice
from rl_sync.sandbox.layer import SandboxError
from tests.rewards.attacks import PRINTS, RETURNS

pytestmark = pytest.mark.gate

LIMITS = {
    "test_secs": 2.0,
    "total_secs": 10.0,
    "memory_mib": 256,
    "output_kib": 256,
    "processes": 16,
}
EXPECTED = 73460915286
CALLS = {"tests": [{"call": "f", "args": [1], "expected": EXPECTED}]}
ASSERTS = {"tests": [f"assert f(1) == {EXPECTED}"]}
CHECK = {"tests": f"def check(candidate):\n    assert not candidate(1) != {EXPECTED}"}
SANDBOXES = [
    "auto",
    *(pytest.param(name, marks=pytest.mark.nightly) for name in sandbox_choice.LAYERS),
]


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    """Things of this machine that no program may reach."""
    folder = tmp_path_factory.mktemp("host")
    (folder / "secret").write_text("escaped")
    os.environ["RL_SYNC_SECRET"] = "escaped"
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as named,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        path = f"/tmp/rl_sync-{os.getpid()}.socket"
        for listener, address in ((named, path), (abstract, f"\0{path}")):
            listener.bind(address)
            listener.listen()
        yield {
            "SECRET": str(folder / "secret"),
            "FOLDER": str(folder),
            "PORT": server.getsockname()[1],
            "SOCKET": path,
            "PID": os.getpid(),
        }
    os.unlink(path)
    del os.environ["RL_SYNC_SECRET"]
    assert [file.name for file in folder.iterdir()] == ["secret"]


@pytest.fixture(scope="module", params=SANDBOXES)
def judgements(request, host):
    """Judges all attacks, several at a time, and returns judgements and seconds by name."""
    reward = Code(layer=request.param, **LIMITS)
    try:
        sandbox_choice.choose(request.param)
    except SandboxError as error:
        pytest.skip(str(error))

    def judge(row, program):
        started = time.monotonic()
        judgement = reward(row, Completion(f"```python\n{program}\n```"))
        return judgement, time.monotonic() - started

    facts = "".join(f"{name} = {value!r}\n" for name, value in host.items())
    prints = {"tests": [{"input": "1\n", "output": "escaped"}]}
    jobs = {name: (prints, facts + text) for name, text in PRINTS.items()}
    for kind, row in (("call", CALLS), ("assert", ASSERTS), ("check", CHECK)):
        row = {**row, "entry_point": "f"}
        # The kinds of tests differ in how results are compared, not in how they arrive.
        names = (
            RETURNS if kind == "call" else [n for n in RETURNS if "equality" in n or "lies" in n]
        )
        jobs |= {f"{name} ({kind})": (row, RETURNS[name]) for name in names}
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        futures = {name: pool.submit(judge, *job) for name, job in jobs.items()}
        return {name: future.result() for name, future in futures.items()}


def test_an_attack_neither_scores_nor_hangs(subtests, judgements):
    for name, (judgement, secs) in judgements.items():
        with subtests.test(name):
            assert judgement.is_known, judgement.why
            assert judgement.score == 0.0
            assert judgement.why
            assert secs < 25.0, judgement.why
