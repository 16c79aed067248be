"""The command `render`: its output, its refusals, and the check by the cluster."""

import os

import pytest

from tests.addons.clusters.rendering import render
from tests.launcher.command import said_here

pytestmark = pytest.mark.gate

CONFIG = "--config=arithmetic"
JOBSET = ("--to=jobset", "--image=r/x:1", "--volume-claim=runs")
TPU = ("--accelerator=tpu-v5-lite-podslice",)


def test_it_prints_the_files_and_the_command_that_submits_them(tmp_path, capsys):
    said = said_here(capsys, "render", CONFIG, *JOBSET, f"--out={tmp_path / 'a b'}")
    assert said.status == 0
    lines = said.out.splitlines()
    assert lines[:2] == [f"{tmp_path}/a b/arithmetic.jobset.yaml", f"{tmp_path}/a b/Dockerfile"]
    assert lines[-1] == f"  kubectl apply --server-side -f '{tmp_path}/a b/arithmetic.jobset.yaml'"
    assert "docker build -t r/x:1" in said.out
    assert "kubectl create secret generic arithmetic-secret" in said.out


def test_settings_reach_the_launcher_as_they_were_given(tmp_path):
    words = ["--config.name=it's", "--config.seed", "3"]
    (text,) = render(tmp_path, "--to=slurm", *words).values()
    assert """  '--config.name=it'"'"'s' \\\n  --config.seed=3 \\\n""" in text
    assert text.count("--config.workdir=") == 1
    assert f"\nworkdir={tmp_path / 'run'}\n" in text
    assert "#SBATCH --job-name=it-s\n" in text


def test_an_existing_file_stays_unless_it_is_to_be_replaced(tmp_path, capsys):
    file = tmp_path / "arithmetic.sbatch"
    file.write_text("mine")
    words = ("render", CONFIG, "--to=slurm", f"--out={tmp_path}")
    said = said_here(capsys, *words)
    assert (said.status, said.out) == (2, "")
    assert f"{file} exists: --overwrite replaces it" in said.err
    assert file.read_text() == "mine"
    assert said_here(capsys, *words, "--overwrite").status == 0
    assert file.read_text().startswith("#!")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--to=slrum"], "--to=slrum must be one of slurm, jobset, skypilot, hosts; did you mean"),
        ([], "render needs --config=FILE and --to=ENGINE"),
        (
            ["--to=slurm", "--queue=q", "--gpus-per-node=8"],
            "--queue is for --to=jobset, not for --to=slurm, which takes --nodes",
        ),
        (["--to=hosts", "--nodes=a,b", "--port=1"], "--port is for --to=slurm and --to=jobset and"),
        (["--to=jobset", "--volume-claim=a"], "--to=jobset needs --image=REGISTRY/NAME:TAG"),
        (["--to=jobset", "--image=a"], "--to=jobset needs --volume-claim=NAME"),
        (["--to=hosts"], "--to=hosts needs --nodes=ADDRESS"),
        (["--to=hosts", "--nodes=a,,b"], "must be different addresses"),
        (["--to=hosts", "--nodes=a,a"], "must be different addresses"),
        (["--to=hosts", "--nodes=a"], "--nodes=a: the run's 2 processes take 2 machines"),
        (["--to=slurm", "--nodes=many"], "--nodes=many must be the number of nodes"),
        (["--to=slurm", "--nodes=1"], "--nodes=1: the run's 2 processes take 2 machines"),
        (["--to=skypilot", "--accelerator=tpu-v5e-8"], "must be GPUs of a node as SkyPilot names"),
        (
            ["--to=slurm", "--gpus-per-node=4", "--config.trainer.mesh.fsdp=8"],
            "trainer takes 8 devices, and a machine has --gpus-per-node=4: raise trainer.processes",
        ),
        (["--to=slurm", "--time=tomorrow"], "--time=tomorrow is no time limit of Slurm"),
        (["--to=slurm", "--trainer-gpus-per-node=8"], "name it by --trainer-partition"),
        (["--to=slurm", "--config.launch.colocate=true"], "launch.colocate=true runs all roles in"),
        (
            ["--to=slurm", "--config.launch.host=h", "--config.launch.hosts=explorer1=x"],
            "launch.hosts=explorer1=x: `render` sets launch.host and launch.hosts itself",
        ),
        ([*JOBSET, *TPU], "--accelerator=tpu-v5-lite-podslice needs --topology"),
        ([*JOBSET, "--topology=2x4"], "--topology=2x4 is for TPUs"),
        ([*JOBSET, *TPU, "--topology=big"], "--topology=big must be the chips along each axis"),
        (
            [*JOBSET, *TPU, "--topology=2x4"],
            "--topology=2x4 is a slice of 8 chips, and trainer.mesh takes 1",
        ),
        (
            [
                *JOBSET,
                *TPU,
                "--topology=4x4",
                "--config.trainer.mesh.fsdp=16",
                "--config.explorer.mesh.tensor=16",
            ],
            "trainer.processes=1 gives each process 16 chips",
        ),
    ],
)
def test_a_mistake_is_one_line(words, said, tmp_path, capsys):
    config = [CONFIG] if words else []
    found = said_here(capsys, "render", *config, *words, f"--out={tmp_path}")
    assert found.status == 2
    if words:
        assert said in found.err
    assert len(found.err.strip().splitlines()) == 1
    assert not found.out
    assert not [*tmp_path.iterdir()]


def test_a_config_outside_the_directory_does_not_reach_containers(tmp_path, capsys):
    config = tmp_path / "mine.py"
    config.write_text("from rl_sync.configs.arithmetic import get_config\n")
    said = said_here(capsys, "render", f"--config={config}", *JOBSET, f"--out={tmp_path}")
    assert said.status == 2
    assert "is outside the current directory" in said.err
    said = said_here(capsys, "render", f"--config={config}", "--to=slurm", f"--out={tmp_path}")
    assert said.status == 0


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Returns a function that puts a program with some exit status on a path without others."""
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))

    def add(name, status):
        file = programs / name
        file.write_text(f'#!/bin/sh\necho "{name} got $@" >&2\nexit {status}\n')
        file.chmod(0o755)

    return add


def test_a_check_prints_what_the_cluster_says(tmp_path, capsys, cluster):
    out = tmp_path / "out"
    words = ("render", CONFIG, f"--out={out}", "--overwrite", "--check")
    cluster("sbatch", 1)
    cluster("kubectl", 0)
    said = said_here(capsys, *words, "--to=slurm")
    assert said.status == 1
    assert said.out.endswith(f"sbatch got --test-only {out}/arithmetic.sbatch\n")
    said = said_here(capsys, *words, *JOBSET)
    assert said.status == 0
    manifest = os.path.join(out, "arithmetic.jobset.yaml")
    assert said.out.endswith(f"kubectl got apply --dry-run=server -f {manifest}\n")


def test_a_check_without_the_clusters_program_is_refused(tmp_path, capsys, cluster):
    out = tmp_path / "out"
    said = said_here(capsys, "render", CONFIG, "--to=slurm", f"--out={out}", "--check")
    assert (said.status, said.out) == (2, "")
    assert "no sbatch on the path. Run this on a login node, or leave out --check" in said.err
    assert not out.exists()
