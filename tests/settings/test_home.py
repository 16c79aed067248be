"""Paths of a config that start at home."""

from configs import arithmetic
from rl_sync.settings.home import expand
from rl_sync.settings.reading import read_settings


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


def test_every_setting_of_the_defaults_that_is_a_path_is_known():
    config = arithmetic.get_config().to_dict()
    task = config["task"]
    paths = [
        (config, "workdir"),
        (config["sync"], "directory"),
        (config["model"], "path"),
        (config["tokenizer"], "path"),
        (config["launch"], "compilation_cache"),
        *[
            (task[kind], name)
            for kind in ("jsonl", "dataset")
            for name in ("path", "held_out_path")
        ],
    ]
    for section, name in paths:
        section[name] = "~x"
        assert expand(section)[name] == section[name], "nobody of that name lives here"
        section[name] = "~"
        assert expand(section)[name] != "~"
