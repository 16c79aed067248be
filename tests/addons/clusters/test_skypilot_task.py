"""The task of SkyPilot: its nodes' processes, and what SkyPilot says of it."""

import os
import shutil
import subprocess
import sys

import pytest
import yaml

from tests.addons.clusters.rendering import render

pytestmark = pytest.mark.gate

WORDS = (
    "--to=skypilot",
    "--accelerator=H100:8",
    "--config.trainer.mesh.fsdp=16",
    "--config.trainer.processes=2",
    "--config.sync.mode=multi_explorer",
    "--config.explorer.count=3",
    "--config.explorer.mesh.tensor=4",
)


def task(folder, *words):
    (text,) = render(folder, *words).values()
    return yaml.safe_load(text)


def test_a_task_has_as_many_nodes_as_the_processes_take(tmp_path):
    found = task(tmp_path, *WORDS, "--nodes=4")
    assert found["num_nodes"] == 4
    assert found["resources"] == {"accelerators": "H100:8"}
    assert found["secrets"] == {"RL_SYNC_SECRET": None}
    assert found["setup"] == "pip install -e '.[cuda]'\n"
    assert task(tmp_path, "--to=skypilot")["resources"] == {}
    assert task(tmp_path, "--to=skypilot")["setup"] == "pip install -e '.'\n"


@pytest.mark.parametrize(
    ("rank", "expected"),
    [
        (0, {"trainer": "all"}),
        (1, {"trainer/1": "all"}),
        (2, {"explorer1": "0,1,2,3", "explorer2": "4,5,6,7"}),
        (3, {"explorer3": "all"}),
    ],
)
def test_each_node_runs_its_processes_and_the_first_also_the_launcher(rank, expected, tmp_path):
    notes = tmp_path / "notes"
    (tmp_path / "python").write_text(
        f'#!/bin/sh\necho "$* ${{CUDA_VISIBLE_DEVICES:-all}}" >> {notes}\n'
    )
    (tmp_path / "python").chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if "CUDA" not in name}
    subprocess.run(
        ["bash", "-c", task(tmp_path, *WORDS)["run"]],
        env={
            **environment,
            "HOME": str(tmp_path),
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "SKYPILOT_NODE_RANK": str(rank),
            "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2\n10.0.0.3\n10.0.0.4",
        },
        check=True,
    )
    lines = notes.read_text().splitlines()
    joins = sorted(line for line in lines if " join " in line)
    start = "-m launcher join --run=10.0.0.1:29400"
    assert joins == sorted(f"{start} --process={name} {ids}" for name, ids in expected.items())
    others = [line for line in lines if " join " not in line]
    assert len(others) == (rank == 0)
    for line in others:
        assert "-m launcher --config=arithmetic --config.trainer.mesh.fsdp=16" in line
        assert f"--config.workdir={tmp_path}/rl_sync_runs/arithmetic" in line
        assert "--config.launch.hosts=trainer=join,trainer/1=join,explorer1=join," in line


LOAD = """
import sys, sky
print(sky.Task.from_yaml(sys.argv[1]).num_nodes)
"""


@pytest.mark.nightly
def test_skypilot_takes_the_task_and_refuses_a_misspelt_field(tmp_path):
    uv = shutil.which("uv", path=f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}")
    if uv is None:
        pytest.skip("uv is not installed")
    where = ["--no-project", "--isolated", "--python", sys.executable]
    words = [uv, "run", *where, "--with", "skypilot==0.14.1", "python", "-c"]
    run = {"capture_output": True, "text": True, "timeout": 280, "check": False}
    if subprocess.run([*words, "import sky"], **run).returncode:
        pytest.skip("skypilot==0.14.1 cannot be had from the package index")
    file = tmp_path / "task.yaml"
    (text,) = render(tmp_path, *WORDS).values()
    file.write_text(text)
    done = subprocess.run([*words, LOAD, str(file)], **run)
    assert done.stdout == "4\n", done.stderr
    file.write_text(text.replace("num_nodes:", "nodes:"))
    done = subprocess.run([*words, LOAD, str(file)], **run)
    assert done.returncode
    assert "nodes" in done.stderr
