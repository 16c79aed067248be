"""`eval`: evaluates a policy, prints a table and writes a file of JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from rl_sync.cluster import compilation_cache
from rl_sync.cluster.user_errors import RunEndedError
from rl_sync.launcher.command import Arguments, Flags
from rl_sync.records.accuracy import describe_share, metric_names
from rl_sync.records.json_lines import JsonObject, plain
from rl_sync.roles.assembly import gpu_flags
from rl_sync.roles.evaluation.standalone_evaluation import Evaluation, PolicySource, evaluate
from rl_sync.settings.config_reading import read_settings
from rl_sync.settings.records import ConfigError, ConfigValues
from rl_sync.settings.run_settings import RunSettings

_WIDTH = 28


def execute(arguments: Arguments) -> int:
    """Evaluates a policy: see `run`."""
    config = arguments.config
    return run(None if config is None else config.to_dict(), arguments.flags)


def run(config: ConfigValues | None, flags: Flags) -> int:
    """Evaluates a policy, prints a table and writes a file; returns the exit status.

    Args:
      config: the config of the problems; None if the command line gives no config.
      flags: the flags `model`, `workdir`, `step` and `out`.

    Raises:
      ConfigError: there is no config or no such policy, or the file cannot be written.
    """
    model, workdir = flags.get("model"), flags.get("workdir")
    if config is None:
        raise ConfigError(
            "eval needs the problems of a config: give --config=FILE with --model=CHECKPOINT, or"
            " --workdir=RUN for a run's snapshot and its config."
        )
    if model is not None and workdir is not None:
        raise ConfigError(
            f"--model={model} and --workdir={workdir} are two policies: give one of them."
        )
    if flags.get("step") is not None and workdir is None:
        raise ConfigError("--step names a snapshot of a run: give --workdir=RUN, too.")
    settings = _settings(config, model)
    out = Path(flags.get("out") or "evaluation.json")
    if not out.parent.is_dir():
        raise ConfigError(f"--out={out} cannot be written: there is no directory {out.parent}.")
    gpu_flags.choose(settings.explorer_dtype, settings.quantization is not None, os.environ)
    compilation_cache.use(settings.launch.compilation_cache, os.environ)
    source = PolicySource(None if workdir is None else Path(workdir), flags.get("step"))
    try:
        done = evaluate(settings, source, lambda line: print(line, file=sys.stderr))
    except RunEndedError as error:
        raise ConfigError(str(error)) from error
    print(table(done, settings.evaluation.samples))
    out.write_text(json.dumps(_record(done, settings), indent=1) + "\n")
    print(f"\nAll completions and their judgements: {out}")
    return 0


def _settings(config: ConfigValues, model: str | None) -> RunSettings:
    values = {**config, "workdir": config.get("workdir") or ""}
    if model is not None:
        values["model"] = {**config["model"], "path": model}
    return read_settings(values)


def _record(done: Evaluation, settings: RunSettings) -> JsonObject:
    asked = dataclasses.asdict(settings.evaluation)
    sampling = {name: asked[name] for name in ("problems", "samples", "temperature", "category")}
    return {
        "time": time.time(),
        "policy": done.policy,
        "seed": settings.seed,
        "evaluation": sampling,
        "metrics": plain(done.values),
        "generated_secs": done.generated_secs,
        "judged_secs": done.judged_secs,
        "completions": done.completions,
    }


def table(done: Evaluation, samples: int) -> str:
    """Returns the metrics, their confidence intervals and the categories as lines."""
    values = done.values
    several = f", {samples} completions each" if samples > 1 else ""
    lines = [
        f"{done.policy}: {values['problems']:.0f} held-out problems{several};"
        f" generated in {done.generated_secs:.1f} s, judged in {done.judged_secs:.1f} s",
        "",
        f"{'metric':<{_WIDTH}} {'value':>8}   95% interval",
        *(_row(values, name, name) for name in metric_names(samples) if name in values),
    ]
    if "score" in values:
        lines.append(f"{'mean score':<{_WIDTH}} {values['score']:>8.3f}")
    categories = [name.partition("/")[2] for name in values if name.startswith("problems/")]
    for category in categories:
        label = f"accuracy of {category}"
        row = _row(values, label, "accuracy", f"/{category}")
        score = values.get(f"score/{category}")
        scored = "" if score is None else f", mean score {score:.3f}"
        lines.append(f"{row}   {values[f'problems/{category}']:.0f} problems{scored}")
    for part in ("seen", "unseen"):
        if f"accuracy_{part}" in values:
            count = values[f"problems_{part}"]
            share = describe_share(values[f"accuracy_{part}"])
            lines.append(
                f"{f'accuracy, {part} prompts':<{_WIDTH}} {share:>8}   {count:.0f} problems"
            )
    if "unjudged" in values:
        lines.append(f"{values['unjudged']:.0f} completions could not be judged, and are left out.")
    return "\n".join(lines)


def _row(values: Mapping[str, float], label: str, name: str, suffix: str = "") -> str:
    value, low, high = (values[f"{name}{end}{suffix}"] for end in ("", "_low", "_high"))
    if math.isnan(value):
        return f"{label:<{_WIDTH}} {describe_share(value):>8}"
    return f"{label:<{_WIDTH}} {value:>8.1%}   {low:.1%} to {high:.1%}"
