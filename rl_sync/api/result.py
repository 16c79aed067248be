"""Results of a run, read from its work directory during or after the run."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, SupportsIndex, overload

import regex
from matplotlib.figure import Figure

from rl_sync.api.loaded_policy import Policy, load
from rl_sync.display.templating import environment, style
from rl_sync.display.timeline_figure import figure_of
from rl_sync.records.json_lines import JsonObject
from rl_sync.records.metrics import read_metrics
from rl_sync.records.rollouts.recorded_images import ShownImage, shown_images
from rl_sync.records.rollouts.rollout_records import (
    Rollout,
    RolloutFilter,
    describe_removed,
    groups_of,
    read_rollouts,
)
from rl_sync.records.run_records import RunRecords
from rl_sync.records.span_reader import read_spans
from rl_sync.records.summary import RunSummary, summarize
from rl_sync.records.tokens.token_account import TokenAccount
from rl_sync.roles.policy_export import export
from rl_sync.roles.saved_policy import settings_of_run
from rl_sync.settings.records import ConfigError
from rl_sync.settings.run_settings import RunSettings
from rl_sync.workdir import Workdir

_MOST_ROLLOUTS: Final = 24
"""Number of rollouts that a notebook shows."""

_MOST_IMAGE_BYTES: Final = 4 << 20
"""Size of the images of one output, as data URLs: notebooks are saved with their outputs."""


class Curve(NamedTuple):
    """Values of a metric at the steps that have it.

    Attributes:
      steps: trainer steps, or SFT steps.
      values: one value for each step; None for a value that is not finite.
    """

    steps: list[int]
    values: list[float | None]


@dataclasses.dataclass(frozen=True)
class Result:
    """The records of a run. Every access reads the files anew, so the run may still be going on.

    Attributes:
      workdir: work directory of the run.
    """

    workdir: Path

    @property
    def settings(self) -> RunSettings:
        """Settings of the run."""
        return settings_of_run(self.workdir)

    @property
    def paths(self) -> Workdir:
        """Paths of the run's files."""
        return Workdir(str(self.workdir))

    def metrics(self, phase: str = "rl") -> list[JsonObject]:
        """Returns one dict for each step of a phase, with the metrics that docs/metrics.md
        describes.

        Args:
          phase: `rl`, `evaluation` or `sft`.
        """
        return read_metrics(self.workdir, phase)

    def curve(self, name: str, phase: str = "rl") -> Curve:
        """Returns the curve of a metric.

        Raises:
          KeyError: no step has the metric; the message lists the metrics that exist.
        """
        lines = self.metrics(phase)
        found = [line for line in lines if name in line]
        if not found:
            there = sorted({key for line in lines for key in line})
            raise KeyError(f"no step of phase {phase!r} has {name!r}; there are {there}")
        return Curve([line["step"] for line in found], [line[name] for line in found])

    @property
    def accuracy(self) -> dict[int, float]:
        """Held-out accuracy by the trainer step after which it was measured; 0 is before RL."""
        return {line["step"]: line["accuracy"] for line in self.metrics("evaluation")}

    @property
    def summary(self) -> RunSummary:
        """Time, throughput and staleness of the RL phase.

        Raises:
          ConfigError: there is no trainer step yet.
        """
        run = RunRecords(self.workdir)
        run.read(rollouts=False)
        try:
            return run.summary or summarize(read_spans(self.workdir))  # The latter says why not.
        except (FileNotFoundError, ValueError) as error:
            raise ConfigError(str(error)) from error

    @property
    def tokens(self) -> TokenAccount:
        """Account of the generated tokens: how many were trained on, and what became of others."""
        run = RunRecords(self.workdir)
        run.read(rollouts=False)
        return run.tokens

    def timeline(
        self,
        first_step: int | None = None,
        last_step: int | None = None,
        *,
        secs: float | None = None,
        title: str | None = None,
    ) -> Figure:
        """Draws the work and the waits of all roles, as `rl-sync timeline` does.

        Args:
          first_step, last_step: trainer steps to show. If both are None, it shows six steps, after
            the first two, which compile, if the run is long enough. If only `last_step` is None, it
            shows all from `first_step` on.
          secs: length of the window, from the beginning of the first step, so that several runs can
            be drawn to the same scale; None for a window that ends with the last step.
          title: title of the picture; None for the mode and the schedule.

        Raises:
          ConfigError: the run has no such steps; the message gives the steps that it has.
        """
        steps = None if first_step is last_step is None else (first_step or 1, last_step)
        try:
            return figure_of(self.workdir, steps=steps, secs=secs, title=title)
        except (FileNotFoundError, ValueError) as error:
            raise ConfigError(str(error)) from error

    def rollouts(
        self, first_step: int = 1, last_step: int | None = None, pattern: str | None = None
    ) -> RolloutList:
        """Reads the completions of some trainer steps; docs/rollouts.md has the fields.

        A notebook shows the list as HTML, with the images of the prompts.

        Args:
          first_step, last_step: trainer steps; None as `last_step` for all from `first_step` on.
          pattern: regular expression that the prompt or the conversation must contain; None for
            any.
        """
        found = None if pattern is None else regex.compile(pattern)
        selection = RolloutFilter(first_step=first_step, last_step=last_step, pattern=found)
        return RolloutList(self.workdir, read_rollouts(self.workdir, selection))

    def policy(self, step: int | str | None = None) -> Policy:
        """Loads the policy; see `rl_sync.load`."""
        return load(str(self.workdir), step=step)

    def export(
        self, to: str | Path, step: int | str | None = None, dtype: str | None = None
    ) -> Path:
        """Writes the policy to a new directory that `transformers` loads, with adapters merged.

        Args:
          to: directory to write.
          step: the snapshot's trainer step, `best`, or None for the newest.
          dtype: `float32`, `bfloat16` or `float16`; None for the dtype of the imported checkpoint,
            or `float32` without one.

        Returns:
          The directory.

        Raises:
          ConfigError: there is no such snapshot, or the directory cannot be written.
        """
        target = Path(to).expanduser()
        export(self.workdir, target, dtype, None if step is None else str(step))
        return target


def open_run(workdir: str | Path) -> Result:
    """Opens the records of a run, during or after the run.

    Raises:
      ConfigError: the directory does not contain a run.
    """
    path = Path(workdir).absolute()
    if not Workdir(str(path)).config.is_file():
        raise ConfigError(f"{path} is not the work directory of a run: it holds no config.json.")
    return Result(path)


def as_html(
    workdir: str | os.PathLike[str],
    rollouts: Sequence[Rollout],
    most_rollouts: int = _MOST_ROLLOUTS,
    most_image_bytes: int = _MOST_IMAGE_BYTES,
) -> str:
    """Returns the first rollouts as HTML, by group: a prompt with its images, then completions.

    Args:
      workdir: work directory of the run, which has the images.
      rollouts: rollouts in any order.
      most_rollouts: number of rollouts to show.
      most_image_bytes: size of all images together. Images beyond it have only their label.
    """
    some, left, groups = list(rollouts[:most_rollouts]), most_image_bytes, []
    for of_group in groups_of(some).values():
        images = []
        for image in shown_images(workdir, of_group[0].images):
            if len(image.source) > left:
                image = ShownImage(f"{image.label} (not shown: too many bytes)")
            left -= len(image.source)
            images.append(image)
        groups.append((of_group[0], images, of_group))
    template = environment().get_template("notebook.html")
    return template.render(
        groups=groups,
        shown=len(some),
        count=len(rollouts),
        gone=describe_removed(workdir),
        style=style("rl_sync.display", "notebook.css"),
    )


class RolloutList(list[Rollout]):
    """Rollouts of a run. As the last value of a notebook's cell, they are shown with images.

    Args:
      workdir: work directory of the run.
      rollouts: the rollouts.
    """

    def __init__(self, workdir: Path, rollouts: Iterable[Rollout]) -> None:
        super().__init__(rollouts)
        self._workdir = workdir

    @overload
    def __getitem__(self, place: SupportsIndex) -> Rollout: ...

    @overload
    def __getitem__(self, place: slice) -> RolloutList: ...

    def __getitem__(self, place: SupportsIndex | slice) -> Rollout | RolloutList:
        """Returns a rollout, or those of a slice, which notebooks show alike."""
        if isinstance(place, slice):
            return RolloutList(self._workdir, super().__getitem__(place))
        return super().__getitem__(place)

    def _repr_html_(self) -> str:
        return as_html(self._workdir, self)
