"""`config.observe` as a frozen, validated record."""

from __future__ import annotations

import dataclasses

from rl_sync.records.backends.backend import Labels
from rl_sync.records.backends.backend_catalog import BACKENDS, TENSORBOARD
from rl_sync.setting import check, setting


@dataclasses.dataclass(frozen=True)
class ObserveSettings:
    """`config.observe`."""

    rollouts: bool = setting(
        True,
        "Records the completions that are trained on, in rollouts/ in the work directory;"
        " `rl-sync rollouts` shows them.",
    )
    rollout_bytes: int = setting(
        256 << 20,
        "Size of these records up to which those of every group are kept.",
        unit="bytes",
        least=0,
    )
    completions_mib: int = setting(
        2048,
        "Size of all records of completions together: half for rollouts/, half for judgements/."
        " Beyond it the oldest parts go. 0 for no bound.",
        unit="MiB",
        least=0,
    )
    image_bytes: int = setting(
        64 << 20,
        "Size up to which images of recorded prompts are stored, each once and at most 512 pixels"
        " wide and high.",
        unit="bytes",
        least=0,
    )
    rollout_share: float = setting(
        0.02,
        "Share of the groups that are recorded once the records have `observe.rollout_bytes`.",
        least=0,
        greatest=1,
    )
    rollout_time: float = setting(
        0.01,
        "Share of the run's time that making these records may take, in a thread of the trainer; of"
        " quick steps with many completions fewer groups are recorded, at least one.",
        above=0,
        greatest=1,
    )
    alarm_steps: int = setting(
        5,
        "Trainer steps in a row with the same trouble, such as no reward, after which the run gives"
        " an alarm.",
        least=1,
    )

    backends: str = setting(
        TENSORBOARD,
        f"Systems that get the metrics besides metrics.jsonl, separated by commas:"
        f" {', '.join(BACKENDS)}, or your own, `module:function` or `path/to/file.py:function`;"
        " none if empty.",
    )
    project: str | None = setting(
        None,
        "Project of the run in these systems; MLflow calls it an experiment.",
        implied="the run's `name`",
    )
    run_name: str | None = setting(
        None,
        "Name of the run in these systems.",
        implied="the name of the work directory",
    )
    mlflow_uri: str | None = setting(
        None,
        "Tracking server or database of MLflow, such as http://127.0.0.1:5000 or"
        " sqlite:///mlflow.db.",
        implied="what MLflow's own variables say",
    )
    finish_secs: float = setting(
        30.0,
        "The longest wait at the end of a run for these systems to take the last metrics.",
        unit="seconds",
        least=0,
    )

    price_per_device_hour: float = setting(
        0.0,
        "Price of an hour of a device, in any currency; reports then say what each role and a"
        " million trained tokens cost. 0 for none.",
        least=0,
        greatest=1e6,
    )

    def __post_init__(self) -> None:
        check(self, "observe")

    @property
    def most_bytes_of_each(self) -> int:
        """Maximum size of the records of one kind, in bytes; 0 for no bound."""
        return (self.completions_mib << 20) // 2

    @property
    def chosen_backends(self) -> list[str]:
        """Returns the names in `backends`, each once."""
        return list(
            dict.fromkeys(part.strip() for part in self.backends.split(",") if part.strip())
        )

    @property
    def labels(self) -> Labels:
        """Returns the run's names in the backends."""
        return Labels(self.project, self.run_name, self.mlflow_uri)
