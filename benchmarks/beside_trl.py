"""Runs of a real model beside TRL's `GRPOTrainer`: seconds a step, and accuracy over time.

    uv run --script benchmarks/real_model.py smollm2
    python benchmarks/beside_trl.py --model=smollm2 [--seeds=0,1,2] [--steps=6] [--every=0]

Both sides start from the same checkpoint, and train adapters of the same rank with the same batch,
learning rate and number of updates on the same problems, in turns, seed by seed. Ours is a whole
run of configs/smollm2.py, whose explorer generates while the trainer computes; TRL's is one process
in an environment of its own, which `uv` makes, and is left out if that cannot be made. A step's
seconds are those from one step's end to the next one's; the first two steps, which compile, do not
count. `--every` measures accuracy on the held-out problems every so many steps; without it nothing
interrupts the steps.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import uv

from rl_sync.configs import smollm2
from rl_sync.records.metrics import read_metrics
from rl_sync.roles.assembly import wiring
from rl_sync.settings.config_reading import read_settings
from rl_sync.settings.run_settings import RunSettings

ROOT = Path(__file__).resolve().parents[1]
PEER = Path(__file__).parent / "peers" / "trl_peer.py"
UNCOUNTED = 2


class Curve(NamedTuple):
    """Measurements of one side.

    Attributes:
      secs: the seconds of each step that counts.
      accuracy: the accuracy by number of steps.
    """

    secs: list[float]
    accuracy: dict[int, float]


def main() -> None:
    """Measures both sides in turns, and prints a line for each seed."""
    arguments = _arguments()
    is_possible, ratios = has_environment(), []
    for seed in arguments.seeds:
        flags = {
            "model.path": str(arguments.model.resolve()),
            "seed": seed,
            "trainer.steps": arguments.steps,
            "evaluation.every_steps": arguments.every,
        }
        if not arguments.every:  # A run evaluates at its start and its end anyway.
            flags["evaluation.problems"] = 1
        sides = {"rl_sync": ours(flags)}
        if is_possible:
            sides["TRL"] = trl(_settings(flags), arguments.every)
            middle = [statistics.median(side.secs) for side in sides.values()]
            ratios.append(middle[0] / middle[1])
        for name, side in sides.items():
            least, most = min(side.secs), max(side.secs)
            print(
                f"seed {seed}, {name}: {least:.1f} / {statistics.median(side.secs):.1f} /"
                f" {most:.1f} s a step; accuracy after steps: {side.accuracy}",
                flush=True,
            )
    if not ratios:
        print("# TRL cannot be measured: uv cannot make its environment.")
        return
    print(
        f"ratio of seconds a step, rl_sync to TRL: {min(ratios):.2f} /"
        f" {statistics.median(ratios):.2f} / {max(ratios):.2f}"
    )


def ours(flags: dict[str, Any]) -> Curve:
    """Makes a run of ours.

    Raises:
      SystemExit: it failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        workdir = Path(folder, "run")
        given = [f"--config.{name}={value}" for name, value in flags.items()]
        command = [sys.executable, "-m", "launcher", "--config=configs/smollm2.py", *given]
        command += [f"--config.workdir={workdir}", "--config.evaluation.by=trainer"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"The run failed:\n{done.stdout}\n{done.stderr}")
        ends = [one["time"] for one in read_metrics(workdir, "rl")]
        evaluations = read_metrics(workdir, "evaluation")
    secs = [after - before for before, after in itertools.pairwise(ends)]
    accuracy = {one["step"]: one["accuracy"] for one in evaluations}
    return Curve(secs[UNCOUNTED - 1 :], accuracy if flags["evaluation.every_steps"] else {})


def has_environment() -> bool:
    """Makes the environment of TRL's side; returns False if that is not possible."""
    command = [uv.find_uv_bin(), "sync", "--quiet", "--script", str(PEER)]
    return not subprocess.run(command, stdout=sys.stderr, check=False).returncode


def trl(settings: RunSettings, every: int) -> Curve:
    """Makes a run of TRL's.

    Raises:
      SystemExit: it failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder, "job.json")
        job.write_text(json.dumps(_job(settings, every)))
        command = [uv.find_uv_bin(), "run", "--quiet", "--script", str(PEER), str(job)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"TRL failed:\n{done.stderr[-2000:]}")
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]
    secs = [one["secs"] for one in said if "secs" in one]
    return Curve(
        secs[UNCOUNTED:], {one["step"]: one["accuracy"] for one in said if "accuracy" in one}
    )


def _settings(flags: dict[str, Any]) -> RunSettings:
    config = smollm2.get_config()
    config.update_from_flattened_dict({**flags, "workdir": "nowhere"})
    return read_settings(config.to_dict())


def _job(settings: RunSettings, every: int) -> dict[str, Any]:
    """Returns the description of a run for TRL's side."""
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


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="what real_model.py made")
    parser.add_argument(
        "--seeds", type=lambda text: [*map(int, text.split(","))], default=[0, 1, 2]
    )
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--every", type=int, default=0, help="steps between evaluations")
    return parser.parse_args()


if __name__ == "__main__":
    main()
