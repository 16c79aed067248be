"""Runs whose completions a server draws keep their bound and their account, whoever dies."""

import sys
import threading
import time

import pytest

from rl_sync.launcher import command_line
from rl_sync.models import lora
from rl_sync.records.metrics import read_metrics
from rl_sync.records.spans import SpanKind
from rl_sync.roles.assembly import wiring
from rl_sync.settings.config_reading import read_settings
from tests.rollout.served.vllm_double import Faults, VllmDouble
from tests.runs.conftest import (
    CONFIG,
    assert_every_token_is_accounted_for,
    assert_nothing_is_lost_or_doubled,
    assert_within_the_staleness_bound,
    flags,
)

pytestmark = pytest.mark.gate

LOCKSTEP = (
    "--config.sync.mode=custom",
    "--config.sync.interval=1",
    "--config.sync.offset=0",
    "--config.sync.pull=latest",
    "--config.sync.max_staleness=0",
)
EPISODES = (
    "--config.task.name=tests/runs/parrot.py:rows",
    "--config.environment.name=tests/runs/parrot.py:Parrot",
    "--config.environment.max_tokens=24",
    "--config.task.max_completion_tokens=3",
)
AGENT = (
    f"--config.environment.name=agent(command='{sys.executable} tests/runs/agent.py')",
    "--config.environment.max_tokens=48",
    "--config.task.max_completion_tokens=3",
    "--config.evaluation.problems=4",
    "--config.trainer.groups_per_step=4",
)
RUNS = {
    "asynchronous": (*flags("asynchronous"), "--config.sync.max_staleness=2"),
    "streaming": (*flags("asynchronous", streaming=True), "--config.sync.max_staleness=4"),
    "swapping in flight": (
        *flags("asynchronous", swap="in_flight"),
        "--config.sync.max_staleness=3",
    ),
    "in lockstep": LOCKSTEP,
    "differences": (*flags("asynchronous"), "--config.explorer.engine_transfer=delta"),
    "two explorers": flags("multi_explorer", count=2),
    "episodes": (*flags("asynchronous"), *EPISODES),
    "an agent": (*flags("asynchronous", steps=4), *AGENT),
}


@pytest.fixture
def servers():
    """Returns a function that starts servers for runs with these flags."""
    begun = []

    def start(*given, count=1, **faults):
        places = ",".join(f"vllm:http://127.0.0.1:{1 + number}" for number in range(count))
        words = [f"--config={CONFIG}", "--config.workdir=unused", *given]
        words.append(f"--config.explorer.engine={places}")
        settings = read_settings(command_line.parse(words).config.to_dict())
        model = lora.merged_config(wiring.explorer_model(settings, wiring.load_task(settings)))
        begun.extend(VllmDouble(model, Faults(**faults)) for _ in range(count))
        return begun[-count:]

    yield start
    for one in begun:
        one.close()


def _engines(servers):
    return "--config.explorer.engine=" + ",".join(f"vllm:{one.url}" for one in servers)


def _assert_a_sound_run(run):
    assert_nothing_is_lost_or_doubled(run)
    assert_within_the_staleness_bound(run)
    assert_every_token_is_accounted_for(run)


@pytest.mark.samples(gate=("asynchronous", "differences", "swapping in flight", "two explorers"))
@pytest.mark.parametrize("name", RUNS)
def test_runs_of_each_kind_keep_their_bound_and_their_account(memory_runs, servers, name):
    begun = servers(*RUNS[name], count=2 if name == "two explorers" else 1)
    run = memory_runs(*RUNS[name], _engines(begun))
    _assert_a_sound_run(run)
    for server in begun:
        assert any(one.get("stream") for one in server.sent)
        assert len(server.labels) > 2, "later versions were installed"
    told = read_metrics(run.workdir, "rl")
    installs = sum(line.get("weights/engine_installs", 0.0) for line in told)
    # What was installed after the last trained group was drawn is told by no line.
    assert 1 < installs < sum(len(server.labels) for server in begun)
    spent = sum(line.get("weights/engine_install_secs", 0.0) for line in told)
    assert 0.0 < sum(line.get("weights/engine_paused_secs", 0.0) for line in told) <= spent


def test_a_server_that_dies_and_comes_back_costs_tokens_but_no_group(memory_runs, servers):
    (server,) = servers(*RUNS["asynchronous"], token_secs=0.01)
    dead = threading.Event()

    def deaths():
        for _ in range(2):
            drawn = len(server.sent)
            while len(server.sent) < drawn + 20:
                time.sleep(0.01)
            server.die()
            time.sleep(0.5)
            server.restart()
        dead.set()

    threading.Thread(target=deaths, daemon=True).start()
    run = memory_runs(*RUNS["asynchronous"], _engines([server]), "--config.name=deaths")
    assert dead.is_set()
    _assert_a_sound_run(run)
    assert len(run.spans(SpanKind.ROLLOUT, role="explorer")) >= 3
