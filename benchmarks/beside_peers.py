"""A real model beside TRL and Tunix: accuracy over seconds, CPU seconds and steps.

    uv run --script benchmarks/real_model.py smollm2
    python benchmarks/beside_peers.py --model=smollm2 [--seeds=0,1,2] [--steps=32] [--every=8]
        [--longer=1] [--sides=rl_sync,trl,trl_bfloat16,trl_compiled,tunix]
        [--results=runs/beside_peers.jsonl]
    python benchmarks/beside_peers.py --report [--results=…]

All sides start from the same checkpoint, and train adapters of the same rank with the same batch,
constant learning rate and number of updates on the same problems, in turns. Ours is a whole
run of configs/smollm2.py, whose explorer generates while the trainer computes. TRL's
`GRPOTrainer` and Tunix's `GRPOLearner` are each a process in an environment of its own, which `uv`
makes, and are left out if that cannot be made. `trl_bfloat16` and `trl_compiled` are TRL with
`bf16` and `torch_compile`, which the documentation of transformers recommends on CPUs: the first
is faster only where the CPU has units for bfloat16, the second hardly, after minutes. With
`--longer=3` our run has three times as many steps, and takes about as long as TRL's. Each run adds
a line to the results, and a run that has a line is not repeated.

Seconds and CPU seconds count from the start of the command to the end of a step, with all that
comes before: the start of the processes, compilation, and evaluations of the held-out problems
every few steps (`--every`; 0 for none). CPU seconds are those of all processes. A step's seconds
are those from one step's end to the next one's; steps that follow an evaluation and the first two
steps, which compile, do not count.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import uv
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from rl_sync.configs import smollm2
from rl_sync.records.json_lines import JsonLinesWriter, read_json_lines
from rl_sync.records.metrics import read_metrics
from rl_sync.records.span_reader import read_spans
from rl_sync.records.spans import SpanKind
from rl_sync.records.summary import of_kind
from rl_sync.roles.assembly import wiring
from rl_sync.settings.config_reading import read_settings
from rl_sync.settings.run_settings import RunSettings

ROOT = Path(__file__).resolve().parents[1]
OURS = "rl_sync"


class Peer(NamedTuple):
    """Another side: its script in peers/, and settings beside those of the job."""

    script: str
    arguments: dict[str, Any]

    @property
    def path(self) -> Path:
        """Path of the script."""
        return Path(__file__).parent / "peers" / self.script


PEERS = {
    "trl": Peer("trl_peer.py", {}),
    "trl_bfloat16": Peer("trl_peer.py", {"bf16": True}),
    "trl_compiled": Peer("trl_peer.py", {"torch_compile": True}),
    "tunix": Peer("tunix_grpo_peer.py", {}),
}
UNCOUNTED = 2
_COLOURS = dict(
    zip((OURS, *PEERS), ("#57A773", "#D9383A", "#E0A030", "#8E4EC6", "#3F5F7F"), strict=True)
)
_EVERY_SECS = 0.5


class Followed(NamedTuple):
    """A command that has ended.

    Attributes:
      began: its start, in Unix seconds.
      times, cpu: moments in seconds since then, and the CPU seconds of its processes until then.
      output: its standard output.
    """

    began: float
    times: list[float]
    cpu: list[float]
    output: str

    def cpu_at(self, times: Sequence[float]) -> list[float]:
        """Returns the CPU seconds at other moments, in between by straight lines."""
        return [round(float(x), 2) for x in np.interp(times, self.times, self.cpu)]


def main() -> None:
    """Makes the runs that have no result yet, then reports."""
    arguments = _arguments()
    writer = JsonLinesWriter(arguments.results)  # Creates the file if it is missing.
    known = {(one["side"], one["seed"]) for one in read_json_lines(arguments.results)}
    wanted = [*itertools.product(arguments.seeds, arguments.sides)]
    cases = [(side, seed) for seed, side in wanted if (side, seed) not in known]
    if not arguments.report:
        if arguments.model is None:
            sys.exit("--model=DIRECTORY names what benchmarks/real_model.py makes.")
        for name in {side for side, _ in cases if side in PEERS}:
            if not _has_environment(PEERS[name]):
                print(f"# {name} cannot be measured: uv cannot make its environment.")
                cases = [(side, seed) for side, seed in cases if side != name]
        for side, seed in cases:
            writer.write(_run(side, seed, arguments))
    writer.close()
    lines = read_json_lines(arguments.results)
    print("\n".join(report(lines)))
    if lines and any(len(one["accuracy"]) > 1 for one in lines):
        picture = arguments.results.with_suffix(".png")
        figure(lines).savefig(picture, dpi=120, metadata={"Software": None})
        print(f"\n{picture}")


def _run(side: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Makes a run; returns its line of the results."""
    flags = {
        "model.path": str(arguments.model.resolve()),
        "seed": seed,
        "trainer.steps": arguments.steps * (arguments.longer if side == OURS else 1),
        "evaluation.every_steps": arguments.every,
        "optimizer.warmup_updates": 0,  # Others have none.
    }
    if not arguments.every:  # A run evaluates at its start and its end anyway.
        flags["evaluation.problems"] = 1
    given = {"side": side, "seed": seed, "every": arguments.every}
    if side == OURS:
        curve = _ours(flags)
    else:
        curve = _theirs(PEERS[side], _settings(flags), arguments.every)
    ends = curve["secs"]
    print(f"# seed {seed}, {side}: {len(ends)} steps in {ends[-1]:.0f} s", flush=True)
    return given | curve


def _ours(flags: dict[str, Any]) -> dict[str, Any]:
    """Makes a run of ours.

    Raises:
      SystemExit: it failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        workdir = Path(folder, "run")
        given = [f"--config.{name}={value}" for name, value in flags.items()]
        command = [sys.executable, "-m", "launcher", "--config=configs/smollm2.py", *given]
        command += [f"--config.workdir={workdir}", "--config.evaluation.by=trainer"]
        followed = _follow(command)
        trained = of_kind(read_spans(workdir), SpanKind.TRAIN)
        evaluations = read_metrics(workdir, "evaluation")
    ends = [round(span.end_secs - followed.began, 3) for span in trained]
    accuracy = [[one["step"], one["accuracy"]] for one in evaluations]
    return {
        "secs": ends,
        "cpu_secs": followed.cpu_at(ends),
        "accuracy": accuracy if flags["evaluation.every_steps"] else [],
        "versions": {name: version(name) for name in ("jax", "jaxlib")},
    }


def _has_environment(peer: Peer) -> bool:
    """Makes the environment of another side; returns False if that is not possible."""
    command = [uv.find_uv_bin(), "sync", "--quiet", "--script", str(peer.path)]
    return not subprocess.run(command, stdout=sys.stderr, check=False).returncode


def _theirs(peer: Peer, settings: RunSettings, every: int) -> dict[str, Any]:
    """Makes a run of another side.

    Raises:
      SystemExit: it failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder, "job.json")
        job.write_text(json.dumps({**_job(settings, every), "arguments": peer.arguments}))
        command = [uv.find_uv_bin(), "run", "--quiet", "--script", str(peer.path), str(job)]
        followed = _follow(command)
    said = [json.loads(line) for line in followed.output.splitlines() if line.startswith('{"')]
    ends = [round(one["ended"] - followed.began, 3) for one in said if "ended" in one]
    return {
        "secs": ends,
        "cpu_secs": followed.cpu_at(ends),
        "accuracy": [[one["step"], one["accuracy"]] for one in said if "accuracy" in one],
        "versions": next(one["versions"] for one in said if "versions" in one),
    }


def _follow(command: Sequence[str]) -> Followed:
    """Runs a command, and adds up the CPU seconds of its processes meanwhile.

    Raises:
      SystemExit: it failed.
    """
    began = time.time()
    times, cpu = [0.0], [0.0]
    known: dict[psutil.Process, float] = {}

    def look() -> None:
        try:
            process = psutil.Process(running.pid)
            family = [process, *process.children(recursive=True)]
        except psutil.Error:
            return
        for one in family:
            try:
                spent = one.cpu_times()
            except psutil.Error:  # It has just ended.
                continue
            known[one] = spent.user + spent.system
        times.append(time.time() - began)
        cpu.append(sum(known.values()))

    def follow() -> None:
        while not ended.wait(_EVERY_SECS):
            look()

    ended = threading.Event()
    with tempfile.TemporaryFile("w+") as told:
        running = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=told, text=True
        )
        follower = threading.Thread(target=follow)
        follower.start()
        output, _ = running.communicate()
        ended.set()
        follower.join()
        told.seek(0)
        if running.returncode:
            sys.exit(f"{' '.join(command)} failed:\n{output[-2000:]}\n{told.read()[-2000:]}")
    return Followed(began, times, cpu, output)


def _settings(flags: dict[str, Any]) -> RunSettings:
    config = smollm2.get_config()
    config.update_from_flattened_dict({**flags, "workdir": "nowhere"})
    return read_settings(config.to_dict())


def _job(settings: RunSettings, every: int) -> dict[str, Any]:
    """Returns the description of a run for other sides."""
    task = wiring.load_task(settings)
    ends = wiring.sampling(settings, task).stop_ids
    lines = [i for i in range(task.tokenizer.vocab_size) if "\n" in task.tokenizer.decode([i])]
    held_out = task.held_out[: settings.evaluation.problems]
    problems = {
        name: [{"prompt": one.text, "answer": one.answer} for one in some]
        for name, some in (("train", task.train), ("held_out", held_out))
    }
    trainer, optimizer, lora = settings.trainer, settings.optimizer, settings.model.lora
    return {
        **problems,
        "every": every,
        "model": settings.model.path,
        "seed": settings.seed,
        "steps": trainer.steps,
        "rows": trainer.groups_per_step * trainer.group_size,
        "group_size": trainer.group_size,
        "max_new_tokens": task.max_completion_tokens,
        "end_ids": [*ends, *lines],
        "learning_rate": optimizer.learning_rate,
        "weight_decay": optimizer.weight_decay,
        "adam_b2": optimizer.b2,
        "max_grad_norm": optimizer.max_gradient_norm,
        "clip": settings.algorithm.clip_low,
        "rank": lora.rank,
        "alpha": lora.alpha,
    }


def report(lines: Sequence[dict[str, Any]]) -> list[str]:
    """Writes the seconds a step of all seeds, and the accuracy over steps and seconds."""
    rows = ["| | " + " | ".join(f"seed {seed}" for seed in _seeds(lines)) + " |"]
    rows.append("|---" * (1 + len(_seeds(lines))) + "|")
    for side in _sides(lines):
        of_seed = {one["seed"]: _spread(step_secs(one), ".1f") for one in _of(lines, side)}
        cells = [of_seed.get(seed, "") for seed in _seeds(lines)]
        rows.append(f"| {side}, s a step | {' | '.join(cells)} |")
    evaluated = [one for one in lines if len(one["accuracy"]) > 1]
    if not evaluated:
        return rows
    rows += ["", "| | steps | accuracy, % | seconds | CPU seconds |", "|---" * 5 + "|"]
    for side in _sides(evaluated):
        own = _of(evaluated, side)
        for number, (step, _) in enumerate(own[0]["accuracy"]):
            points = [_points(one)[number] for one in own if number < len(one["accuracy"])]
            secs, cpu, accuracy = zip(*points, strict=True)
            cells = [side, str(step), _spread(accuracy, ".1f")]
            cells += [_spread(secs, ".0f"), _spread(cpu, ".0f")]
            rows.append("| " + " | ".join(cells) + " |")
    if met := _until_its_end(evaluated):
        rows += ["", "| side | seed | its end, s | its accuracy, % | ours by then: steps, % |"]
        rows[-1] += " its CPU seconds | ours in as many: steps, % |"
        rows += ["|---" * 7 + "|", *met]
    return rows


def _until_its_end(lines: Sequence[dict[str, Any]]) -> list[str]:
    """Writes what our run of a seed had reached when another side's run of it ended."""
    ours = {one["seed"]: one for one in _of(lines, OURS)}
    rows = []
    for side in _sides(lines):
        for one in _of(lines, side) if side != OURS else []:
            if (own := ours.get(one["seed"])) is None:
                continue
            *ends, accuracy = _points(one)[-1]
            cells = [side, str(one["seed"]), f"{ends[0]:.0f}", f"{accuracy:.1f}"]
            for clock, end in enumerate(ends):
                evaluated = zip(own["accuracy"], _points(own), strict=True)
                (step, _), point = [both for both in evaluated if both[1][clock] <= end][-1]
                cells += [f"{end:.0f}"] * clock + [f"{step}, {point[-1]:.1f}"]
            rows.append("| " + " | ".join(cells) + " |")
    return rows


def step_secs(line: dict[str, Any]) -> list[float]:
    """Returns the seconds of the steps of a run that count."""
    every = line["every"]
    return [
        after - before
        for step, (before, after) in enumerate(itertools.pairwise(line["secs"]), 2)
        if step > UNCOUNTED and not (every and (step - 1) % every == 0)
    ]


def figure(lines: Sequence[dict[str, Any]]) -> Figure:
    """Draws the accuracy of each run over seconds and over CPU seconds, a colour for each side."""
    drawing = Figure(figsize=(11, 4), layout="constrained")
    FigureCanvasAgg(drawing)
    axes = drawing.subplots(1, 2, sharey=True)
    for axis, title, at in zip(axes, ("seconds", "CPU seconds"), (0, 1), strict=True):
        for side in _sides(lines):
            for number, one in enumerate(_of(lines, side)):
                points = _points(one)
                axis.plot(
                    [point[at] for point in points],
                    [point[2] for point in points],
                    color=_COLOURS[side],
                    label=None if number else side,
                    marker="o",
                    markersize=3,
                )
        axis.set_xlabel(f"{title} since the start of the command")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("held-out accuracy, %")
    axes[0].legend()
    return drawing


def _points(line: dict[str, Any]) -> list[tuple[float, float, float]]:
    """Returns the seconds, the CPU seconds and the accuracy in percent of each evaluation."""
    ends = [0.0, *line["secs"]], [0.0, *line["cpu_secs"]]
    return [(ends[0][step], ends[1][step], 100 * value) for step, value in line["accuracy"]]


def _of(lines: Sequence[dict[str, Any]], side: str) -> list[dict[str, Any]]:
    return sorted((one for one in lines if one["side"] == side), key=lambda one: one["seed"])


def _sides(lines: Sequence[dict[str, Any]]) -> list[str]:
    return [side for side in (OURS, *PEERS) if _of(lines, side)]


def _seeds(lines: Sequence[dict[str, Any]]) -> list[int]:
    return sorted({one["seed"] for one in lines})


def _spread(numbers: Sequence[float], form: str) -> str:
    three = (min(numbers), statistics.median(numbers), max(numbers)) if numbers else ()
    return " / ".join(format(number, form) for number in three)


def _chosen(text: str) -> list[str]:
    for side in text.split(","):
        if side not in (OURS, *PEERS):
            names = ", ".join((OURS, *PEERS))
            raise argparse.ArgumentTypeError(f"{side!r} is not one of {names}")
    return text.split(",")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, help="what real_model.py made")
    parser.add_argument(
        "--seeds", type=lambda text: [*map(int, text.split(","))], default=[0, 1, 2]
    )
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--every", type=int, default=8, help="steps between evaluations")
    parser.add_argument(
        "--longer", type=int, default=1, help="how many times as many steps of ours"
    )
    parser.add_argument("--sides", type=_chosen, default=[OURS, "trl"])
    parser.add_argument("--results", type=Path, default=ROOT / "runs" / "beside_peers.jsonl")
    parser.add_argument("--report", action="store_true", help="only report the results so far")
    return parser.parse_args()


if __name__ == "__main__":
    main()
