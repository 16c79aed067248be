"""Samplers in processes of their own give the results of a server without them."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rl_sync.addons.tinker import adapter_passes, serve_tinker
from rl_sync.addons.tinker.sampler_pool import SamplerLimits, SamplersLostError
from rl_sync.launcher.command import Arguments
from rl_sync.settings.records import ConfigError
from tests.addons.tinker.conftest import BASE, NAME, sampling, serving
from tests.processes import lives

tinker = pytest.importorskip(
    "tinker", reason="tinker is not installed: `pip install tinker==0.38.0`"
)
types = tinker.types
pytestmark = pytest.mark.gate
TOKENS = [5, 17, 40, 8, 33, 21, 60, 12]
LIMIT_SECS = 240
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module", name="pool")
def _pool(policy, tmp_path_factory):
    with sampling(policy, tmp_path_factory.mktemp("pool"), 2) as pool:
        yield pool


@pytest.fixture(scope="module", name="pooled")
def _pooled(policy, pool, tmp_path_factory):
    with serving(policy, tmp_path_factory.mktemp("pooled"), pool=pool) as pooled:
        yield pooled


@contextlib.contextmanager
def connected(served):
    client = tinker.ServiceClient(base_url=served.address, api_key="tml-any")
    yield client
    client.close("success").result(LIMIT_SECS)


def datum():
    return types.Datum(
        model_input=types.ModelInput.from_ints(TOKENS[:-1]),
        loss_fn_inputs={"target_tokens": types.TensorData(data=TOKENS[1:], dtype="int64")},
    )


def trained(client):
    """A model after a step, the same of each server."""
    model = client.create_lora_training_client(NAME, rank=4, seed=1, train_unembed=False)
    model = model.result(LIMIT_SECS)
    model.forward_backward([datum()], "cross_entropy")
    model.optim_step(types.AdamParams(learning_rate=2e-2)).result(LIMIT_SECS)
    return model


PROMPT = types.ModelInput.from_ints(TOKENS)
CHOICES = (
    types.SamplingParams(max_tokens=6, seed=3, stop=[]),
    types.SamplingParams(max_tokens=4, seed=1 << 40, temperature=0, stop=[]),
)


def drawn(client):
    """All that a client is told of completions: tokens, log-probabilities and ends."""
    model = trained(client)
    saved = model.save_weights_for_sampler("one").result(LIMIT_SECS).path
    samplers = [
        model.save_weights_and_get_sampling_client().result(LIMIT_SECS),
        client.create_sampling_client(model_path=saved).result(LIMIT_SECS),
        client.create_sampling_client(base_model=NAME).result(LIMIT_SECS),
    ]
    asked = [
        one.sample(PROMPT, 3, choice, include_prompt_logprobs=True)
        for one in samplers
        for choice in CHOICES
    ]
    found = [future.result(LIMIT_SECS) for future in asked]
    scored = [one.compute_logprobs(PROMPT).result(LIMIT_SECS) for one in samplers]
    sequences = [
        [(each.tokens, each.logprobs, each.stop_reason) for each in one.sequences] for one in found
    ]
    return sequences, [one.prompt_logprobs for one in found], scored


def test_all_that_clients_are_told_is_that_of_a_server_without_samplers(served, pooled, pool):
    told = []
    for server in (served, pooled):
        with connected(server) as client:
            told.append(drawn(client))
    assert told[0] == told[1]
    # The step has changed what is drawn, and both samplers had a part.
    sequences, prompt_logprobs, _ = told[0]
    assert sequences[0] != sequences[2 * len(CHOICES)]
    assert prompt_logprobs[0] != prompt_logprobs[2 * len(CHOICES)]
    assert all(one.held for one in pool._samplers)


def records_of(served, *kinds):
    """Begin and end of each call of some kinds, by the server's records."""
    lines = (served.root / "calls.jsonl").read_text().splitlines()
    records = [one for one in map(json.loads, lines) if one["call"] in kinds]
    return [(one["time"] - one["secs"], one["time"]) for one in records]


def awaited(condition, what):
    deadline = time.monotonic() + LIMIT_SECS
    while not condition():
        assert time.monotonic() < deadline, f"{what} within {LIMIT_SECS} s"
        time.sleep(0.01)


def test_a_request_is_sampled_while_a_pass_is_computed(pooled, monkeypatch):
    begun, sampled = threading.Event(), threading.Event()
    computes = adapter_passes.AdapterPasses.run

    def held(*given, **more):
        begun.set()
        assert sampled.wait(LIMIT_SECS)
        return computes(*given, **more)

    with connected(pooled) as client:
        model = trained(client)
        sampler = model.save_weights_and_get_sampling_client().result(LIMIT_SECS)
        monkeypatch.setattr(adapter_passes.AdapterPasses, "run", held)
        passed = model.forward_backward([datum()], "cross_entropy")
        assert begun.wait(LIMIT_SECS)
        sampler.sample(PROMPT, 2, CHOICES[0]).result(LIMIT_SECS)
        sampled.set()
        passed.result(LIMIT_SECS)
    (begin, end), (first, last) = (
        records_of(pooled, kind)[-1] for kind in ("forward_backward", "sample")
    )
    assert begin < first < last < end


def test_a_model_is_trained_while_a_request_is_sampled(pooled, pool):
    processes = [*pool._supervisor.groups().values()]
    with connected(pooled) as client:
        model = trained(client)
        sampler = model.save_weights_and_get_sampling_client().result(LIMIT_SECS)
        for pid in processes:
            os.kill(pid, signal.SIGSTOP)
        try:
            asked = sampler.sample(PROMPT, 2, types.SamplingParams(max_tokens=80, stop=[]))
            awaited(lambda: any(one.unfinished for one in pool._samplers), "a request must arrive")
            for _ in range(3):
                model.forward_backward([datum()], "cross_entropy")
                model.optim_step(types.AdamParams(learning_rate=1e-3)).result(LIMIT_SECS)
        finally:
            for pid in processes:
                os.kill(pid, signal.SIGCONT)
        assert len(asked.result(LIMIT_SECS).sequences[0].tokens) == 80
    begin, end = records_of(pooled, "sample")[-1]
    calls = records_of(pooled, "forward_backward", "optim_step")[-6:]
    assert all(begin < first < last < end for first, last in calls)


def test_a_request_outlives_its_sampler_and_the_server_ends_after_too_many_deaths(
    policy, served, tmp_path
):
    choice = types.SamplingParams(max_tokens=80, seed=5, stop=[])
    with connected(served) as client:
        base = client.create_sampling_client(base_model=NAME).result(LIMIT_SECS)
        expected = base.sample(PROMPT, 2, choice).result(LIMIT_SECS).sequences
    with contextlib.ExitStack() as running:
        limits = SamplerLimits(restarts=1)
        pool = running.enter_context(sampling(policy, tmp_path, 1, limits))
        lone = running.enter_context(serving(policy, tmp_path, pool=pool))
        (sampler,) = pool._samplers

        def killed():
            """Kills the sampler once it has a request, which it cannot have finished."""
            awaited(lambda: sampler.unfinished and not sampler.unsent, "a request must be fetched")
            (pid,) = pool._supervisor.groups().values()
            os.kill(pid, signal.SIGKILL)
            return pid

        client = tinker.ServiceClient(base_url=lone.address, api_key="tml-any")
        base = client.create_sampling_client(base_model=NAME).result(LIMIT_SECS)
        asked = base.sample(PROMPT, 2, choice)
        first = killed()
        again = asked.result(LIMIT_SECS).sequences
        assert [(one.tokens, one.logprobs) for one in again] == [
            (one.tokens, one.logprobs) for one in expected
        ]
        assert [*pool._supervisor.groups().values()] != [first]
        os.kill(*pool._supervisor.groups().values(), signal.SIGSTOP)
        asked = base.sample(PROMPT, 2, choice)
        awaited(lambda: sampler.unfinished, "a request must arrive")
        os.kill(*pool._supervisor.groups().values(), signal.SIGKILL)
        awaited(lambda: lone.failures, "the server must end")
        assert "No sampler is left: sampler1 was killed by SIGKILL" in str(lone.failures[0])
        records = (tmp_path / "calls.jsonl").read_text().splitlines()
        assert "No sampler is left" in json.loads(records[-1])["error"]


@pytest.mark.parametrize(
    ("limits", "changed", "why"),
    [
        (SamplerLimits(), {"digest": "0" * 16}, "has changed: the digest of its parameters is"),
        (SamplerLimits(), {"base": "/nowhere"}, "/nowhere"),
        (SamplerLimits(start_secs=0.5), {}, "sampler1 has not read the base model for 0.5 s"),
    ],
)
def test_a_sampler_that_cannot_start_is_told_in_a_line(policy, tmp_path, limits, changed, why):
    with pytest.raises(SamplersLostError) as raised, contextlib.ExitStack() as running:
        running.enter_context(sampling(policy, tmp_path, 1, limits, **changed))
    assert why in str(raised.value)
    assert "\n" not in str(raised.value)
    assert str(tmp_path / "samplers" / "sampler1.log") in str(raised.value)


@contextlib.contextmanager
def launched(tmp_path, samplers, program=("-m", "launcher")):
    command = [sys.executable, *program, "tinker", f"--model={BASE}", f"--out={tmp_path}"]
    command += [f"--samplers={samplers}"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    given = {**os.environ, "CUDA_VISIBLE_DEVICES": "7,5,3", "JAX_PLATFORMS": "cpu"}
    with subprocess.Popen(command, cwd=ROOT, env=given, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def children(process):
    tasks = Path(f"/proc/{process.pid}/task").glob("*/children")
    return [int(pid) for task in tasks for pid in task.read_text().split()]


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGTERM, marks=pytest.mark.nightly),
        signal.SIGKILL,
        pytest.param(signal.SIGINT, marks=pytest.mark.nightly),
    ],
)
def test_samplers_end_with_their_server_however_it_ends(tmp_path, number):
    with launched(tmp_path, 2) as process:
        while not process.stdout.readline().startswith("Serving at"):
            assert process.poll() is None, process.stderr.read()
        samplers = children(process)
        assert len(samplers) == 2
        assert all(map(lives, samplers))
        environments = [Path(f"/proc/{pid}/environ").read_text().split("\0") for pid in samplers]
        assert [
            next(one for one in environment if one.startswith("CUDA_VISIBLE_DEVICES="))
            for environment in environments
        ] == ["CUDA_VISIBLE_DEVICES=5", "CUDA_VISIBLE_DEVICES=3"]
        process.send_signal(number)
        assert process.wait(30) == (-number if number == signal.SIGKILL else 0)
        awaited(lambda: not any(map(lives, samplers)), "samplers must end")


@pytest.mark.nightly
def test_a_server_whose_samplers_cannot_start_ends_with_a_line(tmp_path):
    program = """
import sys
from rl_sync.addons.tinker import serve_tinker
from rl_sync.launcher.__main__ import main
serve_tinker.digest = lambda params: "0" * 16
sys.exit(main(sys.argv[1:]))
"""
    with launched(tmp_path, 1, ("-c", program)) as process:
        out, errors = process.communicate(timeout=LIMIT_SECS)
    assert process.returncode == 2
    assert re.fullmatch(r"error: The server cannot start: sampler1 ended .*changed.*\n", errors)
    assert out == ""


def test_samplers_end_with_a_server_that_is_ended_before_it_serves(tmp_path):
    with launched(tmp_path, 1) as process:
        awaited(lambda: children(process), "a sampler must be started")
        samplers = children(process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
        awaited(lambda: not any(map(lives, samplers)), "samplers must end")


@pytest.mark.parametrize("fault", ["port", "out"])
def test_a_place_that_cannot_be_used_is_told_before_anything_is_loaded(tmp_path, fault):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        flags = {"port": port, "model": BASE, "out": tmp_path}
        expected = rf"--port={port} cannot be served at 127.0.0.1: Address already in use\. Give"
        if fault == "out":
            (tmp_path / "file").touch()
            flags |= {"out": tmp_path / "file", "port": 0}
            expected = r"--out=.*file must be a directory .*: File exists\. Give another"
        with pytest.raises(ConfigError, match=expected):
            serve_tinker.execute(Arguments("tinker", None, flags, ()))
