"""The directories of a run on a machine that has joined it, and the files in them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import filelock

from rl_sync.addons.clusters.hosts.host_calls import AskPart, Enlisted, RunFile
from rl_sync.addons.clusters.hosts.rewriting import CODE, rewrite
from rl_sync.cluster.rpc import RpcClient
from rl_sync.cluster.secret import read_secret
from rl_sync.roles.exit_status import FAILED
from rl_sync.workdir import Workdir

_PART_BYTES = 1 << 20
_PART_SECS = 60.0


class JoinError(Exception):
    """Raised if a machine cannot take part; the message is for the user.

    Attributes:
      status: exit status.
    """

    def __init__(self, why: str, status: int = FAILED):
        super().__init__(why)
        self.status = status


class HostSite(NamedTuple):
    """Directories of a run on this machine.

    Attributes:
      workdir: the work directory: the launcher's, or one of this machine.
      directory: current directory of the processes.
      root: the machine's own directory with both; None if it reaches the launcher's.
    """

    workdir: Workdir
    directory: Path
    root: Path | None

    def remove(self) -> None:
        """Removes the files of a run, of which the launcher has the records."""
        if self.root is not None:
            shutil.rmtree(self.root, ignore_errors=True)


@contextlib.contextmanager
def host_site(
    enlisted: Enlisted, config: dict[str, Any], name: str, secret: str, client: RpcClient
) -> Iterator[HostSite]:
    """Makes the directories of a run, with the files that its processes read.

    At the end the secret is removed, and the other files are kept.

    Args:
      config: the run's config.
      name: first process of the machine.
      client: client of the launcher, which has the files.

    Raises:
      JoinError: a file cannot be had or kept, or another process has the directory.
    """
    if _reaches(enlisted.workdir, secret):
        there = Path(enlisted.directory)
        yield HostSite(
            Workdir(enlisted.workdir), there if there.is_dir() else Path.cwd(), root=None
        )
        return
    root = _root(config, enlisted.run, name)
    with _locked(root):
        for file in enlisted.files:
            _fetch(file, root, enlisted.machine, client)
        workdir = Workdir(root / "run")
        Path(workdir).mkdir(exist_ok=True)
        (root / CODE).mkdir(exist_ok=True)
        rewritten = rewrite(config, enlisted.rewritten, root)
        rewritten["workdir"] = str(workdir)
        workdir.config.write_text(json.dumps(rewritten))
        try:
            workdir.secret.touch(0o600)
            workdir.secret.write_text(secret)
            yield HostSite(workdir, root / CODE, root)
        finally:
            workdir.secret.unlink(missing_ok=True)


def _reaches(workdir: str, secret: str) -> bool:
    """Says whether a path here is the launcher's work directory, which holds the secret."""
    try:
        return read_secret(Workdir(workdir).secret) == secret
    except OSError:
        return False


def _root(config: Mapping[str, Any], run: str, process: str) -> Path:
    """Makes the directory of the machine's files, which no other user can write."""
    chosen = config["launch"]["scratch"]
    root = Path(chosen).expanduser() if chosen else Path(tempfile.gettempdir())
    try:
        for name in ("" if chosen else f"rl_sync-{os.getuid()}", run, process.replace("/", ".")):
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


def _fetch(file: RunFile, root: Path, machine: int, client: RpcClient) -> None:
    """Gets a file from the launcher, unless it is there.

    Raises:
      JoinError: it is too large, or changes meanwhile.
    """
    if not file.digest:
        raise JoinError(
            f"{file.place} has {file.size:,} bytes, and this machine does not reach the launcher's"
            " directories: raise launch.file_mib, or share a directory."
        )
    path = root / file.place
    if path.is_file() and _digest(path) == file.digest:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".part")
    with partial.open("wb") as opened:
        while opened.tell() < file.size:
            part = client.call(AskPart(machine, file.place, opened.tell(), _PART_BYTES), _PART_SECS)
            if not part:
                break
            opened.write(part)
    if _digest(partial) != file.digest:
        raise JoinError(f"{file.place} has changed since the run was started: start the run again.")
    partial.replace(path)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
