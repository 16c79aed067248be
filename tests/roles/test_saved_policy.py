"""The policy of an earlier run, read from its work directory."""

import json

import pytest

from rl_sync.roles.saved_policy import settings_of_run
from rl_sync.settings.records import ConfigError
from rl_sync.workdir import Workdir
from tests.runs import tiny


def workdir_of(path, config):
    Workdir(path).config.write_text(json.dumps(config | {"workdir": str(path)}))
    return path


def test_settings_that_an_earlier_version_did_not_have_are_the_defaults(tmp_path):
    config = tiny.get_config().to_dict() | {"seed": 7}
    del config["model"]["lora"]["path"], config["algorithm"]["aggregation"]
    settings = settings_of_run(workdir_of(tmp_path, config))
    assert (settings.seed, settings.model.lora.path) == (7, None)
    assert settings.algorithm.aggregation == "token_mean"


def test_a_config_with_settings_of_another_version_is_refused_in_one_line(tmp_path):
    config = tiny.get_config().to_dict()
    config["trainer"]["stepz"] = 3
    with pytest.raises(ConfigError, match="stepz"):
        settings_of_run(workdir_of(tmp_path, config))


def test_a_directory_without_a_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"not the work directory of a run: it holds no config"):
        settings_of_run(tmp_path)
