"""`python -m launcher`: runs a config, plans it, draws its run, exports its policy, lists settings.

python -m launcher --config=configs/arithmetic.py [--config.sync.mode=asynchronous …]
python -m launcher plan --config=configs/arithmetic.py
python -m launcher timeline --workdir=runs/… [--steps=1:8]
python -m launcher rollouts --workdir=runs/… [--step=12] [--sort=reward] [--grep=…] [--json]
python -m launcher page --workdir=runs/…[,runs/…] [--host=…] [--port=…]
python -m launcher eval --workdir=runs/… [--step=best] [--config.evaluation.samples=8 …]
python -m launcher eval --config=configs/arithmetic.py --model=…
python -m launcher export --workdir=runs/… --to=… [--dtype=bfloat16] [--step=best]
python -m launcher reward --config=… [--host=…] [--port=…] [--secret-path=…]
python -m launcher settings [PATTERN]
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import logging
from ml_collections import ConfigDict

from launcher import command_line
from rl_sync.processes.loading import loading
from rl_sync.settings.records import ConfigError

FAILED = 1
MISTAKE = 2
INTERRUPTED = 130


def main(words: Sequence[str]) -> int:
    """Runs one command, without the program's name; returns the exit status."""
    if (text := command_line.information(words)) is not None:
        print(text)
        return 0
    sys.path.insert(0, os.getcwd())  # So that config files may import each other.
    logging.set_verbosity(logging.WARNING)  # Orbax logs every file that it reads.
    try:
        with loading():
            arguments = command_line.parse(words)
        return _execute(arguments)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return MISTAKE
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return INTERRUPTED


def _execute(arguments: command_line.Arguments) -> int:
    # What each command needs loads only once the command line is known to make sense.
    if arguments.command == "timeline":
        return _timeline(arguments.flags)
    if arguments.command == "rollouts":
        return _rollouts(arguments.flags)
    if arguments.command == "page":
        return _page(arguments.flags)
    if arguments.command == "export":
        return _export(arguments.flags)
    if arguments.command == "settings":
        return _settings(arguments.words)
    if arguments.command == "eval":
        return _evaluate(arguments.config, arguments.flags)
    assert arguments.config is not None
    config = arguments.config.to_dict()
    if arguments.command == "reward":
        return _reward(config, arguments.flags)
    return _plan(config, arguments.flags) if arguments.command == "plan" else _run(config)


def _run(config: Mapping[str, Any]) -> int:
    with loading():
        from launcher import run

    try:
        return run.start(config)
    except run.RunFailedError as error:
        print(f"\nThe run failed: {error}", file=sys.stderr)
        return FAILED


def _plan(config: Mapping[str, Any], flags: Mapping[str, str]) -> int:
    import jax

    jax.config.update("jax_platforms", "cpu")  # Shapes need no accelerator: leave it to others.
    from launcher import workdir
    from launcher.memory import describe_memory
    from launcher.plan import describe
    from launcher.programs import describe_programs
    from launcher.transfer import describe_transfer
    from rl_sync.aot.targets import target
    from rl_sync.runtime import wiring

    settings = workdir.settings_of(config)
    task = wiring.load_task(settings)
    wiring.check_reward(task)
    more = [
        lambda: describe(settings),
        task.describe,
        lambda: "\n".join([describe_memory(settings, task), *describe_transfer(settings, task)]),
        lambda: describe_programs(settings, task),
    ]
    if "workdir" in flags:
        from launcher.predicting import describe_predicted

        predicted = describe_predicted(settings, flags["workdir"])  # Or its error comes first.
        more.append(lambda: predicted)
    if "find" in flags:
        from launcher.finding import describe_found

        target(flags["find"])
        more.append(lambda: describe_found(settings, task, flags["find"]))
    if "compile" in flags:
        from launcher.compiling import describe_compiled

        target(flags["compile"]).devices()
        more.append(lambda: describe_compiled(settings, task, flags["compile"]))
    for number, text in enumerate(more):
        print("\n" * (number > 0) + text(), flush=True)
    return 0


def _timeline(flags: Mapping[str, str]) -> int:
    workdir = flags.get("workdir")
    if not workdir:
        raise ConfigError("timeline draws the run of a work directory: give --workdir=runs/….")
    if not os.path.isdir(workdir):
        raise ConfigError(f"--workdir={workdir} is not a directory.")

    from rl_sync.observe.timeline import draw_timeline, parse_steps
    from rl_sync.observe.trace import write_trace
    from rl_sync.workdir import Workdir

    out = flags.get("out") or workdir
    try:
        steps = parse_steps(flags["steps"]) if "steps" in flags else None
        pictures = draw_timeline(workdir, out, steps=steps)
        trace = write_trace(workdir, Workdir(out).trace)
    except (OSError, ValueError) as error:
        raise ConfigError(str(error)) from error
    for path in (*pictures, trace):
        print(path)
    return 0


def _rollouts(flags: Mapping[str, str]) -> int:
    from launcher import rollouts

    return rollouts.show(flags)


def _page(flags: Mapping[str, str]) -> int:
    from launcher import page

    return page.serve(flags)


def _export(flags: Mapping[str, str]) -> int:
    workdir, target = flags.get("workdir"), flags.get("to")
    if not workdir or not target:
        raise ConfigError("export writes the policy of a run: give --workdir=runs/… and --to=….")

    from rl_sync.runtime.export import export

    step = export(Path(workdir), Path(target), flags.get("dtype"), flags.get("step"))
    print(f"The policy after trainer step {step} is in {target}.")
    return 0


def _evaluate(config: ConfigDict | None, flags: Mapping[str, str]) -> int:
    from launcher import evaluate

    return evaluate.run(None if config is None else config.to_dict(), flags)


def _reward(config: Mapping[str, Any], flags: Mapping[str, str]) -> int:
    from launcher import reward

    return reward.serve(
        config, flags.get("host"), flags.get("port"), secret_path=flags.get("secret-path")
    )


def _settings(pattern: str) -> int:
    from launcher import listing

    print(listing.text(pattern))
    return 0


def run_from_command_line() -> None:
    """Entry point of `python -m launcher`."""
    # A terminal or a file of another encoding shows unknown characters as escapes.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        status = main(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # The reader of the output has closed it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = FAILED
    sys.exit(status)


if __name__ == "__main__":
    run_from_command_line()
