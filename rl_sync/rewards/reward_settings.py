"""Settings of judging: workers, their limits, and completions that cannot be judged."""

from __future__ import annotations

import dataclasses

from rl_sync.setting import check, setting

RECORDS = ("all", "unjudged", "none")


@dataclasses.dataclass(frozen=True)
class RewardSettings:
    """`config.reward`."""

    workers: int = setting(
        1,
        "Processes that judge completions, beside the master or in a reward server. 0 judges inside"
        " the master or server itself, without limits of time and memory.",
        least=0,
        greatest=1024,
        free="always",
    )
    addresses: str | None = setting(
        None,
        "Addresses of reward servers (`rl-sync reward`), separated by commas. They replace the"
        " run's own workers.",
        implied="the run's own workers judge",
        free="always",
    )
    secret_path: str | None = setting(
        None,
        "File with the secret that the run shares with reward servers; a server creates the file if"
        " it is missing.",
        implied="none, and reward servers need one",
        is_path=True,
        free="always",
    )
    limit_secs: float = setting(
        30.0,
        "Time limit for judging one completion, from the moment that a worker starts on it.",
        unit="seconds",
        above=0,
        greatest=86400,
    )
    memory_bytes: int = setting(
        8 << 30,
        "Maximum address space of a worker; 0 for no limit.",
        unit="bytes",
        least=0,
    )
    batch: int = setting(
        64,
        "Maximum completions that a batched or asynchronous reward gets at once.",
        least=1,
    )
    queue: int = setting(
        4096,
        "Maximum completions that are being judged or wait for it; explorers wait while the queue"
        " is full.",
        least=1,
        free="always",
    )
    attempts: int = setting(
        2,
        "Attempts to judge a completion. After the last one fails, its tokens are left out of the"
        " loss.",
        least=1,
    )
    unjudged_limit: float = setting(
        0.1,
        "Largest share of completions that may remain unjudged. The run stops, and shows examples,"
        " when the last 200 completions exceed it with 99 % confidence. 1 never stops it.",
        least=0,
        greatest=1,
    )
    record: str = setting(
        "all",
        "Judgements that are written to judgements/ in the work directory.",
        choices=RECORDS,
        free="always",
    )

    @property
    def server_addresses(self) -> list[str]:
        """The addresses of reward servers; none if the run has workers of its own."""
        parts = (part.strip() for part in (self.addresses or "").split(","))
        return [part for part in parts if part]

    def __post_init__(self) -> None:
        check(self, "reward")
