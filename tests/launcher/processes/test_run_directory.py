"""The point from which a run resumes, and the allowed changes."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.checkpoints.snapshot_folder import SnapshotFolder
from rl_sync.checkpoints.snapshots import snapshot_path
from rl_sync.launcher.processes import run_directory as work
from rl_sync.learning.optimizer import rl_rate
from rl_sync.models.transformer import init_params
from rl_sync.records.json_lines import read_json_lines
from rl_sync.roles.assembly import wiring
from rl_sync.settings.config_reading import read_settings
from rl_sync.settings.records import ConfigError
from rl_sync.workdir import Workdir
from tests.runs import tiny
from tests.tasks.loading import TOKENIZER

pytestmark = pytest.mark.gate

STEP = 5


def config_of(workdir, fields):
    """Returns the tiny config with some fields set: "sync.mode" and the like."""
    config = tiny.get_config()
    for name, value in fields.items():
        section, _, field = name.partition(".")
        config[section][field] = value
    return {**config.to_dict(), "workdir": str(workdir)}


def prepare(workdir, **fields):
    """Prepares the directory for a run with fields such as sync__mode."""
    named = {name.replace("__", "."): value for name, value in fields.items()}
    settings = read_settings(config_of(workdir, named))
    return work.prepare(workdir, settings, wiring.load_task(settings))


@pytest.fixture
def began(tmp_path):
    """Makes a directory whose run left a snapshot of so many trainer or SFT steps."""
    directory = Workdir(tmp_path / "run")
    Path(directory).mkdir()

    def begin(step=STEP, sft_step=None, **fields):
        assert prepare(directory, **fields) is None
        settings = read_settings(json.loads(directory.config.read_text()))
        model = wiring.trainer_model(settings, wiring.load_task(settings))
        shapes = jax.eval_shape(lambda: init_params(model, jax.random.key(0)))
        params = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
        state = {"step": jnp.int32(0), "params": params}
        if sft_step is not None:
            SnapshotFolder(directory.sft_snapshots).save(sft_step, state, {})
        else:
            SnapshotFolder(directory.snapshots).save(step, state, {})
        return directory

    return begin


def files(directory):
    return {path: path.read_bytes() for path in Path(directory).rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("fields", "setting", "before", "now"),
    [
        ({"sync__mode": "asynchronous"}, "sync.mode", "'one_step_off_policy'", "'asynchronous'"),
        ({"sync__mode": "synchronous"}, "sync.mode", "'one_step_off_policy'", "'synchronous'"),
        ({"algorithm__name": "grpo"}, "algorithm.name", "'decoupled_ppo'", "'grpo'"),
        ({"algorithm__clip_low": 0.1}, "algorithm.clip_low", "0.2", "0.1"),
        ({"trainer__group_size": 4}, "trainer.group_size", "2", "4"),
        ({"trainer__groups_per_step": 8}, "trainer.groups_per_step", "6", "8"),
        ({"optimizer__learning_rate": 1e-5}, "optimizer.learning_rate", "0.0003", "1e-05"),
        ({"rollout__temperature": 0.5}, "rollout.temperature", "1.0", "0.5"),
        ({"model__dtype": "bfloat16"}, "model.dtype", "'float32'", "'bfloat16'"),
        ({"replay__sampler": "lifo", "sync__mode": "asynchronous"}, "sync.mode", "'", "'"),
    ],
)
def test_a_change_of_what_a_run_learns_is_refused_and_nothing_is_touched(
    began, fields, setting, before, now
):
    directory = began()
    there = files(directory)
    with pytest.raises(ConfigError) as error:
        prepare(directory, **fields)
    said = str(error.value)
    assert len(said.splitlines()) == 1
    assert f"another {setting}: {before}" in said
    assert f"{now}" in said
    assert "--config.launch.resume_changed=true" in said
    assert "--config.workdir" in said
    assert files(directory) == there


def test_a_change_that_is_insisted_on_is_told_and_recorded_with_the_former_config(began):
    directory = began()
    former = directory.config.read_text()
    changed = {"sync__mode": "asynchronous", "optimizer__learning_rate": 1e-5}
    resumption = prepare(directory, launch__resume_changed=True, **changed)
    assert (resumption.sft_step, resumption.step) == (None, STEP)
    told = str(resumption).splitlines()
    assert told[:2] == [
        f"Goes on from trainer step {STEP}, from its snapshot.",
        "  with sync.mode: 'one_step_off_policy' there, 'asynchronous' here",
    ]
    assert "  with optimizer.learning_rate: 0.0003 there, 1e-05 here" in told
    (kept,) = directory.earlier.glob("*/config.json")
    assert kept.read_text() == former
    now = json.loads(directory.config.read_text())
    assert now["sync"]["mode"] == "asynchronous"
    (line,) = read_json_lines(directory.resumed)
    assert line["step"] == STEP
    rate = {"setting": "optimizer.learning_rate", "before": 0.0003, "now": 1e-05}
    assert rate in line["changes"]
    # What it was changed to is what it goes on with from now on.
    assert prepare(directory, **changed).step == STEP


@pytest.mark.parametrize(
    ("first", "then", "horizon"),
    [
        ({"trainer__steps": 40}, {"trainer__steps": STEP + 1}, 40),
        ({"trainer__steps": 6}, {"trainer__steps": 400}, 6),
        ({"trainer__steps": 12}, {"trainer__steps": 12, "optimizer__schedule_steps": 5}, 12),
    ],
)
def test_a_jump_of_the_learning_rate_is_told_with_both_rates_and_the_way_to_avoid_it(
    began, first, then, horizon
):
    course = {"optimizer__schedule": "cosine", "optimizer__warmup_updates": 0}
    directory = began(**first, **course)
    settings = read_settings(json.loads(directory.config.read_text()))
    taken = STEP * settings.optimizer.updates_per_batch
    rate = rl_rate(settings.optimizer, settings.optimizer.updates(first["trainer__steps"]))(taken)
    *_, told = str(prepare(directory, **then, **course)).splitlines()
    assert told.startswith(f"  WARNING: the learning rate of trainer step {STEP + 1} is ")
    assert f"would have been {float(rate):.2g}" in told
    assert told.endswith(f"--config.optimizer.schedule_steps={horizon} goes on as before.")


@pytest.mark.parametrize(
    ("course", "kept"),
    [
        ({"optimizer__schedule": "cosine"}, {"optimizer__schedule_steps": 40}),
        ({"optimizer__schedule": "constant"}, {}),
    ],
)
def test_a_learning_rate_that_stays_as_it_was_is_not_told(began, course, kept):
    directory = began(trainer__steps=40, **course)
    resumption = prepare(directory, trainer__steps=90, **course, **kept)
    assert resumption.step == STEP
    assert "learning rate" not in str(resumption)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"trainer__steps": 40, "checkpoint__every_steps": 0, "evaluation__every_steps": 2},
        {"launch__wait_secs": 1.0, "master__lease_secs": 9.0, "replay__backend": "embedded"},
        {"sync__transfer": "checkpoint", "explorer__count": 2},
        {"sft__steps": 9, "sft__batch_size": 2, "sft__learning_rate": 1.0},
    ],
)
def test_what_says_where_how_fast_and_how_long_may_change(began, fields):
    assert prepare(began(), **fields).step == STEP


def test_in_sft_its_length_may_change_and_its_batches_may_not(began):
    directory = began(sft_step=3)
    resumption = prepare(directory, sft__steps=9)
    assert (resumption.sft_step, resumption.step) == (3, None)
    assert str(resumption).startswith("Goes on from SFT step 3.\n  with sft.steps: 4 there")
    with pytest.raises(ConfigError, match=r"sft.batch_size: 128 there, 2 here"):
        prepare(directory, sft__steps=9, sft__batch_size=2)


@pytest.mark.parametrize("fields", [{"model__embed_dim": 64}, {"model__num_layers": 2}])
def test_parameters_that_do_not_fit_are_refused_whatever_is_insisted_on(began, fields):
    with pytest.raises(ConfigError, match=r"do not fit: params/.* there and .* here"):
        prepare(began(), launch__resume_changed=True, **fields)


def test_fewer_steps_than_a_run_has_made_are_refused(began):
    with pytest.raises(ConfigError, match=r"has made 5 trainer steps, more than trainer.steps=4"):
        prepare(began(), trainer__steps=4)


def test_a_config_that_cannot_be_read_is_named_and_kept(began):
    directory = began()
    directory.config.write_text('{"torn": ')
    with pytest.raises(ConfigError, match=r"config.json cannot be read"):
        prepare(directory)
    assert directory.config.read_text() == '{"torn": '


def test_snapshots_of_a_run_that_nothing_is_known_of_are_set_aside(began):
    directory = began()
    directory.config.unlink()
    assert prepare(directory) is None
    assert work.saved(directory) == (None, None)
    (kept,) = directory.earlier.glob("*/checkpoints")
    assert list(kept.iterdir())


def test_a_setting_that_another_version_of_the_code_did_not_have_is_no_change(began):
    directory = began()
    config = json.loads(directory.config.read_text())
    del config["rollout"]["min_p"]
    directory.config.write_text(json.dumps(config))
    assert prepare(directory).changes == ()


def lose_metadata(directory, step):
    (snapshot_path(directory.snapshots, step) / "metadata.json").unlink()


@pytest.fixture
def twice(began):
    """Makes the directory of a run that has left two snapshots; returns it with their state."""
    directory, state = began(5), {"x": jnp.zeros(3)}
    for step in (5, 10):
        SnapshotFolder(directory.snapshots).save(step, state, {})
    return directory, state


def test_a_run_goes_on_from_the_snapshot_that_the_trainer_finds_whole(twice, capsys):
    directory, state = twice
    assert prepare(directory).step == 10
    lose_metadata(directory, 10)
    assert prepare(directory).step == 5
    (said,) = capsys.readouterr().out.splitlines()
    assert said.startswith("WARNING: The snapshot ")
    assert "it lacks metadata.json. The snapshot of step 5 is used instead" in said
    assert SnapshotFolder(directory.snapshots).load(None, state)[0] == 5
    assert (directory.snapshots / "damaged_00000010" / "files.json").exists()


def test_a_run_none_of_whose_snapshots_is_whole_does_not_begin_anew(twice):
    directory, _ = twice
    for step in (5, 10):
        lose_metadata(directory, step)
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"No snapshot in .*/checkpoints is whole"):
            prepare(directory)
    assert len(list(directory.snapshots.iterdir())) == 2


def test_sft_does_not_go_on_from_a_damaged_snapshot(began):
    directory = began(sft_step=3)
    (snapshot_path(directory.sft_snapshots, 3) / "metadata.json").unlink()
    with pytest.raises(ConfigError, match=r"No snapshot in .*/checkpoints/sft is whole"):
        prepare(directory)


def test_damage_leaves_a_directory_alone_whose_run_cannot_go_on(twice):
    directory, _ = twice
    lose_metadata(directory, 10)
    there = files(directory)
    with pytest.raises(ConfigError, match=r"another sync.mode"):
        prepare(directory, sync__mode="synchronous")
    assert files(directory) == there


def test_what_was_there_is_kept_at_every_start_even_of_the_same_second(began, monkeypatch):
    monkeypatch.setattr(work.time, "strftime", lambda _: "20260101-000000")
    directory = began()
    for _ in range(3):
        directory.config.unlink(missing_ok=True)
        directory.metrics.write_text("{}\n")
        assert prepare(directory) is None
    assert len(list(directory.earlier.glob("*/metrics.jsonl"))) == 3


def test_the_date_of_chat_templates_is_that_of_the_first_start(tmp_path):
    config = tiny.get_config()
    config.workdir = str(tmp_path)
    assert work.settings_of(config.to_dict()).tokenizer.date is None  # Characters have no template.
    config.tokenizer.path = str(TOKENIZER)
    today = datetime.date.today().isoformat()
    assert work.settings_of(config.to_dict()).tokenizer.date >= today
    Workdir(tmp_path).config.write_text(json.dumps({"tokenizer": {"date": "2026-01-31"}}))
    assert work.settings_of(config.to_dict()).tokenizer.date == "2026-01-31"
    config.tokenizer.date = "2026-02-01"
    assert work.settings_of(config.to_dict()).tokenizer.date == "2026-02-01"
