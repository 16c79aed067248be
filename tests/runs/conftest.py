"""Runs of real processes, shared by the tests that read their records."""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import filelock
import jax
import numpy as np
import pytest

from rl_sync.checkpoints.ledger import read_consumed, read_ledger
from rl_sync.checkpoints.snapshot_folder import SnapshotFolder
from rl_sync.checkpoints.snapshots import latest_snapshot
from rl_sync.records import metric_catalog
from rl_sync.records.json_lines import read_json_lines
from rl_sync.records.metrics import read_metrics
from rl_sync.records.run_records import RunRecords
from rl_sync.records.span_reader import read_spans
from rl_sync.records.spans import Span, SpanKind
from rl_sync.roles.assembly import wiring
from rl_sync.roles.assembly.build import trainer_of
from rl_sync.roles.assembly.parameters import parameters_of
from rl_sync.settings.config_reading import read_settings
from rl_sync.settings.run_settings import RunSettings
from rl_sync.workdir import Workdir
from tests.models.meshes import layout
from tests.records.judgement_lines import read_judgements
from tests.runs import in_memory, threads
from tests.runs.forks import POSSIBLE, server_with
from tests.runs.living import TIMEOUT_SECS, reached, wait_for

ROOT = Path(__file__).resolve().parents[2]
CONFIG = "tests/runs/quick.py"
LONG = "--config.trainer.steps=100000"
EMBEDDED = "--config.replay.backend=embedded"
SHARED_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
FORKED = frozenset({EMBEDDED} if POSSIBLE else ())
MESHES = (
    "--config.trainer.mesh.fsdp=4",
    "--config.explorer.mesh.data=2",
    "--config.explorer.mesh.tensor=2",
    "--config.trainer.groups_per_step=8",
    "--config.evaluation.problems=8",
    "--config.sft.steps=4",
    "--config.sft.batch_size=16",
    "--config.sft.probe_problems=8",
)
TEAMS = (*MESHES, "--config.trainer.processes=2", "--config.explorer.processes=2")


def flags(mode: str, **fields: object) -> tuple[str, ...]:
    sections = {"interval": "sync", "offset": "sync", "transfer": "sync", "count": "explorer"}
    sections |= {"steps": "trainer"}
    of_rollout = ("budget_tokens", "slots", "chunk_tokens", "swap", "streaming")
    sections |= dict.fromkeys(of_rollout, "rollout")
    sections |= dict.fromkeys(("colocate", "share_devices"), "launch")
    return (
        f"--config.sync.mode={mode}",
        *(f"--config.{sections[name]}.{name}={value}" for name, value in fields.items()),
    )


def launch(
    *flags: str,
    workdir: Path,
    variables: Mapping[str, str] | None = None,
    python: Sequence[str] = (sys.executable,),
    forks: bool = True,
    **popen: Any,
) -> subprocess.Popen[str]:
    """Starts the launcher on the quick config.

    Args:
      variables: that the environment has besides; those of `quickly` if left out.
      python: the command of the Python to run it with.
      forks: whether roles may be forks; otherwise they are started as a user's are.
    """
    command = [*python, "-m", "launcher", f"--config={CONFIG}"]
    if variables is None:
        variables = quickly(session_directory(workdir.parent))
        if forks and FORKED.intersection(flags):
            command.insert(-2, "tests.runs.forks")
            variables = server_with(**variables).variables
    return subprocess.Popen(
        [*command, f"--config.workdir={workdir}", *flags],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **variables},
        **popen,
    )


def quickly(session: Path) -> dict[str, str]:
    """Returns the environment of short runs, most of whose time is compilation.

    Runs of the same shapes compile the same programs. Later ones read them from a cache, which all
    processes of a test session share.

    Args:
      session: the session's directory.
    """
    return {
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "true",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
        "JAX_COMPILATION_CACHE_DIR": str(session / "compiled"),
    }


def session_directory(directory: Path) -> Path:
    """Returns the directory that all processes of a test session share.

    Args:
      directory: a test's own directory, or one beside those.
    """
    return directory.parents[1 if "PYTEST_XDIST_WORKER" in os.environ else 0]


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """Records of a finished run."""

    workdir: Workdir
    output: str

    @property
    def settings(self) -> RunSettings:
        return read_settings(json.loads(self.workdir.config.read_text()))

    @property
    def consumed(self) -> list[dict[str, Any]]:
        """Returns what each trainer step consumed."""
        return read_consumed(self.workdir)

    @property
    def ledger(self) -> list[dict[str, Any]]:
        return read_ledger(self.workdir)

    @property
    def judged(self) -> list[dict[str, Any]]:
        return read_judgements(self.workdir)

    def spans(self, *kinds: SpanKind, role: str = "") -> list[Span]:
        spans = read_spans(self.workdir)
        return [s for s in spans if (not kinds or s.kind in kinds) and s.role.startswith(role)]

    def versions(self, step: dict[str, Any]) -> set[int]:
        """Returns the versions of all tokens that one step consumed."""
        rows = [rows for group in step["groups"] for rows in group["versions"]]
        return {version for runs in rows for version, _ in runs}

    @property
    def rewards(self) -> list[float]:
        """Returns the mean reward of each step."""
        return [line["reward_mean"] for line in read_metrics(self.workdir, "rl")]

    @property
    def published(self) -> dict[int, str]:
        """Returns the digest of each version."""
        lines = read_json_lines(self.workdir.published)
        return {line["version"]: line["digest"] for line in lines}

    @property
    def trained_leases(self) -> list[list[int]]:
        """Returns the leases that each step consumed, in the order of the batch."""
        return [[group["lease_id"] for group in step["groups"]] for step in self.consumed]

    @property
    def staleness(self) -> list[set[int]]:
        """Returns the staleness of all tokens that each step consumed, in trainer steps."""
        of, steps = self.settings.schedule.staleness, self.consumed
        return [{of(step["step"], version) for version in self.versions(step)} for step in steps]

    def leases(self, event: str) -> collections.Counter[int]:
        """Counts how often each lease went through an event."""
        entries = [entry for entry in self.ledger if entry["event"] == event]
        return collections.Counter(lease["lease_id"] for e in entries for lease in e["leases"])

    @property
    def digest(self) -> str:
        """Returns the digest of the parameters after the last step."""
        return next(
            line.split()[-1] for line in self.output.splitlines() if line.startswith("digest:")
        )


class Runs:
    """Does each run once in a test session, when one of its processes first requests it.

    Most runs are threads of that process (`tests.runs.threads`).

    Args:
      session: the session's directory.
    """

    def __init__(self, session: Path):
        self.variables = quickly(session)
        self._directory = session / "runs"
        self._directory.mkdir(exist_ok=True)

    def get(
        self,
        *flags: str,
        python: Sequence[str] = (sys.executable,),
        apart: bool = False,
        limit_secs: float = TIMEOUT_SECS,
    ) -> RunRecord:
        """Returns the records of a run.

        Args:
          python: see `launch`.
          apart: whether each role is a process; otherwise it is a thread of this one, if it can be.
          limit_secs: greatest time of a run with another Python.
        """
        own = python != (sys.executable,)
        in_threads = not apart and not own and EMBEDDED in flags and threads.can_run(flags)
        name = hashlib.sha256(json.dumps([in_threads, *flags]).encode()).hexdigest()[:12]
        workdir, ended = self._directory / name, self._directory / f"{name}.json"
        with filelock.FileLock(self._directory / f"{name}.lock", timeout=TIMEOUT_SECS):
            if not ended.exists():
                if in_threads:
                    end = threads.run([*_words(workdir), *flags])
                elif own or not FORKED.intersection(flags):
                    # With Reverb all processes are started as a user's are.
                    end = self._start(workdir, flags, python, limit_secs)
                else:
                    end = self._fork(workdir, flags)
                ended.write_text(json.dumps(end))
        status, output = json.loads(ended.read_text())
        assert status == 0, output
        assert not undescribed(workdir), "metrics that rl_sync.records.metric_catalog leaves out"
        return RunRecord(Workdir(workdir), output)

    def _start(
        self, workdir: Path, flags: Sequence[str], python: Sequence[str], limit_secs: float
    ) -> tuple[int, str]:
        process = launch(*flags, workdir=workdir, variables=self.variables, python=python)
        output, _ = process.communicate(timeout=limit_secs)
        return process.returncode, output

    def _fork(self, workdir: Path, flags: Sequence[str]) -> tuple[int, str]:
        """Makes a run of processes that need not import anything."""
        output = workdir.with_suffix(".out")
        forks = server_with(**self.variables)
        status = forks.run(["launcher", *_words(workdir), *flags], output, TIMEOUT_SECS)
        return status, output.read_text()


def _words(workdir: Path) -> list[str]:
    return [f"--config={CONFIG}", f"--config.workdir={workdir}"]


def undescribed(workdir: Path) -> set[tuple[str, str]]:
    """Returns phase and name of the metrics of a run that the catalog does not have."""
    names = {(line["phase"], name) for line in read_metrics(workdir) for name in line}
    return {(phase, name) for phase, name in names if not metric_catalog.knows(phase, name)}


def assert_within_the_staleness_bound(run):
    """Every step consumed a whole batch, and no token of it is staler than the mode allows."""
    settings, schedule = run.settings, run.settings.schedule
    assert [step["step"] for step in run.consumed] == list(range(1, settings.trainer.steps + 1))
    for step in run.consumed:
        assert len(step["groups"]) == settings.trainer.groups_per_step
        for version in run.versions(step):
            assert 0 <= schedule.staleness(step["step"], version) <= schedule.staleness_bound


def assert_nothing_is_lost_or_doubled(run):
    """Every lease ended once: trained, or dropped for a reason."""
    leased, buffered = run.leases("leased"), run.leases("buffered")
    trained, dropped = run.leases("trained"), run.leases("dropped")
    assert all(count == 1 for count in (*leased.values(), *buffered.values()))
    assert trained + dropped == leased, "a lease ended in no way, or in two"
    assert set(trained) <= set(buffered)
    consumed = [group["lease_id"] for step in run.consumed for group in step["groups"]]
    assert sorted(consumed) == sorted(trained)
    balance = run.ledger[-1]
    assert balance["event"] == "balance"
    assert balance["leased"] == balance["trained"] + sum(balance["dropped"].values())
    assert balance["generating"] == balance["buffered"] == 0
    assert balance["trained"] == len(trained)
    ordinals = [group["ordinal"] for step in run.consumed for group in step["groups"]]
    assert len(set(ordinals)) == len(ordinals), "a prompt was trained twice"
    for entry in run.ledger:
        assert entry["event"] != "dropped" or entry["reason"]


def assert_every_token_is_accounted_for(run):
    """Each token that an engine has counted is trained on, dropped for a reason, or waits."""
    files = {path.stem: read_json_lines(path) for path in run.workdir.tokens.glob("*.jsonl")}
    assert set(files) == set(run.settings.roles)
    grouped, last = 0, {}
    for line in (line for lines in files.values() for line in lines):
        last[line["life"]] = line
        places = line["grouped"] + sum(line["to"].values()) - line["given"]
        assert line["generated"] >= places
        if "in_flight" in line:
            assert line["generated"] == places + line["in_flight"]
        grouped += sum(sampled + greedy for _, sampled, greedy in line.get("groups", ()))
    ends = [*last.values()]
    assert grouped == sum(line["grouped"] for line in ends)
    records = RunRecords(run.workdir)
    records.read(rollouts=False)
    found = records.tokens
    assert found.unrecorded == found.in_flight == 0
    assert sum(found.places.values()) == found.generated
    counted = sum(one["generated"] for one in ends)
    assert counted <= found.generated <= counted + sum(one["given"] for one in ends)
    consumed = [group for step in run.consumed for group in step["groups"]]
    uses = [sum(count for row in of["versions"] for _, count in row) for of in consumed]
    assert found.uses == sum(uses)
    once = {of["lease_id"]: tokens for of, tokens in zip(consumed, uses, strict=True)}
    assert found.trained == sum(once.values())
    assert f"Tokens: {found.describe()}" in run.output


def assert_same_bits(one, other):
    assert one.digest == other.digest
    assert what_was_trained_on(one) == what_was_trained_on(other)
    for mine, theirs in zip(parameters(one), parameters(other), strict=True):
        assert mine.tobytes() == theirs.tobytes()


def what_was_trained_on(run) -> list[list[dict[str, Any]]]:
    """Returns each step's groups, without who of several explorers happened to take them."""
    by_chance = ("lease_id", "explorer")
    return [
        [
            {name: value for name, value in group.items() if name not in by_chance}
            for group in groups
        ]
        for groups in (step["groups"] for step in run.consumed)
    ]


def parameters(run) -> list[np.ndarray]:
    """Reads the parameters of the last snapshot from its files."""
    settings, task = run.settings, wiring.load_task(run.settings)
    abstract = trainer_of(settings, task, layout()).abstract()
    kept = parameters_of(settings, task, layout()).kept(abstract.params)
    directory = run.workdir.snapshots
    assert latest_snapshot(directory) == settings.trainer.steps
    _, state, _ = SnapshotFolder(directory).load(None, abstract._replace(params=kept))
    return [np.asarray(leaf) for leaf in jax.tree.leaves(state.params)]


@pytest.fixture(scope="session")
def runs(tmp_path_factory) -> Runs:
    return Runs(session_directory(tmp_path_factory.mktemp("runs")))


@pytest.fixture(scope="session")
def memory_runs() -> Iterator[Callable[..., RunRecord]]:
    """Returns the records of a run in memory (`tests.runs.in_memory`), given its flags and deaths.

    Each process of a test session makes each run once.
    """
    with tempfile.TemporaryDirectory(prefix="tests-", dir=SHARED_MEMORY) as directory:

        @functools.cache
        def made(*flags: str, deaths: Collection[int] = ()) -> RunRecord:
            workdir = Path(tempfile.mkdtemp(dir=directory))
            output = in_memory.run([*_words(workdir), *flags], deaths)
            assert not undescribed(workdir), "metrics that the catalog leaves out"
            return RunRecord(Workdir(workdir), output)

        yield made


@pytest.fixture
def started(tmp_path):
    """Starts runs, waits for a phase if one is named, and makes sure that no process is left."""
    processes = []

    def start(
        *flags: str, until: str | None = "rl", forks: bool = True
    ) -> tuple[subprocess.Popen[str], Path]:
        workdir = tmp_path / "run"
        process = launch(
            LONG, EMBEDDED, *flags, workdir=workdir, forks=forks, start_new_session=True
        )
        processes.append(process)
        wait_for(lambda: until is None or reached(workdir, until), process)
        return process, workdir

    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait()
