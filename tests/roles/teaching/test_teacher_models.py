"""Teachers from checkpoints and runs: what is loaded, and which are refused before the run."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from rl_sync.models.huggingface.loading import load_params
from rl_sync.models.huggingface.reading import load_config
from rl_sync.models.placement import abstract_params
from rl_sync.roles.assembly import wiring
from rl_sync.roles.teaching.teacher_calls import AskTeacher, TaughtRows, TeacherDescription
from rl_sync.roles.teaching.teacher_models import load_teachers, teacher_models
from rl_sync.roles.teaching.teacher_server import TeacherModel
from rl_sync.settings.records import ConfigError
from rl_sync.tasks.tokenizers.vocabularies import digest_of
from tests.models.meshes import layout
from tests.settings.changed import settings_with

MODELS = Path(__file__).resolve().parents[2] / "data" / "models"
QWEN = str(MODELS / "qwen2")
OF_CHECKPOINT = {
    "algorithm__name": "on_policy_distillation",
    "tokenizer__path": QWEN,
    "tokenizer__chat": "no",
    "task__name": "jsonl",
    "sft__steps": 0,
}


def _with(tmp_path, **fields):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        "".join(json.dumps({"prompt": "a" * n, "answer": "b"}) + "\n" for n in range(1, 9))
    )
    here = {"task__jsonl__path": str(rows), "task__jsonl__held_out_fraction": 0.5}
    settings = settings_with(**OF_CHECKPOINT | here | fields)
    return settings, wiring.load_task(settings)


def _changed(tmp_path, file, **values):
    """Copies the checkpoint, and changes some values of one of its files."""
    shutil.copytree(QWEN, tmp_path / "changed")
    path = tmp_path / "changed" / file
    content = json.loads(path.read_text()) | values
    path.write_text(json.dumps(content))
    return str(tmp_path / "changed")


def test_a_checkpoint_is_loaded_in_the_dtype_of_the_computation(tmp_path):
    settings, task = _with(tmp_path, teacher__path=QWEN, trainer__compute_dtype="bfloat16")
    (model,), policy = teacher_models(settings, task), wiring.trainer_model(settings, task)
    assert (model.vocab_size, model.dtype) == (policy.vocab_size, "bfloat16")
    (params,) = load_teachers(settings, task, layout())
    stored = load_config(Path(QWEN))
    expected = load_params(Path(QWEN), stored, abstract_params(stored, layout()))
    assert model.vocab_size < stored.vocab_size or model.vocab_size == 96
    known = np.asarray(expected["embedding"])[: model.vocab_size].astype("bfloat16")
    np.testing.assert_array_equal(params["embedding"], known)
    gates = (tree["blocks"] for tree in (params, expected))
    for ours, theirs in zip(*map(jax.tree.leaves, gates), strict=True):
        np.testing.assert_array_equal(ours, np.asarray(theirs).astype(ours.dtype))


@pytest.mark.gate
def test_a_checkpoint_is_served_with_the_policys_vocabulary(tmp_path):
    settings, task = _with(tmp_path, teacher__path=QWEN)
    teacher = TeacherModel.loaded(settings, task, layout())
    policy = wiring.trainer_model(settings, task)
    assert teacher.description == TeacherDescription(
        QWEN, digest_of(task.tokenizer), policy.vocab_size, task.row_tokens
    )
    tokens = np.array([[3, 4, 5]], np.int32)
    rows = TaughtRows(tokens, tokens > 3, None, None)
    call = AskTeacher(teacher.description.vocabulary, [rows], 1000, 1.0, 1.0)
    (answer,) = teacher.answers(call)
    assert answer.ids.shape == (2, policy.vocab_size)
    np.testing.assert_allclose(np.exp(answer.logprobs).sum(axis=-1), 1, rtol=1e-4)


REFUSED = {
    "no model": (lambda _: "no/such/model", "'no/such/model' is neither"),
    "another vocabulary": (
        lambda at: _with_another_token(at),
        "has another vocabulary than the policy: token 40 is 'other' there, not ",
    ),
    "no tokenizer": (lambda _: str(MODELS / "qwen2_score"), "copy tokenizer.json into it"),
    "a reward model": (lambda at: _with_tokenizer(at, "qwen2_score"), "is a reward model"),
    "short rows": (
        lambda at: _changed(at, "config.json", max_position_embeddings=4),
        "made for at most 4 tokens, but the task's rows have",
    ),
}


def _with_tokenizer(tmp_path, name):
    shutil.copytree(MODELS / name, tmp_path / name)
    shutil.copy(Path(QWEN) / "tokenizer.json", tmp_path / name)
    return str(tmp_path / name)


def _with_another_token(tmp_path):
    path = _changed(tmp_path, "config.json")
    file = Path(path) / "tokenizer.json"
    content = json.loads(file.read_text())
    vocab = content["model"]["vocab"]
    content["model"]["vocab"] = {"other" if at == 40 else one: at for one, at in vocab.items()}
    file.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize("name", REFUSED)
def test_a_teacher_that_cannot_teach_is_refused_in_one_line(tmp_path, name):
    path, told = REFUSED[name]
    settings, task = _with(tmp_path, teacher__path=path(tmp_path))
    with pytest.raises(ConfigError, match=told) as refused:
        teacher_models(settings, task)
    assert "teacher.path" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_step_of_a_checkpoint_is_refused(tmp_path):
    settings, task = _with(tmp_path, teacher__path=QWEN, teacher__step="3")
    with pytest.raises(ConfigError, match=r"teacher.step=3 names a snapshot.*leave it out"):
        teacher_models(settings, task)


def _run(tmp_path, **fields):
    """Makes the work directory of a run that has not saved anything."""
    (tmp_path / "run").mkdir()
    resolved = settings_with(**fields).resolved()
    (tmp_path / "run" / "config.json").write_text(json.dumps(resolved))
    return str(tmp_path / "run")


@pytest.mark.nightly
def test_a_run_with_other_characters_is_refused(tmp_path):
    path = _run(tmp_path, task__name="school", sft__steps=0)
    settings = settings_with(
        algorithm__name="on_policy_distillation", teacher__path=path, teacher__step="0"
    )
    with pytest.raises(ConfigError, match="has another vocabulary than the policy: token "):
        teacher_models(settings, wiring.load_task(settings))


def test_a_run_from_a_checkpoint_teaches_longer_rows_than_its_own(tmp_path):
    fields = {"model__path": QWEN, "algorithm__name": "grpo", "task__max_prompt_tokens": 4}
    settings, short = _with(tmp_path, **fields)
    path = tmp_path / "run"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(settings.resolved()))
    settings, task = _with(tmp_path, teacher__path=str(path), teacher__step="0")
    assert short.row_tokens < task.row_tokens
    (model,) = teacher_models(settings, task)
    assert model.max_length == task.row_tokens


def test_a_run_without_snapshots_is_refused_unless_its_start_teaches(tmp_path):
    path = _run(tmp_path, seed=3)
    fields = {"algorithm__name": "on_policy_distillation", "teacher__path": path}
    settings = settings_with(**fields)
    task = wiring.load_task(settings)
    with pytest.raises(ConfigError, match=r"teacher.step of teacher.*has no snapshot yet"):
        teacher_models(settings, task)
    (model,) = teacher_models(settings_with(**fields, teacher__step="0"), task)
    assert model == wiring.trainer_model(settings, task)
