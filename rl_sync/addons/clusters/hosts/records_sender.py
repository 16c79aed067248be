"""Sends the files of records of a machine's processes to the launcher, in the background."""

from __future__ import annotations

import dataclasses
import json
import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from rl_sync.addons.clusters.hosts.host_calls import BeginRecords, SendRecords
from rl_sync.cluster.rpc import PeerLostError, RemoteError, RpcClient

_EVERY_SECS = 0.5
_PART_BYTES = 1 << 18
_SEAL_BYTES = 64
_CALL_SECS = 20.0
_log = logging.getLogger(__name__)


@dataclasses.dataclass
class _GrowingFile:
    """A file that grows.

    Attributes:
      place: relative path in the work directory.
      base: size of the launcher's copy before this machine added to it; None if it is not known.
      sent: number of this machine's bytes in the copy.
      seal: the last of these bytes.
    """

    place: str
    base: int | None = None
    sent: int = 0
    seal: bytes = b""


class RecordsSender:
    """Sends what is added to files, in order, with bounds on memory and bandwidth.

    Files that are cut, as an unfinished line is, are cut at the launcher, too. While the launcher
    cannot be reached, the files grow here, and are sent later.

    Args:
      client: calls the launcher.
      machine: number of this machine.
      workdir: the work directory here.
      places: the files, relative to it; they need not exist yet.
      bits_per_sec: bandwidth.
      memo: file in which the sizes of the launcher's copies at the start are kept, for a machine
        that joins again with the same work directory.
    """

    def __init__(
        self,
        client: RpcClient,
        machine: int,
        workdir: Path,
        places: Sequence[str],
        bits_per_sec: float,
        memo: Path,
    ):
        self._client, self._machine, self._workdir = client, machine, workdir
        self._bits_per_sec, self._memo = bits_per_sec, memo
        known = json.loads(memo.read_text()) if memo.exists() else {}
        self._files = [_GrowingFile(place, known.get(place)) for place in places]
        self._changed = threading.Condition()
        self._passes = 0
        self._is_behind = False
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="records", daemon=True)
        self._thread.start()

    def flush(self, timeout_secs: float) -> bool:
        """Waits until everything that is in the files now is sent; returns whether it is."""
        deadline = time.monotonic() + timeout_secs
        with self._changed:
            # A pass may be under way that has missed the newest bytes.
            wanted = self._passes + 2
            self._changed.notify_all()
            while self._passes < wanted or self._is_behind:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(min(left, _EVERY_SECS))
            return True

    def close(self) -> None:
        """Stops sending."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(_CALL_SECS)

    def _run(self) -> None:
        is_told = False
        while True:
            is_behind = False
            try:
                for file in self._files:
                    is_behind |= self._send_new(file)
                is_told = False
            except (PeerLostError, RemoteError, OSError) as error:
                is_behind = True
                if not is_told:
                    _log.warning("Records wait here until they can be sent: %s", error)
                is_told = True
            with self._changed:
                self._passes, self._is_behind = self._passes + 1, is_behind
                self._changed.notify_all()
                if self._closed:
                    return
                self._changed.wait(_EVERY_SECS if not is_behind or is_told else 0.0)

    def _send_new(self, file: _GrowingFile) -> bool:
        """Sends a part of a file; returns whether there is more."""
        path = self._workdir / file.place
        if not path.exists():
            return False
        if file.base is None:
            file.base = self._call(BeginRecords(self._machine, file.place))
            self._remember()
        with path.open("rb") as opened:
            size = opened.seek(0, 2)
            is_cut = size < file.sent
            sent = min(size, file.sent)
            seal = file.seal if not is_cut else b""
            opened.seek(sent - len(seal))
            if opened.read(len(seal)) != seal:
                is_cut, sent = True, 0
            opened.seek(sent)
            part = opened.read(_PART_BYTES)
        if not part and not is_cut:
            return False
        copied = self._call(SendRecords(self._machine, file.place, file.base + sent, part, is_cut))
        if copied < file.base:  # The launcher's copy was shortened, or is another one.
            file.base, file.sent, file.seal = None, 0, b""
            return True
        file.sent = min(copied - file.base, size)
        with path.open("rb") as opened:
            opened.seek(max(0, file.sent - _SEAL_BYTES))
            file.seal = opened.read(file.sent - opened.tell())
        time.sleep(8 * len(part) / self._bits_per_sec)
        return file.sent < size

    def _call(self, call: BeginRecords | SendRecords) -> int:
        return self._client.call(call, _CALL_SECS)

    def _remember(self) -> None:
        bases = {file.place: file.base for file in self._files if file.base is not None}
        temporary = self._memo.with_suffix(".tmp")
        temporary.write_text(json.dumps(bases))
        temporary.replace(self._memo)
