"""A machine that has joined a run: it starts, watches and ends processes as the launcher says."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import secrets
import shutil
import signal
import socket
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import filelock

import rl_sync
from rl_sync.clock import BEHIND
from rl_sync.cluster.host_names import OWN_ADDRESS
from rl_sync.cluster.ports import HeldPorts
from rl_sync.cluster.rpc import PeerLostError, RefusedError, RemoteError, RpcClient
from rl_sync.cluster.secret import read_secret
from rl_sync.isolation.machine_limits import limit_met
from rl_sync.launcher.hosts.host_calls import (
    AskOrders,
    AskPart,
    AskTime,
    Enlist,
    Enlisted,
    LeaveMachine,
    Order,
    ProcessState,
    Refused,
    RunFile,
)
from rl_sync.launcher.hosts.received_records import places_of
from rl_sync.launcher.hosts.records_sender import RecordsSender
from rl_sync.launcher.hosts.release import release, software
from rl_sync.launcher.hosts.rewriting import CODE, rewrite
from rl_sync.launcher.processes.stack_dump import dump_stacks
from rl_sync.launcher.processes.supervisor import RoleProcess
from rl_sync.roles.exit_status import FAILED, MACHINE_LOST
from rl_sync.workdir import Workdir

_CALL_SECS = 10.0
_POLL_SECS, _MOST_POLL_SECS, _POLLS_A_SECOND = 0.5, 5.0, 200
_RETRY_SECS = 0.5
_TELL_SECS = 15.0
_FLUSH_SECS = 5.0
_FINISH_SECS = 25.0
_GRACE_SECS = 3.0
_PART_BYTES = 1 << 20
_PINGS = 5
_PORTS = 8
_log = logging.getLogger(__name__)


class JoinError(Exception):
    """Raised if the machine cannot take part; the message is for the user.

    Attributes:
      status: exit status.
    """

    def __init__(self, why: str, status: int = FAILED):
        super().__init__(why)
        self.status = status


class _Places(NamedTuple):
    """Directories of a run on this machine.

    Attributes:
      workdir: the work directory: the launcher's, or one of this machine.
      directory: current directory of the processes.
      root: the machine's own directory with both; None if it reaches the launcher's.
    """

    workdir: Workdir
    directory: Path
    root: Path | None


class JoinedHost:
    """Runs processes for a launcher.

    Args:
      run: the launcher's `host:port` for machines.
      secret: secret of the run.
      names: processes that this machine runs.
      address: address of this machine, as others reach it.
      wait_secs: the longest that the launcher cannot be reached, before and during the run.
    """

    def __init__(self, run: str, secret: str, names: Sequence[str], address: str, wait_secs: float):
        self._run, self._secret, self._names = run, secret, tuple(names)
        self._wait_secs = wait_secs
        self._client = RpcClient(run, "launcher", secret)
        self._address = address
        self._processes: dict[str, tuple[int, RoleProcess]] = {}
        self._asked_to_end = threading.Event()
        self._why_end = ""
        self._identity = secrets.token_hex(8)
        self._behind_secs, self._has_joined = 0.0, False

    def end(self, why: str) -> None:
        """Asks the machine to leave the run; from any thread."""
        self._why_end = why
        self._asked_to_end.set()

    def run(self) -> int:
        """Takes part until the run ends; returns the exit status.

        Raises:
          JoinError: the machine cannot take part, or the launcher cannot be reached.
        """
        while True:
            enlisted = self._enlist()
            if enlisted is None:
                return 128 + signal.SIGTERM
            try:
                status = self._serve(enlisted)
            except PeerLostError as error:
                print(f"The launcher was lost while its files were fetched: {error}", flush=True)
                continue
            except (RemoteError, OSError) as error:
                why = limit_met(error) or str(error)
                self._tell_leaving(enlisted.machine, why)
                raise JoinError(f"This machine cannot take part: {why}") from error
            except JoinError as error:
                self._tell_leaving(enlisted.machine, str(error))
                raise
            if status is not None:
                return status

    def _enlist(self) -> Enlisted | None:
        """Joins the run as soon as the launcher is up; returns None if asked to end before."""
        since = told = time.monotonic()
        while not self._asked_to_end.is_set():
            try:
                behind, error = self._clock()
                answer = self._client.call(
                    Enlist(
                        self._names,
                        self._address,
                        release(),
                        software(),
                        behind,
                        error,
                        socket.gethostname(),
                        self._identity,
                    ),
                    _CALL_SECS,
                )
            except RefusedError as error:
                raise JoinError(
                    f"The launcher at {self._run} belongs to another run: its secret is another"
                    " than this process has (RL_SYNC_SECRET)."
                ) from error
            except RemoteError as error:
                raise JoinError(
                    f"{self._run} is not the address at which machines join, or its launcher has"
                    f" another version of rl_sync: give the one that the launcher prints. {error}"
                ) from error
            except PeerLostError as error:
                waited = time.monotonic() - since
                if waited > self._wait_secs:
                    raise JoinError(
                        f"No launcher has answered at {self._run} for {waited:.0f} s. Start the run"
                        " with launch.port set to this port, and let firewalls pass the ports of"
                        f" launch.ports. The last attempt: {error}",
                        MACHINE_LOST if self._has_joined else FAILED,
                    ) from error
                if time.monotonic() - told > _TELL_SECS:
                    told = time.monotonic()
                    print(
                        f"Waiting for the launcher at {self._run} for {waited:.0f} s: {error}",
                        flush=True,
                    )
                self._asked_to_end.wait(_RETRY_SECS)
                continue
            if isinstance(answer, Refused):
                waited = time.monotonic() - since
                if answer.is_final or waited > self._wait_secs:
                    raise JoinError(f"{answer.why}.")
                if time.monotonic() - told > _TELL_SECS:
                    told = time.monotonic()
                    print(f"Waiting to join for {waited:.0f} s: {answer.why}.", flush=True)
                self._asked_to_end.wait(2 * _RETRY_SECS)
                continue
            self._behind_secs, self._has_joined = behind, True
            print(f"Joined the run at {self._run} as {', '.join(self._names)}.", flush=True)
            return answer
        return None

    def _clock(self) -> tuple[float, float]:
        """Returns how much this clock is behind the launcher's, and the error, in seconds.

        The exchange with the shortest round trip counts, as in NTP (RFC 5905).
        """
        found = []
        for _ in range(_PINGS):
            before = time.monotonic()
            here = time.time()
            there = self._client.call(AskTime(), _CALL_SECS)
            trip = time.monotonic() - before
            found.append((trip / 2, there - here - trip / 2))
        error, behind = min(found)
        return behind, error

    def _serve(self, enlisted: Enlisted) -> int | None:
        """Executes orders until the run ends; returns None if the launcher was lost."""
        config = json.loads(enlisted.config)
        with contextlib.ExitStack() as owned:
            site = self._site(enlisted, config, owned)
            return self._follow(enlisted, config, site)

    def _follow(self, enlisted: Enlisted, config: dict[str, Any], site: _Places) -> int | None:
        sender = None if site.root is None else self._sender(enlisted, config, site)
        ports = HeldPorts(self._address, _ports_of(config))
        held: list[int] = []
        machines = config["launch"]["hosts"].count("=")
        # So the launcher gets at most some hundreds of calls a second.
        poll_secs = min(_MOST_POLL_SECS, max(_POLL_SECS, machines / _POLLS_A_SECOND))
        done, heard = 0, time.monotonic()
        try:
            while True:
                if self._asked_to_end.is_set():
                    self._end_all()
                    if self._leave(enlisted.machine, sender, self._why_end):
                        _remove(site)
                    return 128 + signal.SIGTERM
                held += ports.take(_PORTS - len(held))
                report = AskOrders(
                    enlisted.machine,
                    done,
                    self._states(sender),
                    tuple(held),
                    site.root is None,
                    poll_secs,
                )
                try:
                    orders = self._client.call(report, _CALL_SECS)
                except PeerLostError:
                    silent = time.monotonic() - heard
                    if silent > config["launch"]["master_lost_secs"]:
                        print(
                            f"The launcher at {self._run} was not heard for {silent:.0f} s: the"
                            " processes here end, and this machine tries to join again."
                        )
                        self._end_all()
                        return None
                    time.sleep(_RETRY_SECS)
                    continue
                heard = time.monotonic()
                if isinstance(orders, Refused):
                    self._end_all()
                    if orders.is_final:
                        raise JoinError(orders.why)
                    print(orders.why)
                    return None
                for order in orders:
                    if order.number <= done:
                        continue
                    done = order.number
                    if order.kind == "leave":
                        self._end_all()
                        if self._leave(enlisted.machine, sender):
                            _remove(site)
                        return order.status
                    used = _ports_in(order.arguments)
                    held = [port for port in held if port not in used]
                    self._execute(order, site)
        finally:
            ports.close()
            self._end_all()
            if sender is not None:
                sender.close()

    def _execute(self, order: Order, site: _Places) -> None:
        attempt, process = self._processes.get(order.name, (0, None))
        if order.kind == "start":
            if process is not None:
                process.kill()
            self._processes[order.name] = (order.attempt, self._started(order, site))
        elif process is None or attempt != order.attempt or process.poll() is not None:
            return
        elif order.kind == "dump":
            dump_stacks(process.group, process.log)
        elif order.kind == "terminate":
            process.terminate()
        else:
            process.kill()

    def _started(self, order: Order, site: _Places) -> RoleProcess:
        command = [sys.executable, "-m", "rl_sync.roles.process", *order.arguments]
        command += [f"--workdir={site.workdir}", "--lifeline"]
        package = str(Path(rl_sync.__file__).resolve().parents[1])
        paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **order.environment,
            BEHIND: f"{self._behind_secs:.6f}",
            OWN_ADDRESS: self._address,
            "PYTHONPATH": os.pathsep.join(paths),
        }
        log = site.workdir.log(order.name)
        return RoleProcess.start(order.name, command, log, environment, site.directory)

    def _states(self, sender: RecordsSender | None) -> tuple[ProcessState, ...]:
        """Returns the states of the processes; the log of one that has ended is sent before."""
        states = [
            ProcessState(name, attempt, process.poll())
            for name, (attempt, process) in self._processes.items()
        ]
        if sender is not None and any(state.status for state in states):
            sender.flush(_FLUSH_SECS)
        return tuple(states)

    def _end_all(self) -> None:
        processes = [process for _, process in self._processes.values()]
        for process in processes:
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + _GRACE_SECS
        while any(one.poll() is None for one in processes) and time.monotonic() < deadline:
            time.sleep(0.05)
        for process in processes:
            process.kill()
        self._processes.clear()

    def _leave(self, machine: int, sender: RecordsSender | None, why: str = "") -> bool:
        """Sends the last records, and says good-bye; returns whether all records are sent."""
        is_whole = sender is None or sender.flush(_FINISH_SECS)
        return self._tell_leaving(machine, why) and is_whole

    def _tell_leaving(self, machine: int, why: str) -> bool:
        """Says good-bye; returns whether the launcher has heard it."""
        try:
            self._client.call(LeaveMachine(machine, why), _CALL_SECS)
        except (PeerLostError, RemoteError) as error:
            _log.warning("The launcher does not hear that this machine leaves: %s", error)
            return False
        return True

    def _sender(
        self, enlisted: Enlisted, config: Mapping[str, Any], site: _Places
    ) -> RecordsSender:
        assert site.root is not None
        places = [place for name in self._names for place in places_of(site.workdir, name)]
        return RecordsSender(
            RpcClient(self._run, "launcher", self._secret, own_connection=True),
            enlisted.machine,
            Path(site.workdir),
            places,
            config["launch"]["record_mbit"] * 1e6,
            site.root / "bases.json",
        )

    def _site(
        self, enlisted: Enlisted, config: dict[str, Any], owned: contextlib.ExitStack
    ) -> _Places:
        """Makes the directories of the run, with the files that its processes read.

        Args:
          owned: ends with the machine's part in the run; the secret is removed then.
        """
        if self._reaches(enlisted.workdir):
            there = Path(enlisted.directory)
            return _Places(Workdir(enlisted.workdir), there if there.is_dir() else Path.cwd(), None)
        root = self._root(config, enlisted.run)
        owned.enter_context(_locked(root))
        for file in enlisted.files:
            self._fetch(file, root, enlisted.machine)
        workdir = Workdir(root / "run")
        Path(workdir).mkdir(exist_ok=True)
        (root / CODE).mkdir(exist_ok=True)
        rewritten = rewrite(config, enlisted.rewritten, root)
        rewritten["workdir"] = str(workdir)
        workdir.config.write_text(json.dumps(rewritten))
        workdir.secret.touch(0o600)
        owned.callback(workdir.secret.unlink, missing_ok=True)
        workdir.secret.write_text(self._secret)
        return _Places(workdir, root / CODE, root)

    def _reaches(self, workdir: str) -> bool:
        """Says whether a path here is the launcher's work directory, which holds the secret."""
        try:
            return read_secret(Workdir(workdir).secret) == self._secret
        except OSError:
            return False

    def _root(self, config: Mapping[str, Any], run: str) -> Path:
        """Makes the directory of the machine's files, which no other user can write."""
        chosen = config["launch"]["scratch"]
        root = Path(chosen).expanduser() if chosen else Path(tempfile.gettempdir())
        mine = self._names[0].replace("/", ".")
        try:
            for name in ("" if chosen else f"rl_sync-{os.getuid()}", run, mine):
                root /= name
                root.mkdir(exist_ok=True, mode=0o700)
                status = root.lstat()
                if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
                    raise PermissionError(f"{root} is a link, or belongs to another user")
                if name:
                    root.chmod(0o700)
        except OSError as error:
            raise JoinError(
                f"The run's files cannot be kept in {root}: {error.strerror or error}. Give another"
                " launch.scratch."
            ) from error
        return root

    def _fetch(self, file: RunFile, root: Path, machine: int) -> None:
        """Gets a file from the launcher, unless it is there.

        Raises:
          JoinError: it is too large, or changes meanwhile.
        """
        if not file.digest:
            raise JoinError(
                f"{file.place} has {file.size:,} bytes, and this machine does not reach the"
                " launcher's directories: raise launch.file_mib, or share a directory."
            )
        path = root / file.place
        if path.is_file() and _digest(path) == file.digest:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".part")
        with partial.open("wb") as opened:
            while opened.tell() < file.size:
                part = self._client.call(
                    AskPart(machine, file.place, opened.tell(), _PART_BYTES), 6 * _CALL_SECS
                )
                if not part:
                    break
                opened.write(part)
        if _digest(partial) != file.digest:
            raise JoinError(
                f"{file.place} has changed since the run was started: start the run again."
            )
        partial.replace(path)


@contextlib.contextmanager
def _locked(root: Path) -> Iterator[None]:
    """Keeps other processes of this machine from a directory; raises JoinError if one has it."""
    lock = filelock.FileLock(root.with_name(f".{root.name}.lock"), timeout=0)
    try:
        lock.acquire()
    except filelock.Timeout as error:
        raise JoinError(
            f"Another process of this machine takes part with that name: its files are in {root}."
            " End it, or join under another name."
        ) from error
    try:
        yield
    finally:
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()
        with contextlib.suppress(OSError):  # Files were kept, or others' are there.
            root.parent.rmdir()


def _remove(site: _Places) -> None:
    """Removes the files of a run, of which the launcher has the records."""
    if site.root is not None:
        shutil.rmtree(site.root, ignore_errors=True)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _ports_of(config: Mapping[str, Any]) -> range:
    first, _, last = config["launch"]["ports"].partition("-")
    return range(int(first), int(last) + 1)


def _ports_in(arguments: Sequence[str]) -> set[int]:
    """Returns the ports in the addresses of a process, which are given out by then."""
    ends = [one.rpartition(":")[2] for one in arguments if "=" in one]
    return {int(end) for end in ends if end.isdecimal()}
