"""Each benchmark that documents name runs at its smallest size, and prints its table."""

import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import uv

from rl_sync.models.config import ModelConfig
from rl_sync.models.huggingface.writing import write_checkpoint
from rl_sync.models.transformer import init_params
from rl_sync.records import metric_catalog
from rl_sync.workdir import Workdir
from tests.benchmarks.cases import CASES
from tests.benchmarks.printed_tables import is_line, tables_of
from tests.runs.conftest import quickly, session_directory

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(660)]

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_SECS, TAIL = 600.0, 3000
TINY = ModelConfig(
    vocab_size=512,
    embed_dim=32,
    num_layers=1,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    mlp_dim=64,
    max_length=512,
)


def _is_run(*command):
    """Says whether a command exists and succeeds."""
    try:
        return not subprocess.run(command, capture_output=True, timeout=60).returncode
    except OSError:
        return False


def _has_server():
    return _has_environment(ROOT / "rl_sync" / "replay" / "reverb_server.py")


def _has_environment(script):
    return _is_run(uv.find_uv_bin(), "sync", "--offline", "--script", str(script))


def _has_namespaces():
    return os.geteuid() == 0 and _is_run("unshare", "--net", "--mount", "true")


MISSING = {
    "Reverb": (_has_server, "the environment of the Reverb server is not in uv's cache"),
    "TRL": (
        lambda: _has_environment(ROOT / "benchmarks" / "peers" / "trl_peer.py"),
        "the environment of TRL is not in uv's cache",
    ),
    "gguf": (lambda: importlib.util.find_spec("gguf"), "gguf is not installed"),
    "sys.monitoring": (lambda: hasattr(sys, "monitoring"), "sys.monitoring takes Python 3.12"),
    "wasmtime": (lambda: importlib.util.find_spec("wasmtime"), "wasmtime is not installed"),
    "shaped networks": (
        lambda: _has_namespaces() and _is_run("ip", "-V") and _is_run("tc", "-V"),
        "shaped networks take root, network namespaces, and ip and tc of iproute2",
    ),
    "long lines": (
        lambda: _has_namespaces() and _is_run("ip", "-V") and Path("/dev/net/tun").exists(),
        "lines between machines take root, network namespaces, ip, and TUN devices",
    ),
}
"""What cases need: a function that says whether it is here, and the reason to skip."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Writes a checkpoint of random weights, with the tests' tokenizer."""
    path = tmp_path_factory.mktemp("tiny") / "model"
    write_checkpoint(path, TINY, init_params(TINY, jax.random.key(0)))
    shutil.copytree(ROOT / "tests" / "data" / "tokenizer", path, dirs_exist_ok=True)
    return path


def _write_run(directory):
    """Writes the metrics of a run that sent what changed."""
    lines = [
        {
            "step": step,
            "phase": metric_catalog.RL,
            "time": float(step),
            "weights/changed_share": share / 100,
            "weights/delta_bytes": 5.0 * share,
            "weights/dense_bytes": 1000.0,
        }
        for step, share in ((1, 3.0), (2, 2.0), (3, 1.0))
    ]
    assert all(metric_catalog.knows(metric_catalog.RL, name) for line in lines for name in line)
    path = Workdir(directory).metrics
    path.parent.mkdir(parents=True)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def _write_gguf(path):
    """Writes a llama of one layer, and a tokenizer of a few bytes."""
    import gguf

    texts = ["<|endoftext|>", *"0123456789", "00"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(8)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(texts)
    writer.add_token_types([3] + [1] * (len(texts) - 1))
    writer.add_token_merges(["0 0"])
    for add in (writer.add_bos_token_id, writer.add_eos_token_id, writer.add_pad_token_id):
        add(0)
    writer.add_chat_template("{{ messages[0].content }}")
    shapes = {
        "token_embd": (len(texts), 32), "output_norm": (32,),
        "blk.0.attn_q": (32, 32), "blk.0.attn_k": (16, 32), "blk.0.attn_v": (16, 32),
        "blk.0.attn_output": (32, 32), "blk.0.attn_norm": (32,), "blk.0.ffn_norm": (32,),
        "blk.0.ffn_gate": (64, 32), "blk.0.ffn_up": (64, 32), "blk.0.ffn_down": (32, 64),
    }  # fmt: skip
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", np.ones(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _printed(command, variables):
    """Runs a command; returns what it printed.

    Peers whose environments are not in uv's cache are left out: nothing is downloaded.
    """
    environment = {
        **os.environ,
        **variables,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "UV_OFFLINE": "1",
        "HF_HUB_OFFLINE": "1",
    }
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=DEADLINE_SECS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, errors = process.communicate()
        pytest.fail(f"not over after {DEADLINE_SECS:.0f} s:\n{output[-TAIL:]}\n{errors[-TAIL:]}")
    assert process.returncode == 0, f"{output[-TAIL:]}\n{errors[-TAIL:]}"
    return output


def _name(case):
    """Returns the name of a case: its script, and its first flag where there are several forms."""
    form = re.search(r"--(calls|paced|relays|simulated)", case.command)
    script = re.search(r"benchmarks/([\w/]+)\.py", case.command)[1]
    return f"{script} {form[1]}" if form else script


@pytest.mark.parametrize("case", CASES, ids=_name)
def test_a_benchmark_prints_its_table(case, model, tmp_path):
    if case.needs:
        is_here, reason = MISSING[case.needs]
        if not is_here():
            pytest.skip(reason)
    places = {"out": tmp_path, "model": model, "run": tmp_path / "run", "gguf": tmp_path / "gguf"}
    if "{run}" in case.command:
        _write_run(places["run"])
    if "{gguf}" in case.command:
        _write_gguf(places["gguf"])
    shutil.copy(ROOT / "docs" / "choosing.md", tmp_path)
    command = shlex.split(case.command.format(**places))
    output = _printed(command, quickly(session_directory(tmp_path.parent)))
    text = (tmp_path / case.document).read_text() if case.document else output
    found = tables_of(text)
    assert len(found) == len(case.tables), output[-TAIL:]
    for expected, (head, rows) in zip(case.tables, found, strict=True):
        faults = expected.faults(head, rows)
        assert not faults, "\n".join([*faults, output[-TAIL:]])
    for template in case.lines:
        assert any(is_line(template, line) for line in output.splitlines()), (
            f"no line is {template!r} in:\n{output[-TAIL:]}"
        )
