"""An endpoint's replies and recent requests, on a disk that processes share."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

_FILE = "replies.sqlite"
_WINDOW_SECS = 60.0
_BUSY_SECS = 20.0
_TABLES = (
    "CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, reply TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS requests"
    " (id INTEGER PRIMARY KEY, endpoint TEXT NOT NULL, at REAL NOT NULL, tokens REAL NOT NULL)",
)


class ModelReply(NamedTuple):
    """A reply of a language model.

    Attributes:
      text: what it wrote; None if it refused.
      refusal: the reason why there is no text: a refusal, or a reply that was cut.
      tokens_in, tokens_out: the endpoint's counts of tokens; None if it gives none.
      cached: whether the reply came from the cache, or from another request of this process.
    """

    text: str | None
    refusal: str | None
    tokens_in: int | None
    tokens_out: int | None
    cached: bool = False


class Replies:
    """Replies by key, and the requests of the last minute.

    Several processes may use one directory of a local disk. Each thread needs its own object.

    Args:
      directory: the directory of the file; None keeps everything in this process's memory.
    """

    def __init__(self, directory: Path | None, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)
        path = ":memory:" if directory is None else directory / _FILE
        self._base = sqlite3.connect(path, timeout=_BUSY_SECS, isolation_level=None)
        if directory is not None:
            self._base.execute("PRAGMA journal_mode=WAL")
        for table in _TABLES:
            self._base.execute(table)

    def find(self, key: str) -> ModelReply | None:
        """Returns the reply of a key, if there is one."""
        row = self._base.execute("SELECT reply FROM replies WHERE key = ?", [key]).fetchone()
        return None if row is None else ModelReply(*json.loads(row[0]))._replace(cached=True)

    def keep(self, key: str, reply: ModelReply) -> None:
        """Keeps a reply."""
        text = json.dumps(reply._replace(cached=False))
        self._base.execute("INSERT OR REPLACE INTO replies VALUES (?, ?)", [key, text])

    def enter(
        self, endpoint: str, tokens: float, most_requests: float, most_tokens: float
    ) -> int | float:
        """Counts a request, if the limits per minute allow it now.

        Args:
          tokens: the estimated tokens; see `correct`.
          most_requests, most_tokens: the limits per minute; 0 for no limit.

        Returns:
          The request's number, an int; or the seconds after which to try again, a float.
        """
        now = self._clock()
        with self._alone():
            self._base.execute("DELETE FROM requests WHERE at <= ?", [now - _WINDOW_SECS])
            count, used, oldest = self._base.execute(
                "SELECT COUNT(*), TOTAL(tokens), MIN(at) FROM requests WHERE endpoint = ?",
                [endpoint],
            ).fetchone()
            many = most_requests and count + 1 > most_requests
            much = most_tokens and used + tokens > most_tokens
            if count and (many or much):
                return max(0.01, oldest + _WINDOW_SECS - now)
            cursor = self._base.execute(
                "INSERT INTO requests (endpoint, at, tokens) VALUES (?, ?, ?)",
                [endpoint, now, tokens],
            )
            assert cursor.lastrowid is not None
            return int(cursor.lastrowid)

    def correct(self, request: int, tokens: float) -> None:
        """Corrects the tokens of a request once they are known."""
        self._base.execute("UPDATE requests SET tokens = ? WHERE id = ?", [tokens, request])

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keeps other processes from writing."""
        self._base.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            self._base.execute("COMMIT")

    def close(self) -> None:
        """Closes the file."""
        self._base.close()


def default_directory() -> str:
    """Returns the directory of replies in the user's cache directory."""
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(caches, "rl_sync", "judge")
