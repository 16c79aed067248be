"""Digests of published versions: a version that is published again must be the same."""

from __future__ import annotations

import logging
import os
from concurrent.futures import Future, ThreadPoolExecutor

from jaxtyping import Array, UInt32

from rl_sync.cluster.user_errors import RunEndedError
from rl_sync.records.json_lines import JsonLinesWriter, read_json_lines
from rl_sync.records.resumption import RESUMED_AT, mark, standing
from rl_sync.types import Params
from rl_sync.weights.digest import digest_words, to_text

_log = logging.getLogger(__name__)


class PublishedDigests:
    """Records the digest of each version, and compares versions that are published again.

    Args:
      path: file of the records; None in a process that does not record.
      since: versions above it are published anew, and may differ from earlier ones; None if all
        must be the same.
      exact: whether a difference ends the run. Otherwise it is logged: each token carries the
        logprob that it was sampled with, whichever of the two versions sampled it.
    """

    def __init__(
        self, path: str | os.PathLike[str] | None, *, since: int | None, exact: bool
    ) -> None:
        self._exact = exact
        self._known: dict[int, str] = {}
        self._lines: JsonLinesWriter | None = None
        self._last: Future[None] | None = None
        self._writer = ThreadPoolExecutor(1, "digests")
        if path is not None:
            self._lines = JsonLinesWriter(path, vital=False)
            if since is not None and self._lines.path.stat().st_size:
                self._lines.write(mark(since))
            lines = standing(
                read_json_lines(path, strict=False),
                lambda line, mark: line["version"] > mark[RESUMED_AT],
            )
            self._known = {line["version"]: line["digest"] for line in lines}

    def note(self, version: int, params: Params) -> None:
        """Records the digest of a version, or compares it.

        All processes of the trainer call it, before they donate `params`. A comparison waits for
        the computation of `params`; a record is made in a thread.

        Raises:
          RunEndedError: the version differs from the one that was published before.
        """
        words = digest_words(params)
        if self._lines is None:
            return
        if version in self._known:
            self._compare(version, to_text(words))
        else:
            self._last = self._writer.submit(self._record, version, words)

    def close(self) -> None:
        """Waits for the records."""
        self._writer.shutdown()
        if self._lines is not None:
            self._lines.close()

    def _record(self, version: int, words: UInt32[Array, " 2"]) -> None:
        assert self._lines is not None
        self._lines.write({"version": version, "digest": to_text(words)})

    def _compare(self, version: int, digest: str) -> None:
        if digest == self._known[version]:
            return
        told = (
            f"Trainer step {version} was done again, and made other weights: digest {digest},"
            f" before {self._known[version]}."
        )
        if self._exact:
            raise RunEndedError(
                f"{told} In this mode both must be the same; the hardware, or a function of the"
                " user, is not deterministic."
            )
        _log.warning("%s Explorers may still use the former ones.", told)
