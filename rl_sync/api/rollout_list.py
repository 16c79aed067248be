"""A list of rollouts that a notebook shows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, SupportsIndex, overload

from rl_sync.display.templating import environment, style
from rl_sync.records.rollouts.recorded_images import ShownImage, shown_images
from rl_sync.records.rollouts.rollout_records import Rollout, groups_of

_MOST_ROLLOUTS: Final = 24
"""Number of rollouts that are shown."""

_MOST_IMAGE_BYTES: Final = 4 << 20
"""Size of the images of one output, as data URLs: notebooks are saved with their outputs."""


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
