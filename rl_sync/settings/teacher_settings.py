"""`config.teacher`: the model that a policy is distilled from."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from rl_sync.setting import check, setting


@dataclasses.dataclass(frozen=True)
class TeacherSettings:
    """`config.teacher`."""

    path: str | None = setting(
        None,
        "Teacher of algorithm.distillation: a Hugging Face checkpoint (its directory, or a hub"
        " name in the local cache), or the work directory of a run."
        " It has the policy's vocabulary.",
        implied="no teacher",
        is_path=True,
    )
    sets: str | None = setting(
        None,
        "Teachers of the sets of a mixture, NAME=PATH,… with a path as above for each set of"
        " task.mixture.sets.",
        implied="the teacher at `path` for all",
    )
    step: str | None = setting(
        None,
        "Snapshot that teaches, if the teacher is a run: its trainer step, 0 for the policy that"
        " the run began with, or `best`.",
        implied="the newest",
    )
    address: str | None = setting(
        None,
        "Address of a teacher server (`rl-sync teacher`), which the trainer asks about each batch,"
        " in place of a teacher at `path`.",
        implied="the teacher is beside the trainer",
        free="always",
    )
    secret_path: str | None = setting(
        None,
        "File with the secret that the run shares with the teacher server, which creates the file"
        " if it is missing.",
        implied="none, and a teacher server needs one",
        is_path=True,
        free="always",
    )
    offload: bool = setting(
        False,
        "Keeps the teacher in the host's memory, except while it computes logprobs.",
        free="always",
    )

    def __post_init__(self) -> None:
        check(self, "teacher")
        pairs = [one.partition("=") for one in (self.sets or "").split(",") if one.strip()]
        if self.sets is not None and not (pairs and all(name and path for name, _, path in pairs)):
            raise ValueError(
                f"teacher.sets={self.sets!r} must be NAME=PATH,… with a teacher for each set, such"
                " as math=runs/one,code=runs/other."
            )

    @property
    def is_there(self) -> bool:
        """True if the settings name a teacher."""
        return bool(self.paths) or self.address is not None

    @property
    def paths(self) -> Mapping[str, str]:
        """The teachers' paths by the names of their sets; by "" for one that teaches all."""
        if self.sets is None:
            return {} if self.path is None else {"": self.path}
        pairs = (one.partition("=") for one in self.sets.split(",") if one.strip())
        return {name.strip(): path.strip() for name, _, path in pairs}
