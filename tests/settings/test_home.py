"""Paths of a config that start at home."""

import re

from rl_sync.configs import arithmetic
from rl_sync.setting import sections
from rl_sync.settings.config_reading import expand, read_settings
from rl_sync.settings.run_settings import RunSettings


def test_every_path_is_written_out_and_nothing_else(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    config = {
        "name": "~/x",
        "workdir": "~/runs/a",
        "task": {"name": "jsonl", "jsonl": {"path": "~/a.jsonl", "held_out_path": "~/b.jsonl"}},
        "model": {"path": "org/name", "lora": {"rank": 0}},
        "sync": {"directory": "gs://bucket/~"},
        "launch": {"compilation_cache": "~", "host": None},
        "seed": 3,
    }
    assert expand(config) == {
        "name": "~/x",
        "workdir": "/home/ada/runs/a",
        "task": {
            "name": "jsonl",
            "jsonl": {"path": "/home/ada/a.jsonl", "held_out_path": "/home/ada/b.jsonl"},
        },
        "model": {"path": "org/name", "lora": {"rank": 0}},
        "sync": {"directory": "gs://bucket/~"},
        "launch": {"compilation_cache": "/home/ada", "host": None},
        "seed": 3,
    }


def test_settings_have_paths_written_out(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    config = arithmetic.get_config()
    config.workdir, config.sync.directory = "~/run", "~/weights"
    config.sync.transfer = "checkpoint"
    settings = read_settings(config.to_dict())
    assert (settings.workdir, settings.sync.directory) == ("/home/ada/run", "/home/ada/weights")


def test_every_setting_that_is_a_path_says_so():
    """By its name or its meaning; `task.dataset.path` may be a data set's name as well."""
    entries = [entry for section in sections(RunSettings) for entry in section.entries]
    said = {entry.name for entry in entries if entry.setting.is_path}
    words = re.compile(r"path$|dir$|directory$|_cache$")
    assert said == {entry.name for entry in entries if words.search(entry.name)}
