"""A long run while its processes die, its link is cut and its disk is full: what holds, what grows.

    python benchmarks/long_run.py [--hours=24] [--every=300] [--attempt=3600] [--seed=0]
        [--config=configs/arithmetic.py] [--set=NAME=VALUE …] [--workdir=runs/long_run]
        [--disk=8192] [--results=runs/long_run.jsonl]
    python benchmarks/long_run.py --report [--results=…]

The run has two explorers at their own pace (`multi_explorer`) and Reverb's server, with evaluations
and snapshots. The second explorer joins from a machine of its own: a network namespace behind a
line (see `long_lines`). The work directory lies in a file system of `--disk` MiB in memory, or with
0 where `--workdir` is, which is then never full. It takes root.

About every `--every` seconds comes a disturbance, in turns of three: a signal to a process at any
time, a signal in a window (see `chaos`), and something that happens to the machine: the line is cut
for 5 to 60 s, or the disk is full for 20 s. At most `--attempt` seconds after its start the
launcher is stopped: asked to, or killed. Then, and when the run has failed, the same command goes
on with it. In each attempt one process is killed before the run begins. The last attempt is told to
end after some more steps, and is not disturbed. Then the records are audited.

The command itself may be stopped and given again, also with more hours: they are the seconds that
attempts took. Each attempt, disturbance and sample of the processes adds a line to the results.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import errno
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
from long_lines import Line, LineNetwork, long_lines
from made_runs import join_words, joined_flags, launched, settings_of

from rl_sync.checkpoints.audit import audit
from rl_sync.launcher.processes.disturbance import (
    KILL,
    KINDS,
    WINDOWS,
    Disturbance,
    DisturbancePlan,
    windows_open,
)
from rl_sync.records.json_lines import JsonLinesWriter, read_json_lines
from rl_sync.records.metric_catalog import RL
from rl_sync.records.metrics import MetricLines
from rl_sync.records.run_records import RunRecords
from rl_sync.role_names import MASTER
from rl_sync.roles.restart_policy import REPLAY
from rl_sync.workdir import Workdir

ROOT = Path(__file__).resolve().parents[1]
PORT, JOINING = 7501, "explorer2"
SETTINGS = {
    "sync.mode": "multi_explorer",
    "explorer.count": 2,
    "replay.backend": "reverb",
    "optimizer.schedule": "constant",
    "evaluation.every_steps": 100,
    "checkpoint.every_steps": 50,
    "launch.restarts": 10**6,
    "launch.wait_secs": 120.0,  # After which a process that was stopped for good is killed.
    "trainer.steps": 10**6,
}
LAST_STEPS = 30
"""Steps of the last attempt, which nothing disturbs."""
SAMPLE_SECS = 30.0
LINE = Line(0.001, 1e9)
CUT, FULL = "cut", "full"
_CUT_SECS, _FULL_SECS = (5.0, 60.0), 20.0
_EARLY_SECS = (2.0, 12.0)
_END_SECS, _LOOK_SECS = 300.0, 0.5
_SAID = 1500
MISTAKE = 2
"""Status of a launcher that a person's mistake kept from starting."""
_SERVERS = (MASTER, REPLAY)
_SERVER_ENDS = ("reverb_server.py", ".embedded_server")
Lines = list[dict[str, Any]]


class LongRun:
    """The run, over all of its attempts.

    Attributes:
      workdir: its work directory.
      lines: where attempts, disturbances and samples are recorded.
      processes: the launcher and the process that joins, while an attempt runs.
    """

    def __init__(self, arguments: argparse.Namespace, lines: JsonLinesWriter) -> None:
        self.workdir = arguments.workdir / "run"
        self.workdir.parent.mkdir(parents=True, exist_ok=True)
        self.lines, self._arguments = lines, arguments
        self._launcher: subprocess.Popen[str]
        self.processes: list[psutil.Process] = []
        self._over, self._reading = threading.Event(), threading.Lock()
        self._metrics, self._began_at = MetricLines(self.workdir), 0

    def attempt(self, number: int, secs: float, last_step: int | None) -> int:
        """Makes an attempt; returns the launcher's status.

        Args:
          secs: seconds after which it is stopped.
          last_step: trainer step after which the run ends, without disturbances before; None for
            an attempt that is stopped.
        """
        drawn = random.Random(f"{self._arguments.seed} {number}")
        began, stopped_by = time.time(), None
        output = self.workdir.parent / f"attempt{number}.log"
        with contextlib.ExitStack() as stack:
            self._began_at = self.step()
            stack.enter_context(windows_open())
            network = stack.enter_context(long_lines(2, LINE, number))
            self._start(network, output, last_step)
            self._over.clear()
            stack.enter_context(self._beside(self._sample))
            if last_step is None:
                for disturbance in self._disturbances(drawn.randrange(10**9)):
                    stack.enter_context(disturbance)
                stack.enter_context(self._beside(self._befall, network, drawn))
                stack.enter_context(self._beside(self._strike_early, drawn))
            try:
                self._launcher.wait(secs)
            except subprocess.TimeoutExpired:
                stopped_by = drawn.choice((signal.SIGTERM, signal.SIGKILL))
                self._launcher.send_signal(stopped_by)
            self._over.set()
            self._end()
        said = output.read_text(errors="replace")[-_SAID:]
        self._note(
            "attempt",
            number=number,
            secs=round(time.time() - began, 1),
            stopped_by=None if stopped_by is None else signal.Signals(stopped_by).name,
            status=self._launcher.returncode,
            step=self.step(),
            said=said,
        )
        return self._launcher.returncode

    def _start(self, network: LineNetwork, output: Path, last_step: int | None) -> None:
        """Starts the launcher, and the process of the second explorer's machine."""
        first, second = network.machines
        flags = {**SETTINGS, **joined_flags(first, PORT, [JOINING]), "workdir": self.workdir}
        if last_step is not None:
            flags["trainer.steps"] = last_step
        given = [f"--config={self._arguments.config}"]
        given += [f"--config.{name}={value}" for name, value in flags.items()]
        given += [f"--config.seed={self._arguments.seed}"]
        given += [f"--config.{one}" for one in self._arguments.set]
        join = join_words(JOINING, first, PORT)
        with output.open("w") as file:
            self._launcher = launched(first, given, file)
            joining = launched(second, join, file)
        self.processes = [psutil.Process(one.pid) for one in (self._launcher, joining)]

    def _end(self) -> None:
        """Waits until all processes of the attempt have ended, and kills those that do not."""
        family = [child for one in self.processes for child in _children(one)]
        try:
            self._launcher.wait(_END_SECS)
        except subprocess.TimeoutExpired:
            self._note("hang", process="launcher")
            self._launcher.kill()
            self._launcher.wait()
        with contextlib.suppress(psutil.Error):  # It has ended by itself.
            self.processes[1].terminate()
        _, living = psutil.wait_procs([self.processes[1], *family], _END_SECS)
        for one in living:
            self._note("hang", process=" ".join(_command(one))[-200:])
            with contextlib.suppress(psutil.Error):
                one.kill()

    def step(self) -> int:
        """Returns the last trainer step of the records; 0 before the first."""
        with self._reading:
            while self._metrics.refresh():
                pass
            lines = self._metrics.of_phase(RL)
        return int(lines[-1]["step"]) if lines else 0

    def roles(self) -> dict[str, psutil.Process]:
        """Returns the processes of the roles, by name."""
        found = {}
        for child in (child for one in self.processes for child in _children(one)):
            words = _command(child)
            for word in words:
                if word.startswith("--role="):
                    found[word.removeprefix("--role=")] = child
            if any(word.endswith(_SERVER_ENDS) for word in words):
                found[REPLAY] = child  # The last one is the server; `uv` comes before.
        return found

    def _victims(self) -> dict[str, int]:
        """Returns the process groups that may be disturbed: none before the run has begun."""
        return self._groups() if self.step() > self._began_at else {}

    def _groups(self) -> dict[str, int]:
        groups = {}
        for name, process in self.roles().items():
            with contextlib.suppress(ProcessLookupError):
                groups[name] = os.getpgid(process.pid)
        return groups

    def _disturbances(self, seed: int) -> Iterator[Disturbance]:
        """Returns those at any time, and those in windows."""
        every_secs = 3 * self._arguments.every
        kinds = (KILL, KILL, *KINDS)
        for number, windows in enumerate(((), tuple(WINDOWS))):
            plan = DisturbancePlan(seed + number, every_secs, kinds, (), windows)
            # The work directory's own files move when the run begins anew.
            yield Disturbance(Workdir(self.workdir.parent), self._victims, plan)

    def _befall(self, network: LineNetwork, drawn: random.Random) -> None:
        """Cuts the line and fills the disk, now and then."""
        while not self._over.wait(3 * self._arguments.every * drawn.uniform(0.5, 1.5)):
            what = drawn.choice((CUT, FULL)) if self._arguments.disk else CUT
            secs = drawn.uniform(*_CUT_SECS) if what == CUT else _FULL_SECS
            self._note(what, secs=round(secs, 1))
            if what == CUT:
                network.cut(1, secs)
            else:
                with filled(self.workdir.parent):
                    self._over.wait(secs)

    def _strike_early(self, drawn: random.Random) -> None:
        """Kills a process before the run begins: no server, whose death then ends the run."""
        if self._over.wait(drawn.uniform(*_EARLY_SECS)):
            return
        until = time.monotonic() + _END_SECS
        while time.monotonic() < until and not self._over.wait(_LOOK_SECS):
            groups = {n: g for n, g in self._groups().items() if n not in _SERVERS}
            if groups:
                name = drawn.choice(sorted(groups))
                self._note("early", process=name)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(groups[name], signal.SIGKILL)
                return

    def _sample(self) -> None:
        """Records the processes and the work directory, now and then."""
        while not self._over.wait(SAMPLE_SECS):
            own = {"launcher": self.processes[0], "join": self.processes[1], **self.roles()}
            figures = {}
            for name, process in own.items():
                with contextlib.suppress(psutil.Error):
                    figures[name] = [
                        round(process.memory_info().rss / 1e6),
                        process.num_threads(),
                        process.num_fds(),
                    ]
            self._note(
                "sample", step=self.step(), processes=figures,
                files=sizes(self.workdir),
            )  # fmt: skip

    @contextlib.contextmanager
    def _beside(self, work: Callable[..., None], *arguments: object) -> Iterator[None]:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _note(self, what: str, **values: Any) -> None:
        self.lines.write({"what": what, "time": round(time.time(), 1), **values})


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@contextlib.contextmanager
def filled(folder: Path) -> Iterator[None]:
    """Fills the file system of a folder."""
    ballast = folder / "ballast"
    try:
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            for piece in (1 << 20, 1 << 12):
                try:
                    while file.write(bytes(piece)) == piece:
                        pass
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
        yield
    finally:
        ballast.unlink(missing_ok=True)


def mount(folder: Path, mib: int) -> None:
    """Mounts a file system of some size at a folder, if none is there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    if not os.path.ismount(folder):
        command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "none", str(folder)]
        subprocess.run(command, check=True)


def sizes(workdir: Path) -> dict[str, int]:
    """Returns the bytes of what is in a work directory, by name."""
    found: collections.Counter[str] = collections.Counter()
    for folder, _, names in os.walk(workdir):
        place = Path(folder).relative_to(workdir)
        for name in names:
            with contextlib.suppress(OSError):  # It has just been removed.
                found[(place / name).parts[0]] += os.lstat(Path(folder, name)).st_size
    return dict(found)


def judged(workdir: Path) -> dict[str, Any]:
    """Audits a finished run; returns the faults, what outages cost by role, and the alarms."""
    settings = settings_of(workdir)
    records = RunRecords(workdir)
    began = time.monotonic()
    records.read(rollouts=False)
    summary = records.summary
    assert summary is not None
    lost = collections.defaultdict[str, float](float)
    for outage in summary.lost.outages:
        lost[outage.role] += outage.lost_secs
    return {
        "faults": audit(settings, workdir),
        "steps": records.steps,
        "staleness": [records.staleness_max, records.staleness_bound],
        "accuracy": [one.value for _, one in records.accuracies][:: max(1, records.steps // 1000)],
        "effective_share": round(summary.lost.effective_share, 4),
        "outages": dict(collections.Counter(one.role for one in summary.lost.outages)),
        "lost_secs": {role: round(secs, 1) for role, secs in lost.items()},
        "disturbances": [
            {name: one.get(name) for name in ("kind", "process", "window")}
            for one in read_json_lines(Workdir(workdir.parent).chaos)
        ],
        "alarms": [
            [one.alarm.name, one.first_step, one.last_step, one.alarm.text]
            for one in records.periods
        ],
        "reading_secs": round(time.monotonic() - began, 1),
    }


def report(lines: Lines) -> list[str]:
    """Writes the attempts, the disturbances, the memory over time, and the end."""
    attempts = [one for one in lines if one["what"] == "attempt"]
    samples = [one for one in lines if one["what"] == "sample"]
    hours = sum(one["secs"] for one in attempts) / 3600
    steps = attempts[-1]["step"] if attempts else 0
    rows = [f"{len(attempts)} attempts, {hours:.1f} hours, {steps:,} trainer steps.", ""]
    if samples:
        rows += [*_memory(samples), "", *_growth(samples), ""]
    events = collections.Counter(one["what"] for one in lines)
    told = {CUT: "cuts of the line", FULL: "full disks", "early": "kills before the run began"}
    rows.append(", ".join(f"{events[what]} {words}" for what, words in told.items()) + ".")
    rows.append(f"Processes that had to be killed at the end of an attempt: {events['hang']}.")
    for end in [one for one in lines if one["what"] == "end"]:
        rows += ["", *_ended(end)]
    return rows


def _memory(samples: Lines) -> list[str]:
    """Writes the resident memory of each process: medians over tenths of the samples."""
    names = [*dict.fromkeys(name for one in samples for name in one["processes"])]
    tenths = [samples[len(samples) * n // 10 : len(samples) * (n + 1) // 10] for n in (0, 4, 9)]
    rows = ["| resident MB | first tenth | fifth | last | greatest | threads | open files |"]
    rows.append("|---" * 7 + "|")
    for name in sorted(names):
        own = [one["processes"][name] for one in samples if name in one["processes"]]
        cells = [name]
        for tenth in tenths:
            some = [one["processes"][name][0] for one in tenth if name in one["processes"]]
            cells.append(f"{statistics.median(some):,.0f}" if some else "")
        cells += [f"{max(one[number] for one in own):,}" for number in range(3)]
        rows.append("| " + " | ".join(cells) + " |")
    return rows


def _growth(samples: Lines) -> list[str]:
    """Writes the sizes of files, over time; those that never reach a megabyte are left out."""
    some = [samples[(len(samples) - 1) * n // 4] for n in range(5)]
    rows = ["| MB | begin | quarter | half | three quarters | end | greatest |", "|---" * 7 + "|"]
    steps = [f"{one['step']:,}" for one in (*some, samples[-1])]
    rows.append(f"| trainer steps | {' | '.join(steps)} |")
    greatest: collections.Counter[str] = collections.Counter()
    for one in samples:
        greatest |= collections.Counter(one["files"])
    for name, size in greatest.most_common():
        if size > 1e6:
            cells = [f"{one['files'].get(name, 0) / 1e6:,.1f}" for one in some]
            rows.append(f"| `{name}` | {' | '.join(cells)} | {size / 1e6:,.1f} |")
    return rows


def _ended(end: dict[str, Any]) -> list[str]:
    """Writes what the audit of the finished run found."""
    kinds = collections.Counter(one["kind"] for one in end["disturbances"])
    struck = collections.Counter(one["process"] for one in end["disturbances"])
    windows = collections.Counter(one["window"] for one in end["disturbances"])
    del windows[None]
    lost = [f"{role} {secs:,.0f} s in {end['outages'][role]}" for role, secs in
            sorted(end["lost_secs"].items())]  # fmt: skip
    rows = [
        f"Signals: {_counts(kinds)}; to {_counts(struck)}; in windows: {_counts(windows)}.",
        f"{end['effective_share']:.1%} of the time led to steps that count; lost by outages of"
        f" {', '.join(lost)}.",
        "Greatest staleness {:.0f}, bound {}.".format(*end["staleness"]),
        f"Faults of the records: {' '.join(end['faults']) or 'none.'}",
        "Alarms:",
    ]
    return [*rows, *(f"- steps {a:,} to {b:,}: {text}" for _, a, b, text in end["alarms"])]


def _counts(found: collections.Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(found.items())) or "none"


def main() -> None:
    """Goes on with the run for as long as it is told, ends it, and reports."""
    arguments = _arguments()
    if not arguments.report:
        if os.geteuid():
            sys.exit("This takes root, for a file system and a network of its own.")
        if arguments.disk:
            mount(arguments.workdir, arguments.disk)
        with contextlib.closing(JsonLinesWriter(arguments.results)) as writer:
            _go_on(arguments, writer)
    elif not arguments.results.exists():
        sys.exit(f"--results={arguments.results}: there is no such file.")
    print("\n".join(report(read_json_lines(arguments.results))))


def _go_on(arguments: argparse.Namespace, writer: JsonLinesWriter) -> None:
    known = [one for one in read_json_lines(arguments.results) if one["what"] == "attempt"]
    spent, number = float(sum(one["secs"] for one in known)), len(known)
    run = LongRun(arguments, writer)
    while spent < 3600 * arguments.hours:
        began = time.monotonic()
        status = run.attempt(number, min(arguments.attempt, 3600 * arguments.hours - spent), None)
        if status == MISTAKE:
            sys.exit(read_json_lines(arguments.results)[-1]["said"])
        number, spent = number + 1, spent + time.monotonic() - began
    if run.attempt(number, _END_SECS + arguments.attempt, run.step() + LAST_STEPS):
        sys.exit("The last attempt failed, which nothing disturbed: see the results.")
    writer.write({"what": "end", "time": time.time(), **judged(run.workdir)})


def _above_0(text: str) -> float:
    if not float(text) > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return float(text)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--config", default="configs/arithmetic.py")
    for name, default, what in (
        ("hours", 24.0, "hours of all attempts together"),
        ("every", 300.0, "seconds between disturbances"),
        ("attempt", 3600.0, "seconds of an attempt"),
    ):
        parser.add_argument(f"--{name}", type=_above_0, default=default, help=what)
    parser.add_argument("--disk", type=int, default=8192, help="MiB of the work directory")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="SETTING=VALUE")
    parser.add_argument("--workdir", type=Path, default=ROOT / "runs" / "long_run")
    parser.add_argument("--results", type=Path, default=ROOT / "runs" / "long_run.jsonl")
    parser.add_argument("--report", action="store_true", help="only report the results so far")
    return parser.parse_args()


if __name__ == "__main__":
    main()
