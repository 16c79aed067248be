"""Commands that train, or prepare it."""

from __future__ import annotations

import click

from rl_sync.launcher.command import Command
from rl_sync.launcher.command_tables.flags import (
    CURVES,
    FILE,
    FOLDER,
    FROM_0,
    FROM_1,
    config_flag,
    flag,
    offered,
    run_flag,
)
from rl_sync.launcher.completing import PathOf

_GROUP = "Train"
_OF_RUNS = {
    1: "The run failed; the message names the role and its log.",
    75: "A machine was lost, and none joined in its place; the run can go on later.",
    143: "SIGTERM ended it; it has saved a snapshot.",
}

TRAINING_COMMANDS = [
    Command(
        "run",
        _GROUP,
        "rl_sync.launcher.commands.run",
        "Trains; the word may be left out.",
        "Starts the trainer, the explorers, the master and the replay server of a config, shows"
        " their state, and ends after the last trainer step. Everything is written to the work"
        " directory. Ctrl-C saves a snapshot and ends the run. With the work directory of an"
        " earlier run it resumes that run.",
        [config_flag()],
        {
            "--config=arithmetic --config.workdir=runs/first": "Train a small policy; two minutes.",
            "--config=arithmetic --config.sync.mode=asynchronous --config.trainer.steps=50": (
                "Explorers run at their own pace; half as many steps."
            ),
        },
        "docs/using.md",
        statuses=_OF_RUNS,
    ),
    Command(
        "resume",
        _GROUP,
        "rl_sync.launcher.commands.resume",
        "Goes on with a run that was interrupted or has failed.",
        "Reads the config in the run's work directory, and goes on from its newest snapshot."
        " Settings that say where, how fast and how long may be changed; with"
        " --config.launch.resume_changed=true others too. It says what has changed.",
        [config_flag("the run's"), run_flag()],
        {
            "--workdir=runs/first": "Go on.",
            "--workdir=runs/first --config.trainer.steps=200": "Go on for longer.",
        },
        "docs/using.md",
        own_config=True,
        statuses=_OF_RUNS,
    ),
    Command(
        "join",
        _GROUP,
        "rl_sync.addons.clusters.join",
        "Runs processes of a run that was started on another machine.",
        "Waits for the launcher, gets the config, code and data from it, and runs the processes"
        " that its launch.hosts gives to machines that join. It sends logs and records back, and"
        " ends with the run. No directory needs to be shared. The secret of the run is in"
        " RL_SYNC_SECRET.",
        [
            flag("run", "HOST:PORT", "Address of the launcher (launch.port).", required=True),
            flag(
                "process",
                "NAME,…",
                "Processes to run, such as explorer1 or trainer/1.",
                required=True,
            ),
            flag(
                "host",
                "ADDRESS",
                "Address of this machine, as others reach it, or a network interface.",
                "the interface towards the launcher",
            ),
            flag(
                "wait",
                "SECONDS",
                "The longest that the launcher cannot be reached.",
                "600",
                type=FROM_1,
            ),
            flag(
                "lifeline",
                "",
                "Reads the secret from the first line of standard input, and ends when it closes.",
            ),
        ],
        {"--run=10.0.0.1:7070 --process=explorer1": "Run the first explorer on this machine."},
        "docs/clusters.md",
        statuses={
            1: "It cannot take part, or the run failed.",
            75: "The launcher was lost, and did not come back.",
            143: "It was asked to end.",
        },
    ),
    Command(
        "plan",
        _GROUP,
        "rl_sync.launcher.commands.plan",
        "Prints the schedule and the memory of a run without starting it.",
        "Says who waits for whom, how stale data may get, and how much memory each role needs, and"
        " draws the first steps. It checks the config and loads the task's data, so that mistakes"
        " are found before a run. With a target it compiles the programs for accelerators, or"
        " proposes settings for them; this machine need not have them.",
        [
            config_flag(),
            flag(
                "compile",
                "TARGET",
                "Accelerators to compile the run's programs for, such as v5e:4x4 or h100:8.",
                "nothing is compiled",
            ),
            flag(
                "find",
                "TARGET",
                "Accelerators to propose meshes and batch shapes for, as --compile names them.",
                "nothing is proposed",
            ),
            flag(
                "workdir",
                "DIRECTORY",
                "Work directory of an earlier run, from whose times the speed is predicted.",
                "no forecast",
                type=PathOf("run"),
            ),
            flag(
                "network",
                "BANDWIDTH,LATENCY",
                "Network between the trainer and the explorers for that prediction, such as"
                " 1Gbit/s,20ms.",
                "that of the run",
            ),
        ],
        {
            "--config=arithmetic --config.sync.mode=synchronous": "See who waits for whom.",
            "--config=arithmetic --find=v5e:2x2": "Settings that fit four TPU chips.",
        },
        "docs/using.md",
    ),
    Command(
        "tune",
        _GROUP,
        "rl_sync.addons.tune.tune",
        "Predicts the speed and the staleness of schedules from a short run, and chooses one.",
        "Reads how long everything took in a run, simulates it under other schedules, and prints"
        " those that no other one beats in both trainer steps an hour and staleness. It writes"
        " their picture, the predicted timeline of the chosen one, and a config file with its"
        " settings. It can also predict other numbers of explorers, networks and devices. The run"
        " may have any mode; twenty trainer steps are enough.",
        [
            run_flag("Work directory of the run whose times are used."),
            flag(
                "within",
                "STEPS",
                "Maximum staleness that the chosen schedule may allow.",
                "2",
                type=FROM_0,
            ),
            flag(
                "explorers", "NUMBERS", "Numbers of explorers: 1,3, or 1:64 to double.", "the run's"
            ),
            flag("modes", "MODES", "Modes to try, separated by commas.", "all"),
            flag("intervals", "NUMBERS", "Trainer steps between publications.", "1,2,4"),
            flag("offsets", "NUMBERS", "Batches ahead, in the mode custom.", "2,4"),
            flag("bounds", "NUMBERS", "Maximum staleness, with latest pulls.", "1,2,4,8"),
            flag("groups", "NUMBERS", "Groups that a trainer step trains on.", "the run's"),
            flag("transfers", "TRANSFERS", "Weight transfers, separated by commas.", "the run's"),
            flag(
                "network",
                "BANDWIDTH,LATENCY",
                "Link from the trainer, such as 1Gbit/s,20ms, in place of the measured times.",
            ),
            flag(
                "devices",
                "FACTORS",
                "Speed of other devices, such as trainer:2,explorer:4; apart: each role has its"
                " own.",
                "the run's",
            ),
            flag(
                "work",
                "FILE",
                "Times to use in place of the run's: work.json of an earlier output, edited.",
                type=FILE,
            ),
            flag("steps", "N", "Trainer steps whose time is given.", "the run's", type=FROM_1),
            flag("seeds", "N", "Simulated runs of each schedule.", "2", type=FROM_1),
            flag(
                "out",
                "DIRECTORY",
                "Directory of the files.",
                "tune in the work directory",
                type=FOLDER,
            ),
        ],
        {
            "--workdir=runs/first": "The best schedules for the run's devices.",
            "--workdir=runs/first --explorers=1:64 --devices=apart --network=1Gbit/s,20ms": (
                "With up to 64 explorers on machines of their own, over a slow link."
            ),
        },
        "docs/choosing.md",
    ),
    Command(
        "render",
        _GROUP,
        "rl_sync.addons.clusters.render",
        "Writes the files that start a run on a cluster.",
        "Places the processes of a run on machines, and writes a batch script of Slurm, a JobSet of"
        " Kubernetes, a task of SkyPilot, or a command that uses ssh: files to read, change and"
        " submit. It prints their names and the commands that submit them. It starts nothing.",
        [
            config_flag(),
            flag(
                "to",
                "ENGINE",
                "System that starts the run: slurm, jobset, skypilot or hosts, for ssh.",
                type=click.Choice(["slurm", "jobset", "skypilot", "hosts"]),
                required=True,
            ),
            flag(
                "out",
                "DIRECTORY",
                "Directory of the files.",
                "the current directory",
                type=FOLDER,
            ),
            flag("overwrite", "", "Replaces files of earlier calls."),
            flag("check", "", "Has the cluster check the file (slurm, jobset)."),
            flag(
                "nodes",
                "NODES",
                "Number of nodes (slurm, skypilot), or addresses separated by commas (hosts).",
                "as many as the run takes",
            ),
            flag("gpus-per-node", "N", "GPUs of each node (slurm, hosts).", "CPUs", type=FROM_1),
            flag(
                "processes-per-node",
                "N",
                "Maximum number of processes on a node (slurm, skypilot, hosts).",
                "1 on CPUs",
                type=FROM_1,
            ),
            flag(
                "port",
                "PORT",
                "Port at which machines join the run (slurm, jobset, skypilot).",
                "29400",
                type=click.IntRange(1, 65535),
            ),
            flag("time", "TIME", "Time limit of the job (slurm).", "24:00:00"),
            flag("partition", "NAME", "Partition (slurm).", "the cluster's"),
            flag(
                "trainer-partition",
                "NAME",
                "Partition of the trainer's nodes, which makes the job heterogeneous (slurm).",
                "that of the explorers",
            ),
            flag(
                "trainer-gpus-per-node",
                "N",
                "GPUs of each node of the trainer's partition (slurm).",
                "as many as others",
                type=FROM_1,
            ),
            flag("account", "NAME", "Account to charge (slurm).", "the user's"),
            flag("modules", "NAMES", "Modules to load, separated by commas (slurm).", "none"),
            flag(
                "environment",
                "PATH",
                "Virtual environment, or a script to source (slurm).",
                "none",
                type=FOLDER,
            ),
            flag("container-image", "IMAGE", "Image for pyxis (slurm).", "no container"),
            flag("image", "IMAGE", "Container image (jobset)."),
            flag("volume-claim", "NAME", "Claim of the volume of the work directory (jobset)."),
            flag(
                "accelerator",
                "NAME",
                "Devices: nvidia-h100-80gb or tpu-v5-lite-podslice (jobset), H100:8 (skypilot).",
                "CPUs",
            ),
            flag(
                "topology",
                "SHAPE",
                "TPU slice of each program: 2x4, or trainer:4x4,explorer:2x4 (jobset).",
            ),
            flag("queue", "NAME", "Local queue of Kueue (jobset).", "none"),
        ],
        {
            "--to=slurm --config=arithmetic --gpus-per-node=8 --time=12:00:00": (
                "A batch script for nodes of 8 GPUs."
            ),
            "--to=jobset --config=arithmetic --image=registry/rl:1 --volume-claim=runs": (
                "A JobSet and a Dockerfile."
            ),
            "--to=hosts --config=arithmetic --nodes=10.0.0.1,10.0.0.2": "Two machines with ssh.",
        },
        "docs/clusters.md",
        statuses={1: "The cluster refused the file (--check)."},
    ),
    Command(
        "chaos",
        _GROUP,
        "rl_sync.launcher.commands.chaos",
        "Trains while processes are killed at random, and audits the records.",
        "Makes a run, and kills or stops a random process of it every now and then. At the end it"
        " checks that every step and every group is accounted for, and prints the share of time"
        " that led to steps that count. It shows whether your setup survives what a cluster does"
        " to it.",
        [
            config_flag(),
            flag("seed", "SEED", "Seed of the draws.", "0", type=FROM_0),
            flag("every", "SECONDS", "Mean time between two disturbances.", "30", type=float),
            flag(
                "kinds",
                "KINDS",
                "Kinds of disturbance: kill; pause, for five seconds; stop, for good; or starve, a"
                " tenth of a core for ten seconds. Separated by commas.",
                "kill",
                shell_complete=offered("kill", "kill,pause", "kill,pause,stop,starve"),
            ),
            flag(
                "windows",
                "WINDOWS",
                "Activities in which to strike, such as snapshot,sync.",
                "any time",
                shell_complete=offered("train,snapshot,sync", "rollout,score,insert"),
            ),
            flag("roles", "NAMES", "Processes that may be disturbed.", "all"),
            flag("compare", "", "Makes an undisturbed run after it, and compares the digests."),
        ],
        {
            "--config=arithmetic --every=10": "Something dies every ten seconds.",
            "--config=arithmetic --config.sync.mode=synchronous --compare": (
                "The parameters must be the same as without the deaths."
            ),
        },
        "docs/reliability.md",
        statuses={1: "The run failed, or its records are not whole."},
    ),
    Command(
        "sweep",
        _GROUP,
        "rl_sync.launcher.commands.sweep",
        "Trains with several seeds or values, one run after another, and compares the runs.",
        "Makes a run for each combination of seeds and values, in a directory named after it. The"
        " same command again skips finished runs and resumes the others. At the end it prints the"
        " table of `compare`. --index makes only one of the runs, for array jobs.",
        [
            config_flag(),
            flag("seeds", "SEEDS", "Seeds: 0:4 for 0 to 3, or 0,5,7.", "the config's"),
            flag(
                "set",
                "SETTING=VALUES",
                "Values of a setting, separated by commas; repeat the flag for more settings. Put a"
                " value that contains a comma in quotation marks.",
                multiple=True,
            ),
            flag("parallel", "N", "Number of runs at the same time.", "1", type=FROM_1),
            flag("index", "NUMBER", "Makes only this run; --list shows the numbers.", type=FROM_0),
            flag("list", "", "Lists the runs with their numbers and states, and starts none."),
            flag("into", "DIRECTORY", "Directory of the runs.", "runs/sweep-NAME", type=FOLDER),
            CURVES,
        ],
        {
            "--config=arithmetic --seeds=0:4 --set=sync.mode=synchronous,asynchronous": (
                "Eight runs: four seeds of two modes."
            ),
            "--config=arithmetic --seeds=0:8 --index=$SLURM_ARRAY_TASK_ID": "One of an array job.",
        },
        "docs/how-to/sweeps.md",
        statuses={
            1: "A run failed; the others have been made.",
            143: "SIGTERM ended it; its runs have saved snapshots.",
        },
    ),
]
