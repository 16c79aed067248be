"""The asking side of a benchmark: it starts a peer, and measures it in turns with ours."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from peers.serving import CLOCKS, PeerRequest

Ask = Callable[[PeerRequest], float]
"""A function from a request to the seconds that it took."""


class Peer:
    """A peer's process; the first start installs its packages.

    Attributes:
      name: its name in the table.
      missing: the reason why it cannot be measured; empty if it can.
    """

    def __init__(
        self, name: str, script: str, environment: Mapping[str, str] | None = None
    ) -> None:
        import uv

        self.name, self.missing = name, ""
        self._folder = tempfile.TemporaryDirectory()
        self._log = Path(self._folder.name) / "log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [uv.find_uv_bin(), "run", "--quiet", "--script", Path(__file__).with_name(script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
            )

    def await_imports(self) -> None:
        """Waits until it has started, or ended, as a start disturbs other measurements."""
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def ask(self, request: PeerRequest) -> float:
        """Measures one request.

        Raises:
          PeerGoneError: the peer ended, as it does if it cannot be installed.
        """
        requests, answers = self._process.stdin, self._process.stdout
        assert requests is not None
        assert answers is not None
        try:
            print(json.dumps(request), file=requests, flush=True)
            return float(answers.readline())
        except (BrokenPipeError, ValueError):
            self._process.wait()
            last = (self._log.read_text().strip().splitlines() or ["it ended without a word"])[-1]
            raise PeerGoneError(f"{self.name} cannot be measured: {last}") from None

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.communicate()
        self._folder.cleanup()


class PeerGoneError(RuntimeError):
    """Raised if a peer does not answer."""


def timed(request: PeerRequest, work: Callable[[], object]) -> float:
    """Measures the seconds of a call, by the request's clock."""
    clock = CLOCKS[request["clock"]]
    start = clock()
    work()
    return clock() - start


def in_turns(
    sides: Mapping[str, tuple[Ask, PeerRequest]], rounds: int
) -> dict[str, tuple[float, float]]:
    """Measures all sides in turns, each on its own request, with another seed every time.

    Returns:
      For each side that answers: the seconds of its first call, compilation included, and the least
        seconds of the later calls. For other sides a line is printed.
    """
    return {
        name: (first, min(later)) for name, (first, *later) in all_in_turns(sides, rounds).items()
    }


def all_in_turns(
    sides: Mapping[str, tuple[Ask, PeerRequest]], rounds: int
) -> dict[str, list[float]]:
    """Measures sides as `in_turns` does, and returns the seconds of all calls."""
    secs: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name, (ask, request) in sides.items():
            if name not in secs:
                continue
            try:
                secs[name].append(ask({**request, "seed": turn}))
            except PeerGoneError as error:
                print(f"# {error}", flush=True)
                del secs[name]
    return secs
