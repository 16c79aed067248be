"""The config's section of how a run's processes are started, waited for and ended."""

from __future__ import annotations

import dataclasses

from rl_sync.settings.limits import require_patience, require_shell
from rl_sync.settings.records import require


@dataclasses.dataclass(frozen=True)
class LaunchSettings:
    """`config.launch`: processes, patience in seconds, and where compiled programs are kept.

    Attributes:
      colocate: whether trainer and explorers are threads of one process. Each has devices of its
        own if there are enough; weights that would go by collective transfer are handed over.
      share_devices: with `colocate`, whether they take turns on the same devices in any case.
      explorer_restarts: how often each explorer that died is started again. With collective
        transfer, and in one process with the trainer, its death ends the run.
      start_secs: until a role or a server is up.
      wait_secs: the longest that a role waits for another, and that one gives no sign of life.
      call_secs: the longest that the master takes to answer.
      master_lost_secs: a role ends itself when the master was silent for so long.
      stop_secs: a role that was asked to stop is killed when it has neither computed nor saved
        for so long.
      resume_changed: whether a run goes on although settings have changed that say what it learns,
        and from what. Without it only those may change that say where, how fast and how long.
      host: this machine, as those of `hosts` reach it; None for one that nobody else reaches.
      hosts: the machines of processes that run elsewhere, as NAME=ADDRESS,… with names such as
        `explorer2`, or `trainer/1` for the trainer's second process.
      remote_shell: what starts a command elsewhere and keeps its standard input open; {host} is
        the address.
      compilation_cache: a local directory; None for one in the user's cache directory, empty for
        nowhere. JAX_COMPILATION_CACHE_DIR goes before it.
    """

    colocate: bool
    share_devices: bool
    explorer_restarts: int
    start_secs: float
    wait_secs: float
    call_secs: float
    master_lost_secs: float
    stop_secs: float
    resume_changed: bool
    host: str | None
    hosts: str
    remote_shell: str
    compilation_cache: str | None

    @property
    def elsewhere(self) -> dict[str, str]:
        """The machines of processes that do not run on this one, by the processes' names."""
        pairs = (pair.partition("=") for pair in self.hosts.split(",") if pair.strip())
        return {name.strip(): address.strip() for name, _, address in pairs}

    def __post_init__(self) -> None:
        for name, address in self.elsewhere.items():
            require(
                bool(name and address),
                f"launch.hosts={self.hosts} must be NAME=ADDRESS,… such as explorer2=10.0.0.2.",
            )
        names = [name.partition("=")[0].strip() for name in self.hosts.split(",") if name.strip()]
        for name in names:
            require(
                names.count(name) == 1,
                f"launch.hosts={self.hosts} says twice where {name} is: say it once.",
            )
        require(
            not self.elsewhere or bool(self.host),
            f"launch.hosts={self.hosts} needs launch.host, this machine's address as those reach"
            " it.",
        )
        require_shell("launch.remote_shell", self.remote_shell)
        require_patience(
            "launch",
            start_secs=self.start_secs,
            wait_secs=self.wait_secs,
            call_secs=self.call_secs,
            master_lost_secs=self.master_lost_secs,
            stop_secs=self.stop_secs,
        )
        require(
            "://" not in (self.compilation_cache or ""),
            f"launch.compilation_cache={self.compilation_cache} is not a local directory. Give JAX"
            " a remote one by the variable JAX_COMPILATION_CACHE_DIR.",
        )
        restarts = self.explorer_restarts
        require(
            restarts >= 0, f"launch.explorer_restarts must be at least 0 (never), not {restarts}."
        )
