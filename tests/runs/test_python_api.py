"""The interface from Python: the examples of docs/python.md, and what goes wrong."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import rl_sync
from rl_sync.roles.policy_export import export
from tests.runs.conftest import CONFIG, EMBEDDED, ROOT, flags

HUB_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
QUICK = {"replay.backend": "embedded", "sync.mode": "asynchronous", "evaluation.every_steps": 0}


@pytest.fixture(scope="module")
def finished(runs):
    return runs.get(*flags("asynchronous"), EMBEDDED)


@pytest.fixture
def quickly_compiled(runs, monkeypatch):
    for name, value in runs.variables.items():
        monkeypatch.setenv(name, value)


@pytest.mark.nightly
@pytest.mark.usefixtures("quickly_compiled")
def test_the_examples_of_the_page_run(finished, tmp_path, monkeypatch, capsys):
    export(Path(finished.workdir), tmp_path / "checkpoint", None, None)
    page = (ROOT / "docs" / "python.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.S)
    assert len(blocks) == 7
    source = "\n".join(blocks).replace("configs/arithmetic.py", str(ROOT / CONFIG))
    source = source.replace(HUB_NAME, str(tmp_path / "checkpoint"))
    source = source.replace('{"trainer.steps": 20}', str({"trainer.steps": 2, **QUICK}))
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)  # The config imports tests.
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(source, "docs/python.md", "exec"), names)
    result = names["result"]
    assert [line["step"] for line in result.metrics()] == [1, 2]
    assert set(result.accuracy) == {0, 2}
    assert Path(result.workdir).parent == tmp_path / "runs"
    assert "Held-out accuracy after RL" in capsys.readouterr().out
    assert np.isfinite(names["loss"]).all()


@pytest.mark.nightly
def test_a_policy_generates_what_its_engine_does_and_the_same_again(finished):
    policy = rl_sync.load(str(finished.workdir))
    assert policy.step == finished.settings.trainer.steps
    one, other = (
        policy.generate(["71+80=", "80+90="], completions=3, max_new_tokens=4, seed=5)
        for _ in range(2)
    )
    assert [[c.text for c in of] for of in one] == [[c.text for c in of] for of in other]
    assert [len(of) for of in one] == [3, 3]
    ids = policy.tokenizer.encode_prompt("80+90=")
    sampling = rl_sync.Sampling(max_new_tokens=4, stop_ids=policy.tokenizer.eos_ids)
    request = rl_sync.CompletionRequest(np.array(ids, np.int32), sampling, 3, seed=(5, 1))
    [alone] = policy.engine().generate([request])
    for mine, theirs in zip(one[1], alone, strict=True):
        np.testing.assert_array_equal(mine.tokens, theirs.tokens)
    before = rl_sync.load(str(finished.workdir), step=0, dtype="bfloat16")
    assert (before.step, before.model.dtype) == (0, "bfloat16")


@pytest.mark.gate
@pytest.mark.parametrize(
    ("config", "changes", "says"),
    [
        ({"trainer": {"stepps": 3}}, None, "config.trainer.stepps is not a setting; did you mean"),
        ("configs/arithmetics.py", None, "did you mean --config=configs/arithmetic.py"),
        ({"seed": object()}, None, "not a number, text, list or dict"),
    ],
)
def test_a_mistake_raises_what_the_launcher_would_say(config, changes, says, tmp_path):
    with pytest.raises(rl_sync.ConfigError, match=re.escape(says)):
        rl_sync.train(config, changes=changes, workdir=tmp_path / "run", quiet=True)


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(rl_sync.ConfigError, match=r"holds no config.json"):
        rl_sync.open_run(tmp_path)
    with pytest.raises(rl_sync.ConfigError, match="neither a directory nor a model"):
        rl_sync.load("nobody/nothing")


def test_the_interface_is_what_it_lists_and_imports_nothing_before_it_is_used():
    assert all(getattr(rl_sync, name) is not None for name in rl_sync.__all__)
    assert set(rl_sync.__all__) <= set(dir(rl_sync))
    with pytest.raises(AttributeError, match="'trian'"):
        _ = rl_sync.trian
    loaded = "import rl_sync, sys; print([n for n in ('jax', 'numpy') if n in sys.modules])"
    run = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
