"""The table of the commands.

A new command needs a module with a function `execute`, and an entry here. click derives the parser,
the help and shell completion from it. The first command runs if none is named.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from rl_sync.launcher.catalogs import CATALOGS
from rl_sync.launcher.command import CONFIG, Command, LauncherProgram
from rl_sync.launcher.completing import Item, PathOf

_TRAIN, _LOOK, _USE = "Train", "Look at runs", "Use a policy or a reward"
_LIST, _LEARN = "List the choices", "Learn the command line"


def _flag(name: str, value: str, meaning: str, default: str = "", **more: Any) -> click.Option:
    """Makes a flag of a command.

    Args:
      value: the name of its value in the help; empty for choices, and for a flag without a value.
      meaning: its description, one or two sentences.
      default: the default, in words.
      more: arguments of `click.Option`.
    """
    return click.Option(
        [f"--{name}"],
        metavar=value or None,
        help=f"{meaning} Default: {default}." if default else meaning,
        is_flag=None if value or "type" in more else True,
        **more,
    )


def _offer(*values: str) -> Callable[..., list[Item]]:
    """Returns a function that suggests some of a flag's values at the Tab key."""
    return lambda *_: [*map(Item, values)]


def _config(default: str = "") -> click.Option:
    meaning = "Config file, or the name of a config of the package, which `configs` lists."
    return _flag(CONFIG, "FILE", meaning, default, type=PathOf("config"), required=not default)


def _run(meaning: str = "Work directory of the run.", required: bool = True) -> click.Option:
    return _flag("workdir", "DIRECTORY", meaning, type=PathOf("run"), required=required)


_FILE, _FOLDER = PathOf("file"), PathOf("directory")
_FROM_0, _FROM_1 = click.IntRange(0), click.IntRange(1)
_SNAPSHOT = _flag(
    "step",
    "STEP",
    "Trainer step of the snapshot, or best.",
    "the newest",
    shell_complete=_offer("best"),
)
_HOST = _flag("host", "ADDRESS", "Address to serve at.", "127.0.0.1, for this machine alone")
_PORT = _flag("port", "PORT", "Port to serve at.", "any free one", type=click.IntRange(0, 65535))
_CURVES = _flag(
    "out", "FILE", "Page (.html) or picture (.png) with curves.", "none is written", type=_FILE
)
_ORDERS = ("step", "reward", "advantage", "tokens", "staleness", "logprob")
_OF_RUNS = {
    1: "The run failed; the message names the role and its log.",
    75: "A machine was lost, and none joined in its place; the run can go on later.",
    143: "SIGTERM ended it; it has saved a snapshot.",
}
_OF_SERVERS = {
    0: "Ctrl-C or SIGTERM ended it while it served.",
    130: "Ctrl-C ended it before it served.",
}
_JSON = _flag("json", "", "Prints a JSON list of objects, for scripts.")

_COMMANDS = [
    Command(
        "run",
        _TRAIN,
        "rl_sync.launcher.commands.run",
        "Trains; the word may be left out.",
        "Starts the trainer, the explorers, the master and the replay server of a config, shows"
        " their state, and ends after the last trainer step. Everything is written to the work"
        " directory. Ctrl-C saves a snapshot and ends the run. With the work directory of an"
        " earlier run it resumes that run.",
        [_config()],
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
        _TRAIN,
        "rl_sync.launcher.commands.resume",
        "Goes on with a run that was interrupted or has failed.",
        "Reads the config in the run's work directory, and goes on from its newest snapshot."
        " Settings that say where, how fast and how long may be changed; with"
        " --config.launch.resume_changed=true others too. It says what has changed.",
        [_config("the run's"), _run()],
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
        _TRAIN,
        "rl_sync.addons.clusters.join",
        "Runs processes of a run that was started on another machine.",
        "Waits for the launcher, gets the config, code and data from it, and runs the processes"
        " that its launch.hosts gives to machines that join. It sends logs and records back, and"
        " ends with the run. No directory needs to be shared. The secret of the run is in"
        " RL_SYNC_SECRET.",
        [
            _flag("run", "HOST:PORT", "Address of the launcher (launch.port).", required=True),
            _flag(
                "process",
                "NAME,…",
                "Processes to run, such as explorer1 or trainer/1.",
                required=True,
            ),
            _flag(
                "host",
                "ADDRESS",
                "Address of this machine, as others reach it, or a network interface.",
                "the interface towards the launcher",
            ),
            _flag(
                "wait",
                "SECONDS",
                "The longest that the launcher cannot be reached.",
                "600",
                type=_FROM_1,
            ),
            _flag(
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
        _TRAIN,
        "rl_sync.launcher.commands.plan",
        "Prints the schedule and the memory of a run without starting it.",
        "Says who waits for whom, how stale data may get, and how much memory each role needs, and"
        " draws the first steps. It checks the config and loads the task's data, so that mistakes"
        " are found before a run. With a target it compiles the programs for accelerators, or"
        " proposes settings for them; this machine need not have them.",
        [
            _config(),
            _flag(
                "compile",
                "TARGET",
                "Accelerators to compile the run's programs for, such as v5e:4x4 or h100:8.",
                "nothing is compiled",
            ),
            _flag(
                "find",
                "TARGET",
                "Accelerators to propose meshes and batch shapes for, as --compile names them.",
                "nothing is proposed",
            ),
            _flag(
                "workdir",
                "DIRECTORY",
                "Work directory of an earlier run, from whose times the speed is predicted.",
                "no forecast",
                type=PathOf("run"),
            ),
            _flag(
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
        _TRAIN,
        "rl_sync.addons.tune.tune",
        "Predicts the speed and the staleness of schedules from a short run, and chooses one.",
        "Reads how long everything took in a run, simulates it under other schedules, and prints"
        " those that no other one beats in both trainer steps an hour and staleness. It writes"
        " their picture, the predicted timeline of the chosen one, and a config file with its"
        " settings. It can also predict other numbers of explorers, networks and devices. The run"
        " may have any mode; twenty trainer steps are enough.",
        [
            _run("Work directory of the run whose times are used."),
            _flag(
                "within",
                "STEPS",
                "Maximum staleness that the chosen schedule may allow.",
                "2",
                type=_FROM_0,
            ),
            _flag(
                "explorers", "NUMBERS", "Numbers of explorers: 1,3, or 1:64 to double.", "the run's"
            ),
            _flag("modes", "MODES", "Modes to try, separated by commas.", "all"),
            _flag("intervals", "NUMBERS", "Trainer steps between publications.", "1,2,4"),
            _flag("offsets", "NUMBERS", "Batches ahead, in the mode custom.", "2,4"),
            _flag("bounds", "NUMBERS", "Maximum staleness, with latest pulls.", "1,2,4,8"),
            _flag("groups", "NUMBERS", "Groups that a trainer step trains on.", "the run's"),
            _flag("transfers", "TRANSFERS", "Weight transfers, separated by commas.", "the run's"),
            _flag(
                "network",
                "BANDWIDTH,LATENCY",
                "Link from the trainer, such as 1Gbit/s,20ms, in place of the measured times.",
            ),
            _flag(
                "devices",
                "FACTORS",
                "Speed of other devices, such as trainer:2,explorer:4; apart: each role has its"
                " own.",
                "the run's",
            ),
            _flag(
                "work",
                "FILE",
                "Times to use in place of the run's: work.json of an earlier output, edited.",
                type=_FILE,
            ),
            _flag("steps", "N", "Trainer steps whose time is given.", "the run's", type=_FROM_1),
            _flag("seeds", "N", "Simulated runs of each schedule.", "2", type=_FROM_1),
            _flag(
                "out",
                "DIRECTORY",
                "Directory of the files.",
                "tune in the work directory",
                type=_FOLDER,
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
        _TRAIN,
        "rl_sync.addons.clusters.render",
        "Writes the files that start a run on a cluster.",
        "Places the processes of a run on machines, and writes a batch script of Slurm, a JobSet of"
        " Kubernetes, a task of SkyPilot, or a command that uses ssh: files to read, change and"
        " submit. It prints their names and the commands that submit them. It starts nothing.",
        [
            _config(),
            _flag(
                "to",
                "ENGINE",
                "System that starts the run: slurm, jobset, skypilot or hosts, for ssh.",
                type=click.Choice(["slurm", "jobset", "skypilot", "hosts"]),
                required=True,
            ),
            _flag(
                "out",
                "DIRECTORY",
                "Directory of the files.",
                "the current directory",
                type=_FOLDER,
            ),
            _flag("overwrite", "", "Replaces files of earlier calls."),
            _flag("check", "", "Has the cluster check the file (slurm, jobset)."),
            _flag(
                "nodes",
                "NODES",
                "Number of nodes (slurm, skypilot), or addresses separated by commas (hosts).",
                "as many as the run takes",
            ),
            _flag("gpus-per-node", "N", "GPUs of each node (slurm, hosts).", "CPUs", type=_FROM_1),
            _flag(
                "processes-per-node",
                "N",
                "Maximum number of processes on a node (slurm, skypilot, hosts).",
                "1 on CPUs",
                type=_FROM_1,
            ),
            _flag(
                "port",
                "PORT",
                "Port at which machines join the run (slurm, jobset, skypilot).",
                "29400",
                type=click.IntRange(1, 65535),
            ),
            _flag("time", "TIME", "Time limit of the job (slurm).", "24:00:00"),
            _flag("partition", "NAME", "Partition (slurm).", "the cluster's"),
            _flag(
                "trainer-partition",
                "NAME",
                "Partition of the trainer's nodes, which makes the job heterogeneous (slurm).",
                "that of the explorers",
            ),
            _flag(
                "trainer-gpus-per-node",
                "N",
                "GPUs of each node of the trainer's partition (slurm).",
                "as many as others",
                type=_FROM_1,
            ),
            _flag("account", "NAME", "Account to charge (slurm).", "the user's"),
            _flag("modules", "NAMES", "Modules to load, separated by commas (slurm).", "none"),
            _flag(
                "environment",
                "PATH",
                "Virtual environment, or a script to source (slurm).",
                "none",
                type=_FOLDER,
            ),
            _flag("container-image", "IMAGE", "Image for pyxis (slurm).", "no container"),
            _flag("image", "IMAGE", "Container image (jobset)."),
            _flag("volume-claim", "NAME", "Claim of the volume of the work directory (jobset)."),
            _flag(
                "accelerator",
                "NAME",
                "Devices: nvidia-h100-80gb or tpu-v5-lite-podslice (jobset), H100:8 (skypilot).",
                "CPUs",
            ),
            _flag(
                "topology",
                "SHAPE",
                "TPU slice of each program: 2x4, or trainer:4x4,explorer:2x4 (jobset).",
            ),
            _flag("queue", "NAME", "Local queue of Kueue (jobset).", "none"),
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
        _TRAIN,
        "rl_sync.launcher.commands.chaos",
        "Trains while processes are killed at random, and audits the records.",
        "Makes a run, and kills or stops a random process of it every now and then. At the end it"
        " checks that every step and every group is accounted for, and prints the share of time"
        " that led to steps that count. It shows whether your setup survives what a cluster does"
        " to it.",
        [
            _config(),
            _flag("seed", "SEED", "Seed of the draws.", "0", type=_FROM_0),
            _flag("every", "SECONDS", "Mean time between two disturbances.", "30", type=float),
            _flag(
                "kinds",
                "KINDS",
                "Kinds of disturbance: kill; pause, for five seconds; stop, for good; or starve, a"
                " tenth of a core for ten seconds. Separated by commas.",
                "kill",
                shell_complete=_offer("kill", "kill,pause", "kill,pause,stop,starve"),
            ),
            _flag(
                "windows",
                "WINDOWS",
                "Activities in which to strike, such as snapshot,sync.",
                "any time",
                shell_complete=_offer("train,snapshot,sync", "rollout,score,insert"),
            ),
            _flag("roles", "NAMES", "Processes that may be disturbed.", "all"),
            _flag("compare", "", "Makes an undisturbed run after it, and compares the digests."),
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
        _TRAIN,
        "rl_sync.launcher.commands.sweep",
        "Trains with several seeds or values, one run after another, and compares the runs.",
        "Makes a run for each combination of seeds and values, in a directory named after it. The"
        " same command again skips finished runs and resumes the others. At the end it prints the"
        " table of `compare`. --index makes only one of the runs, for array jobs.",
        [
            _config(),
            _flag("seeds", "SEEDS", "Seeds: 0:4 for 0 to 3, or 0,5,7.", "the config's"),
            _flag(
                "set",
                "SETTING=VALUES",
                "Values of a setting, separated by commas; repeat the flag for more settings. Put a"
                " value that contains a comma in quotation marks.",
                multiple=True,
            ),
            _flag("parallel", "N", "Number of runs at the same time.", "1", type=_FROM_1),
            _flag(
                "index", "NUMBER", "Makes only this run; --list shows the numbers.", type=_FROM_0
            ),
            _flag("list", "", "Lists the runs with their numbers and states, and starts none."),
            _flag("into", "DIRECTORY", "Directory of the runs.", "runs/sweep-NAME", type=_FOLDER),
            _CURVES,
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
    Command(
        "timeline",
        _LOOK,
        "rl_sync.launcher.commands.timeline",
        "Draws the activity of each role over time, also while the run goes on.",
        "Reads the spans that each role of a run has recorded. It writes timeline.png and"
        " timeline.svg, and trace.json for https://ui.perfetto.dev, and prints their paths.",
        [
            _run(),
            _flag(
                "out", "DIRECTORY", "Directory of the files.", "the work directory", type=_FOLDER
            ),
            _flag(
                "steps",
                "FIRST:LAST",
                "Trainer steps to draw, such as 3:8, 3: or all.",
                "six early ones",
                shell_complete=_offer("all"),
            ),
        ],
        {
            "--workdir=runs/first": "Draw some steps of a run.",
            "--workdir=runs/first --steps=1:8 --out=pictures": "Draw the first eight, elsewhere.",
        },
        "docs/using.md",
    ),
    Command(
        "rollouts",
        _LOOK,
        "rl_sync.launcher.commands.rollouts",
        "Shows completions and their rewards, also while the run goes on.",
        "Prints a line for each of the last steps, and the run's alarms. With --step it prints the"
        " groups of that step. With other flags it prints the completions that match them, with"
        " rewards and advantages.",
        [
            _run(),
            _flag("step", "STEP", "Trainer step, or FIRST:LAST.", "all"),
            _flag(
                "prompt",
                "ID",
                "Number of a problem, whose completions are shown.",
                "all",
                type=_FROM_0,
            ),
            _flag(
                "lease", "ID", "Lease of a group, whose completions are shown.", "all", type=_FROM_0
            ),
            _flag(
                "reward", "LEAST:GREATEST", "Bounds of the reward, such as 0:0.5, 1: or :0.", "all"
            ),
            _flag(
                "grep",
                "PATTERN",
                "Regular expression that a prompt or a completion contains.",
                "all",
            ),
            _flag(
                "sort",
                "FIELD",
                "Order: step, reward, advantage, tokens, staleness or logprob; a - in front puts"
                " the greatest first.",
                "the order of training",
                type=click.Choice([*_ORDERS, *(f"-{key}" for key in _ORDERS)]),
            ),
            _flag(
                "limit",
                "N",
                "Maximum number of steps, groups or completions.",
                "20 steps, 40 groups or 10 completions",
                type=_FROM_1,
            ),
            _flag("json", "", "Prints all matching records as JSON lines."),
        ],
        {
            "--workdir=runs/first": "The last steps.",
            "--workdir=runs/first --step=12 --sort=reward --grep='1.*='": "The worst first.",
            "--workdir=runs/first --reward=:0 --json": "All failures, for a script.",
        },
        "docs/rollouts.md",
        statuses={1: "No record matches."},
    ),
    Command(
        "page",
        _LOOK,
        "rl_sync.launcher.commands.page",
        "Serves a page about runs: curves, rollouts, the timeline, live or later.",
        "Prints the address of a page for the browser, and serves it until Ctrl-C. The page shows"
        " curves of one run or several, the roles and whom they wait for, completions, and the"
        " timeline. It only reads files, so it does not disturb a run.",
        [
            _run("Work directory of a run, or of several, separated by commas.", required=False),
            _HOST,
            _PORT,
        ],
        {
            "runs/first": "Watch a run in the browser.",
            "runs/first runs/second --port=8080": "Compare two, at a known port.",
        },
        "docs/page.md",
        takes="RUN RUN …",
    ),
    Command(
        "report",
        _LOOK,
        "rl_sync.launcher.commands.report",
        "Writes a page about a run to send or print: results, curves, timeline, completions.",
        "Writes a self-contained HTML page, and prints its path. The page needs neither a server"
        " nor a network. The run may still go on, may have failed, or may be a copy from another"
        " machine.",
        [
            _run(),
            _flag(
                "out", "FILE", "File of the page.", "report.html in the work directory", type=_FILE
            ),
        ],
        {
            "--workdir=runs/first": "Write the page beside the run's records.",
            "--workdir=runs/first --out=first.html": "Write it elsewhere.",
        },
        "docs/report.md",
    ),
    Command(
        "compare",
        _LOOK,
        "rl_sync.launcher.commands.compare",
        "Compares runs: settings, results, curves; seeds of one config are one group.",
        "Prints a table: the settings that differ, accuracies with their 95 % intervals, reward,"
        " staleness beside its bound, speed, and which runs ended with the same parameters. For"
        " runs that differ only in their seeds, it gives the least, the median and the greatest"
        " value. Runs of different lengths are compared up to the end of the shortest.",
        [
            _flag(
                "at",
                "",
                "Unit in which runs are cut to the same length; end compares the ends of all.",
                "steps",
                type=click.Choice(["steps", "tokens", "seconds", "end"]),
            ),
            _CURVES,
            _flag("json", "", "Prints everything as JSON."),
        ],
        {
            "runs/first runs/second": "Compare two runs.",
            "runs/first runs/second --out=compared.html": "With curves, as a page.",
            "runs/first runs/second --at=tokens": "After the same number of tokens.",
        },
        "docs/report.md",
        takes="RUN RUN …",
    ),
    Command(
        "eval",
        _USE,
        "rl_sync.launcher.commands.evaluate",
        "Measures a policy on held-out problems: a run's snapshot, or a checkpoint.",
        "Generates completions of held-out problems, judges them, and prints accuracies with"
        " their 95 % intervals. The problems come from --config, or else from the run's config."
        " All completions and judgements are written to a file.",
        [
            _config("the run's"),
            _run("Work directory of the run whose snapshot is measured.", required=False),
            _flag(
                "model",
                "DIRECTORY",
                "Checkpoint to measure in place of a run's snapshot, as for model.path.",
                type=_FOLDER,
            ),
            _SNAPSHOT,
            _flag("out", "FILE", "File of the completions.", "evaluation.json", type=_FILE),
        ],
        {
            "--workdir=runs/first --step=best --config.evaluation.samples=8": (
                "The best snapshot, with eight completions of each problem."
            ),
            "--config=gsm8k --model=DIRECTORY": "A checkpoint, on the problems of a config.",
        },
        "docs/evaluation.md",
        own_config=True,
    ),
    Command(
        "export",
        _USE,
        "rl_sync.launcher.commands.export",
        "Writes a run's policy as a checkpoint that transformers loads.",
        "Writes a snapshot of a run as a new directory with config.json, safetensors files and the"
        " tokenizer. Adapters are merged into the weights, unless --adapter asks for them alone, in"
        " a directory that PEFT loads. The model must be of a family that `models` lists.",
        [
            _run(),
            _flag(
                "to", "DIRECTORY", "New directory for the checkpoint.", type=_FOLDER, required=True
            ),
            _flag(
                "dtype",
                "",
                "Type of the stored parameters.",
                "the type of the imported checkpoint, or float32",
                type=click.Choice(["float32", "bfloat16", "float16"]),
            ),
            _flag("adapter", "", "Writes the adapters alone, in the form of PEFT."),
            _SNAPSHOT,
        ],
        {
            "--workdir=runs/first --to=exported": "The newest snapshot.",
            "--workdir=runs/first --step=best --to=exported --dtype=bfloat16": "The best one.",
            "--workdir=runs/first --adapter --to=adapters": "The adapters of the newest snapshot.",
        },
        "docs/how-to/model.md",
    ),
    Command(
        "follow",
        _USE,
        "rl_sync.launcher.commands.follow",
        "Keeps a checkpoint of transformers up to date with a run.",
        "Reads each version that a run publishes with sync.transfer=checkpoint: with sync.delta=on"
        " only what changed, once it has the first one. Each version's digest is verified before"
        " DIRECTORY, a link, moves to it. Ctrl-C ends it. Other programs can follow a run likewise:"
        " the files are described.",
        [
            _flag(
                "from",
                "PATH",
                "Directory of the run's weights, such as runs/first/weights, gs://bucket/… or s3://bucket/….",
                type=_FOLDER,
                required=True,
            ),
            _flag("to", "DIRECTORY", "The checkpoint.", type=_FOLDER, required=True),
            _flag("once", "", "Ends after the first version."),
            _flag(
                "idle",
                "SECONDS",
                "Ends after this time without a new version.",
                "never",
                type=click.FloatRange(min=0),
            ),
        ],
        {
            "--from=runs/first/weights --to=served": "Follow a run on this machine.",
            "--from=gs://bucket/first --to=served --once": "Take one version from a bucket.",
        },
        "docs/sync.md",
    ),
    Command(
        "reward",
        _USE,
        "rl_sync.launcher.commands.reward",
        "Serves the config's reward to runs, here or elsewhere.",
        "Judges completions for runs that give its address as reward.addresses, with workers and"
        " limits of its own. Runs and the server share a secret, whose file is created if it is"
        " missing. Ctrl-C ends the server.",
        [
            _config(),
            _HOST,
            _PORT,
            _flag(
                "secret-path",
                "FILE",
                "Secret that the runs share.",
                "reward.secret_path",
                type=_FILE,
            ),
        ],
        {
            "--config=arithmetic --port=8100 --secret-path=~/reward.secret": "Serve at a port.",
            "--config=arithmetic --config.reward.workers=8 --secret-path=reward.secret": (
                "With eight workers."
            ),
        },
        "docs/reward-servers.md",
        statuses=_OF_SERVERS,
    ),
    Command(
        "teacher",
        _USE,
        "rl_sync.launcher.commands.teacher",
        "Serves a teacher to runs that are distilled from it.",
        "Loads teacher.path of a run's config, a checkpoint or another run's policy, on"
        " this machine's devices, and answers runs that give its address as teacher.address. Runs"
        " and the server share a secret, whose file is created if it is missing. Ctrl-C ends the"
        " server.",
        [
            _config(),
            _HOST,
            _PORT,
            _flag(
                "secret-path",
                "FILE",
                "Secret that the runs share.",
                "teacher.secret_path",
                type=_FILE,
            ),
        ],
        {
            "--config=arithmetic --config.teacher.path=runs/better --secret-path=teacher.secret": (
                "Serve a run's policy."
            ),
        },
        "docs/reward-servers.md",
        statuses=_OF_SERVERS,
    ),
    Command(
        "tinker",
        _USE,
        "rl_sync.addons.tinker.serve_tinker",
        "Serves Tinker's API: clients train adapters of a checkpoint, and sample.",
        "Loads a checkpoint on this machine's devices, and answers programs that use the package"
        " tinker: their training clients have adapters and an optimizer each, and their sampling"
        " clients use the engine. Checkpoints of adapters are directories of PEFT. Ctrl-C ends the"
        " server.",
        [
            _flag(
                "model",
                "PATH",
                "Checkpoint to serve: a directory, or a hub name in the local cache. Clients give"
                " it as the base model.",
                type=_FOLDER,
                required=True,
            ),
            _flag(
                "out",
                "DIRECTORY",
                "Directory of checkpoints and records.",
                "tinker in the current directory",
                type=_FOLDER,
            ),
            _HOST,
            _PORT,
            _flag(
                "key-path",
                "FILE",
                "Key that clients must have as TINKER_API_KEY; it begins with tml-.",
                "any, for this machine alone",
                type=_FILE,
            ),
            _flag(
                "dtype",
                "DTYPE",
                "Dtype of the base model.",
                "float32",
                type=click.Choice(["float32", "bfloat16", "float16"]),
            ),
            _flag("models", "N", "Maximum number of models at once.", "4", type=_FROM_1),
            _flag("rows", "N", "Maximum number of data of a pass.", "1024", type=_FROM_1),
            _flag(
                "length",
                "TOKENS",
                "Maximum number of tokens of a row, prompt and completion together.",
                "2048, or the model's",
                type=_FROM_1,
            ),
            _flag("slots", "N", "Completions that are decoded at once.", "16", type=_FROM_1),
            _flag(
                "batch-tokens",
                "TOKENS",
                "Tokens of a pass that are computed at once.",
                "4096",
                type=_FROM_1,
            ),
            _flag(
                "snapshots",
                "N",
                "Sampling clients whose weights are in memory.",
                "16",
                type=_FROM_1,
            ),
            _flag(
                "samplers",
                "N",
                "Processes that hold the base model and only sample, while the server's own trains;"
                " without them the two take turns.",
                "0",
                type=_FROM_0,
            ),
        ],
        {"--model=checkpoints/SmolLM2-135M": "Serve a checkpoint to this machine."},
        "docs/tinker.md",
        statuses={**_OF_SERVERS, 1: "All samplers were lost; the message says why."},
    ),
    Command(
        "settings",
        _LIST,
        "rl_sync.launcher.commands.lists",
        "Lists all settings and their meanings, or those that match a PATTERN.",
        "Prints each setting with its values, its default and its meaning. A pattern is one word or"
        " several, each of which begins a word of the name, the meaning or the choices. Any setting"
        " is changed by --config.NAME=VALUE, or in a config file.",
        [_JSON],
        {"": "All.", "learning rate": "Those with both words.", "sync --json": "For a script."},
        "docs/settings.md",
        takes="a PATTERN",
    ),
    *(
        Command(
            name,
            _LIST,
            "rl_sync.launcher.catalogs",
            one.summary,
            "Prints a line for each. A pattern is one word or several, each of which begins a word"
            f" of the name or the text. If only one {one.noun} matches, all about it is printed.",
            [_JSON],
            {
                "": "All.",
                one.example: "Those with a word.",
                f"{one.example} --json": "The same, for a script.",
            },
            one.page,
            takes="a PATTERN",
        )
        for name, one in CATALOGS.items()
    ),
    Command(
        "help",
        _LEARN,
        "",
        "Explains a command, or lists all of them.",
        "Prints what a command does, its flags with their defaults, examples, and its exit"
        " statuses. `COMMAND --help` prints the same.",
        [],
        {"": "All commands.", "plan": "One command."},
        "docs/using.md",
        takes="a COMMAND",
    ),
    Command(
        "completion",
        _LEARN,
        "rl_sync.launcher.completing",
        "Prints a script that lets the Tab key complete commands, flags, settings and paths.",
        "Prints the script of a shell: bash, zsh or fish. Its first lines say how to install it. It"
        " completes `rl-sync`, `python -m rl_sync`, and `python -m launcher` in the clone.",
        [],
        {"bash": "For bash.", "zsh": "For zsh.", "fish": "For fish."},
        "docs/using.md",
        takes="a SHELL",
    ),
]

PROGRAM = LauncherProgram(_COMMANDS)
COMMANDS = PROGRAM.commands
