"""Commands that show runs."""

from __future__ import annotations

import click

from rl_sync.launcher.command import Command
from rl_sync.launcher.command_tables.flags import (
    CURVES,
    FILE,
    FOLDER,
    FROM_0,
    FROM_1,
    HOST,
    PORT,
    flag,
    offered,
    run_flag,
)

_GROUP = "Look at runs"
_ORDERS = ("step", "reward", "advantage", "tokens", "staleness", "logprob")

LOOKING_COMMANDS = [
    Command(
        "timeline",
        _GROUP,
        "rl_sync.launcher.commands.timeline",
        "Draws the activity of each role over time, also while the run goes on.",
        "Reads the spans that each role of a run has recorded. It writes timeline.png and"
        " timeline.svg, and trace.json for https://ui.perfetto.dev, and prints their paths.",
        [
            run_flag(),
            flag("out", "DIRECTORY", "Directory of the files.", "the work directory", type=FOLDER),
            flag(
                "steps",
                "FIRST:LAST",
                "Trainer steps to draw, such as 3:8, 3: or all.",
                "six early ones",
                shell_complete=offered("all"),
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
        _GROUP,
        "rl_sync.launcher.commands.rollouts",
        "Shows completions and their rewards, also while the run goes on.",
        "Prints a line for each of the last steps, and the run's alarms. With --step it prints the"
        " groups of that step. With other flags it prints the completions that match them, with"
        " rewards and advantages.",
        [
            run_flag(),
            flag("step", "STEP", "Trainer step, or FIRST:LAST.", "all"),
            flag(
                "prompt",
                "ID",
                "Number of a problem, whose completions are shown.",
                "all",
                type=FROM_0,
            ),
            flag(
                "lease", "ID", "Lease of a group, whose completions are shown.", "all", type=FROM_0
            ),
            flag(
                "reward", "LEAST:GREATEST", "Bounds of the reward, such as 0:0.5, 1: or :0.", "all"
            ),
            flag(
                "grep",
                "PATTERN",
                "Regular expression that a prompt or a completion contains.",
                "all",
            ),
            flag(
                "sort",
                "FIELD",
                "Order: step, reward, advantage, tokens, staleness or logprob; a - in front puts"
                " the greatest first.",
                "the order of training",
                type=click.Choice([*_ORDERS, *(f"-{key}" for key in _ORDERS)]),
            ),
            flag(
                "limit",
                "N",
                "Maximum number of steps, groups or completions.",
                "20 steps, 40 groups or 10 completions",
                type=FROM_1,
            ),
            flag("json", "", "Prints all matching records as JSON lines."),
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
        _GROUP,
        "rl_sync.launcher.commands.page",
        "Serves a page about runs: curves, rollouts, the timeline, live or later.",
        "Prints the address of a page for the browser, and serves it until Ctrl-C. The page shows"
        " curves of one run or several, the roles and whom they wait for, completions, and the"
        " timeline. It only reads files, so it does not disturb a run.",
        [
            run_flag(
                "Work directory of a run, or of several, separated by commas.", required=False
            ),
            HOST,
            PORT,
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
        _GROUP,
        "rl_sync.launcher.commands.report",
        "Writes a page about a run to send or print: results, curves, timeline, completions.",
        "Writes a self-contained HTML page, and prints its path. The page needs neither a server"
        " nor a network. The run may still go on, may have failed, or may be a copy from another"
        " machine.",
        [
            run_flag(),
            flag(
                "out", "FILE", "File of the page.", "report.html in the work directory", type=FILE
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
        _GROUP,
        "rl_sync.launcher.commands.compare",
        "Compares runs: settings, results, curves; seeds of one config are one group.",
        "Prints a table: the settings that differ, accuracies with their 95 % intervals, reward,"
        " staleness beside its bound, speed, and which runs ended with the same parameters. For"
        " runs that differ only in their seeds, it gives the least, the median and the greatest"
        " value. Runs of different lengths are compared up to the end of the shortest.",
        [
            flag(
                "at",
                "",
                "Unit in which runs are cut to the same length; end compares the ends of all.",
                "steps",
                type=click.Choice(["steps", "tokens", "seconds", "end"]),
            ),
            CURVES,
            flag("json", "", "Prints everything as JSON."),
        ],
        {
            "runs/first runs/second": "Compare two runs.",
            "runs/first runs/second --out=compared.html": "With curves, as a page.",
            "runs/first runs/second --at=tokens": "After the same number of tokens.",
        },
        "docs/report.md",
        takes="RUN RUN …",
    ),
]
