"""`sweep`: runs all combinations of some values, one after another or at the same time."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from rl_sync.api.screen import OutputScreen, Plain
from rl_sync.api.started_run import Run, RunError, start_on
from rl_sync.launcher.command import Arguments, Flags, program
from rl_sync.launcher.commands import compare
from rl_sync.launcher.processes import sweep_grid
from rl_sync.launcher.processes.sweep_grid import Combination
from rl_sync.records.metric_catalog import EVALUATION
from rl_sync.records.metrics import read_metrics
from rl_sync.settings.records import ConfigError
from rl_sync.workdir import Workdir

_FAILED = 1
_LOOK_SECS = 0.2
_TELL_SECS = 30.0
_DEVICES = "CUDA_VISIBLE_DEVICES"


class _Kept:
    """A screen that writes the output of one of several runs to a file."""

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", buffering=1)

    def show(self, line: str) -> None:
        """See `OutputScreen`."""
        self._file.write(f"{line}\n")

    def close(self) -> None:
        """See `OutputScreen`."""
        self._file.close()


def execute(arguments: Arguments) -> int:
    """Runs a sweep, or one of its runs; returns the exit status.

    Raises:
      ConfigError: a combination is invalid; then nothing is started.
    """
    assert arguments.config is not None
    flags = arguments.flags
    combinations = sweep_grid.combinations(arguments.config, flags)
    if "list" in flags:
        for number, one in enumerate(combinations):
            print(f"{number}  {one.name}  {sweep_grid.state(one)}  {one.workdir}")
        return 0
    chosen = combinations
    if "index" in flags:
        chosen = [_indexed(combinations, flags["index"])]
    sweep = _Sweep(chosen, flags.get("parallel", 1), alone="index" in flags)
    with _interrupted_by_sigterm():
        failed = sweep.run()
    if sweep.signal:
        print(f"Stopped. The same command goes on: {len(sweep.waiting)} runs are left.")
        return 128 + sweep.signal
    if "index" not in flags:
        _compare(combinations, flags)
    return _FAILED if failed else 0


def _indexed(combinations: list[Combination], index: int) -> Combination:
    last = len(combinations) - 1
    if index > last:
        raise ConfigError(
            f"--index={index} must be at most {last}: the sweep has {last + 1} runs, which --list"
            " names."
        )
    return combinations[index]


def _compare(combinations: list[Combination], flags: Flags) -> None:
    """Prints the table of all runs with records."""
    begun = [str(one.workdir) for one in combinations if Workdir(one.workdir).metrics.is_file()]
    if len(begun) < 2:
        return
    print()
    compare.show({name: flags[name] for name in ("out",) if name in flags}, begun)
    into = shlex.quote(os.path.relpath(combinations[0].workdir.parent))
    print(f"\nAgain, with curves: {program()} compare {into}/*/ --out=sweep.html")


class _Sweep:
    """The runs of a sweep: waiting, in progress, or failed.

    Args:
      combinations: the runs; finished ones are skipped.
      parallel: the number of runs at the same time.
      alone: whether there is only one run, which prints its output itself.
    """

    def __init__(self, combinations: list[Combination], parallel: int, *, alone: bool):
        self._count, self._alone = len(combinations), alone
        self._numbers = {one.name: at for at, one in enumerate(combinations, 1)}
        self.waiting = list(combinations)
        self.signal = 0
        self._slots: list[tuple[Combination, Run, float] | None] = [None] * parallel
        self._failed: list[str] = []

    def run(self) -> list[str]:
        """Makes all runs; returns the names of the failed ones."""
        for one in [one for one in self.waiting if sweep_grid.state(one) == sweep_grid.FINISHED]:
            self._tell(one, f"is finished: {_accuracy(one)}")
            self.waiting.remove(one)
        told = time.monotonic()
        try:
            while self.waiting or any(self._slots):
                self._fill()
                self._reap()
                if time.monotonic() - told > _TELL_SECS and not self._alone:
                    told = time.monotonic()
                    for one, *_ in filter(None, self._slots):
                        self._tell(one, _progress(one))
                time.sleep(_LOOK_SECS)
        except KeyboardInterrupt as interrupt:
            self.signal = getattr(interrupt, "number", signal.SIGINT)
            self._stop()
        return self._failed

    def _fill(self) -> None:
        """Starts a run in each free slot."""
        for slot, held in enumerate(self._slots):
            if held is None and self.waiting:
                one = self.waiting[0]
                self._tell(one, f"starts, in {one.workdir}")
                screen: OutputScreen = Plain() if self._alone else _Kept(one.output)
                try:
                    run = start_on(
                        screen,
                        one.config,
                        workdir=one.workdir,
                        variables=_devices(slot, len(self._slots)),
                    )
                except (ConfigError, RunError) as error:
                    self._fail(one, error)
                else:
                    self._slots[slot] = one, run, time.monotonic()
                self.waiting.remove(one)

    def _reap(self) -> None:
        """Frees the slots of runs that have ended."""
        for slot, held in enumerate(self._slots):
            if held is None or held[1].is_running:
                continue
            one, run, since = held
            self._slots[slot] = None
            try:
                run.wait()
            except (ConfigError, RunError) as error:
                self._fail(one, error)
            else:
                took = time.monotonic() - since
                self._tell(one, f"has finished after {took:,.0f} s: {_accuracy(one)}")

    def _fail(self, one: Combination, error: Exception) -> None:
        self._failed.append(one.name)
        self._tell(one, f"FAILED: {error}")

    def _stop(self) -> None:
        """Lets the runs in progress save and end; a second Ctrl-C ends the wait."""
        going = [held for held in self._slots if held is not None]
        for one, run, _ in going:
            self._tell(one, "is asked to save and end")
            run.stop()
        for one, run, _ in going:
            with contextlib.suppress(ConfigError, RunError):
                run.wait()
            self.waiting.append(one)

    def _tell(self, one: Combination, said: str) -> None:
        print(f"[{self._numbers[one.name]}/{self._count}] {one.name} {said}", flush=True)


def _accuracy(one: Combination) -> str:
    """Describes the first and the last held-out accuracy of a run."""
    lines = read_metrics(one.workdir, EVALUATION)
    values = [line["accuracy"] for line in lines if line.get("accuracy") is not None]
    if not values:
        return "no accuracy was measured"
    return f"held-out accuracy {values[0]:.1%} → {values[-1]:.1%}"


def _progress(one: Combination) -> str:
    """Describes the phase, the step and the reward of a run."""
    lines = [line for line in read_metrics(one.workdir) if line["phase"] != EVALUATION]
    if not lines:
        return "is starting"
    last, reward = lines[-1], lines[-1].get("reward_mean")
    said = f"{last['phase']} step {last['step']}"
    return said if reward is None else f"{said}, reward {reward:.3g}"


def _devices(slot: int, slots: int) -> dict[str, str]:
    """Returns the GPUs of one of several simultaneous runs: an equal share of the visible ones."""
    ids = [one for one in os.environ.get(_DEVICES, "").split(",") if one]
    share = len(ids) // slots
    return {_DEVICES: ",".join(ids[slot * share : (slot + 1) * share])} if share else {}


class _Terminated(KeyboardInterrupt):
    """Raised for SIGTERM, which a job's scheduler sends before its time limit."""

    number = signal.SIGTERM


@contextlib.contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
