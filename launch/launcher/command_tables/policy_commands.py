"""Commands that use a policy or a reward."""

from __future__ import annotations

import click

from rl_sync.launcher.command import Command
from rl_sync.launcher.command_tables.flags import (
    FILE,
    FOLDER,
    FROM_0,
    FROM_1,
    HOST,
    PORT,
    config_flag,
    flag,
    offered,
    run_flag,
)

_GROUP = "Use a policy or a reward"
_SNAPSHOT = flag(
    "step",
    "STEP",
    "Trainer step of the snapshot, or best.",
    "the newest",
    shell_complete=offered("best"),
)
_OF_SERVERS = {
    0: "Ctrl-C or SIGTERM ended it while it served.",
    130: "Ctrl-C ended it before it served.",
}

POLICY_COMMANDS = [
    Command(
        "eval",
        _GROUP,
        "rl_sync.launcher.commands.evaluate",
        "Measures a policy on held-out problems: a run's snapshot, or a checkpoint.",
        "Generates completions of held-out problems, judges them, and prints accuracies with"
        " their 95 % intervals. The problems come from --config, or else from the run's config."
        " All completions and judgements are written to a file.",
        [
            config_flag("the run's"),
            run_flag("Work directory of the run whose snapshot is measured.", required=False),
            flag(
                "model",
                "DIRECTORY",
                "Checkpoint to measure in place of a run's snapshot, as for model.path.",
                type=FOLDER,
            ),
            _SNAPSHOT,
            flag("out", "FILE", "File of the completions.", "evaluation.json", type=FILE),
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
        _GROUP,
        "rl_sync.launcher.commands.export",
        "Writes a run's policy as a checkpoint that transformers loads.",
        "Writes a snapshot of a run as a new directory with config.json, safetensors files and the"
        " tokenizer. Adapters are merged into the weights, unless --adapter asks for them alone, in"
        " a directory that PEFT loads. The model must be of a family that `models` lists.",
        [
            run_flag(),
            flag(
                "to", "DIRECTORY", "New directory for the checkpoint.", type=FOLDER, required=True
            ),
            flag(
                "dtype",
                "",
                "Type of the stored parameters.",
                "the type of the imported checkpoint, or float32",
                type=click.Choice(["float32", "bfloat16", "float16"]),
            ),
            flag("adapter", "", "Writes the adapters alone, in the form of PEFT."),
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
        _GROUP,
        "rl_sync.launcher.commands.follow",
        "Keeps a checkpoint of transformers up to date with a run.",
        "Reads each version that a run publishes with sync.transfer=checkpoint: with sync.delta=on"
        " only what changed, once it has the first one. Each version's digest is verified before"
        " DIRECTORY, a link, moves to it. Ctrl-C ends it. Other programs can follow a run likewise:"
        " the files are described.",
        [
            flag(
                "from",
                "PATH",
                "Directory of the run's weights, such as runs/first/weights, gs://bucket/… or s3://bucket/….",
                type=FOLDER,
                required=True,
            ),
            flag("to", "DIRECTORY", "The checkpoint.", type=FOLDER, required=True),
            flag("once", "", "Ends after the first version."),
            flag(
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
        _GROUP,
        "rl_sync.launcher.commands.reward",
        "Serves the config's reward to runs, here or elsewhere.",
        "Judges completions for runs that give its address as reward.addresses, with workers and"
        " limits of its own. Runs and the server share a secret, whose file is created if it is"
        " missing. Ctrl-C ends the server.",
        [
            config_flag(),
            HOST,
            PORT,
            flag(
                "secret-path",
                "FILE",
                "Secret that the runs share.",
                "reward.secret_path",
                type=FILE,
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
        _GROUP,
        "rl_sync.launcher.commands.teacher",
        "Serves a teacher to runs that are distilled from it.",
        "Loads teacher.path of a run's config, a checkpoint or another run's policy, on"
        " this machine's devices, and answers runs that give its address as teacher.address. Runs"
        " and the server share a secret, whose file is created if it is missing. Ctrl-C ends the"
        " server.",
        [
            config_flag(),
            HOST,
            PORT,
            flag(
                "secret-path",
                "FILE",
                "Secret that the runs share.",
                "teacher.secret_path",
                type=FILE,
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
        _GROUP,
        "rl_sync.addons.tinker.serve_tinker",
        "Serves Tinker's API: clients train adapters of a checkpoint, and sample.",
        "Loads a checkpoint on this machine's devices, and answers programs that use the package"
        " tinker: their training clients have adapters and an optimizer each, and their sampling"
        " clients use the engine. Checkpoints of adapters are directories of PEFT. Ctrl-C ends the"
        " server.",
        [
            flag(
                "model",
                "PATH",
                "Checkpoint to serve: a directory, or a hub name in the local cache. Clients give"
                " it as the base model.",
                type=FOLDER,
                required=True,
            ),
            flag(
                "out",
                "DIRECTORY",
                "Directory of checkpoints and records.",
                "tinker in the current directory",
                type=FOLDER,
            ),
            HOST,
            PORT,
            flag(
                "key-path",
                "FILE",
                "Key that clients must have as TINKER_API_KEY; it begins with tml-.",
                "any, for this machine alone",
                type=FILE,
            ),
            flag(
                "dtype",
                "DTYPE",
                "Dtype of the base model.",
                "float32",
                type=click.Choice(["float32", "bfloat16", "float16"]),
            ),
            flag("models", "N", "Maximum number of models at once.", "4", type=FROM_1),
            flag("rows", "N", "Maximum number of data of a pass.", "1024", type=FROM_1),
            flag(
                "length",
                "TOKENS",
                "Maximum number of tokens of a row, prompt and completion together.",
                "2048, or the model's",
                type=FROM_1,
            ),
            flag("slots", "N", "Completions that are decoded at once.", "16", type=FROM_1),
            flag(
                "batch-tokens",
                "TOKENS",
                "Tokens of a pass that are computed at once.",
                "4096",
                type=FROM_1,
            ),
            flag(
                "snapshots",
                "N",
                "Sampling clients whose weights are in memory.",
                "16",
                type=FROM_1,
            ),
            flag(
                "samplers",
                "N",
                "Processes that hold the base model and only sample, while the server's own trains;"
                " without them the two take turns.",
                "0",
                type=FROM_0,
            ),
        ],
        {"--model=checkpoints/SmolLM2-135M": "Serve a checkpoint to this machine."},
        "docs/tinker.md",
        statuses={**_OF_SERVERS, 1: "All samplers were lost; the message says why."},
    ),
]
