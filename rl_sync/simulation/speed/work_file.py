"""The work of a run as a JSON file, which can be edited to ask what if."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_sync.settings.records import ConfigError
from rl_sync.simulation.speed.measured_work import MeasuredWork
from rl_sync.simulation.speed.workload import (
    CallTimes,
    Decoding,
    Samples,
    SharedCores,
    TransferTimes,
    Workload,
)

_SAMPLES = ("train", "layout", "judge", "insert", "evaluate", "snapshot")


def write_work(path: Path, found: MeasuredWork) -> None:
    """Writes measured work; times are in seconds."""
    path.write_text(json.dumps(_plain(found), indent=1) + "\n")


def read_work_file(path: Path) -> MeasuredWork:
    """Inverts `write_work`.

    Raises:
      ConfigError: the file cannot be read; the message names the field.
    """
    try:
        fields = json.loads(path.read_text())
        return MeasuredWork(
            _workload(fields["work"]),
            bool(fields["in_parts"]),
            int(fields["steps"]),
            tuple(fields["assumed"]),
        )
    except OSError as error:
        raise ConfigError(f"--work={path} cannot be read: {error.strerror or error}.") from error
    except KeyError as error:
        raise ConfigError(f"--work={path} lacks the field {error}.") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"--work={path} is not the work of a run: {error}") from error


def _plain(value: Any) -> Any:
    """Returns records as JSON values: distributions as lists, other records as objects."""
    if isinstance(value, Samples):
        return [*value.values]
    if dataclasses.is_dataclass(value):
        return {one.name: _plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if hasattr(value, "_asdict"):
        return {name: _plain(one) for name, one in value._asdict().items()}
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return [*map(_plain, value)] if isinstance(value, tuple) else value


def _samples(values: Any) -> Samples:
    """Reads a list of values, or a number for a constant."""
    return Samples(tuple(map(float, values if isinstance(values, list) else [values])))


def _workload(fields: Mapping[str, Any]) -> Workload:
    decoding = {**fields["decoding"], "noise": _samples(fields["decoding"]["noise"])}
    transfers = {
        name: TransferTimes(
            _samples(one["publish"]), _samples(one["pull"]), bool(one["shares_link"])
        )
        for name, one in fields["transfers"].items()
    }
    shared = fields["shared"]
    return Workload(
        lengths=tuple(tuple(map(int, rows)) for rows in fields["lengths"]),
        decoding=Decoding(**decoding),
        groups_per_step=int(fields["groups_per_step"]),
        transfers=transfers,
        calls=CallTimes(**fields.get("calls", {})),
        waiting=_samples(fields.get("waiting", 0.0)),
        judges=int(fields.get("judges", 0)),
        judge_completion=_samples(fields.get("judge_completion", 0.0)),
        replaced=float(fields["replaced"]),
        shared=None if shared is None else SharedCores(**shared),
        **{name: _samples(fields[name]) for name in _SAMPLES},
    )
