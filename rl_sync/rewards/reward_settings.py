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
        "Processes that judge, beside the master or in a reward server; 0 judges in that process"
        " itself, without limits of time and memory.",
        least=0,
        greatest=1024,
        free="always",
    )
    addresses: str | None = setting(
        None,
        "Addresses of reward servers (`rl-sync reward`), separated by commas, which"
        " then judge in place of the run's own workers.",
        implied="the run's own workers judge",
        free="always",
    )
    secret_path: str | None = setting(
        None,
        "File with the secret that the run shares with reward servers; a server makes it if there"
        " is none.",
        implied="none, and reward servers need one",
        is_path=True,
        free="always",
    )
    limit_secs: float = setting(
        30.0,
        "Longest time that judging one completion may take. The clock starts when a worker starts"
        " on it.",
        unit="seconds",
        above=0,
        greatest=86400,
    )
    memory_bytes: int = setting(
        8 << 30,
        "Address space of a worker; 0 for no limit.",
        unit="bytes",
        least=0,
    )
    batch: int = setting(
        64,
        "Most completions that a reward which takes batches, or is asynchronous, gets at once.",
        least=1,
    )
    queue: int = setting(
        4096,
        "Most completions that are judged or wait for it; explorers wait while there are more.",
        least=1,
        free="always",
    )
    attempts: int = setting(
        2,
        "Times that a completion is judged before it counts as one that cannot be judged. Then its"
        " tokens are left out of the loss.",
        least=1,
    )
    unjudged_limit: float = setting(
        0.1,
        "Share of completions that may remain unjudged. The run stops with examples where that of"
        " the last 200 is above it with a confidence of 99 %. 1 never stops it.",
        least=0,
        greatest=1,
    )
    record: str = setting(
        "all",
        "Judgements that are written to judgements.jsonl in the work directory.",
        choices=RECORDS,
        free="always",
    )

    @property
    def server_addresses(self) -> list[str]:
        """The addresses of reward servers; none where the run has workers of its own."""
        parts = (part.strip() for part in (self.addresses or "").split(","))
        return [part for part in parts if part]

    def __post_init__(self) -> None:
        check(self, "reward")
