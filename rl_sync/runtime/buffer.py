"""What a run needs of a replay buffer, and whether a server has it."""

from __future__ import annotations

import dataclasses
from typing import cast

from rl_sync.replay.client import ReplayClient
from rl_sync.replay.tables import Selector, TableSpec, queue, to_json
from rl_sync.settings.records import ConfigError
from rl_sync.settings.run import RunSettings

TABLE = "groups"


def replay_tables(settings: RunSettings) -> list[TableSpec]:
    """The replay buffer's tables: one, from which each group is taken once.

    It has room for every batch that may be ahead of the trainer, and for groups whose lease is
    over, so that no explorer waits for room while the schedule lets it go on.
    """
    ahead = settings.schedule.batches_ahead * settings.groups_generated
    spare = settings.explorers * settings.groups_per_lease
    table = queue(TABLE, ahead + spare)
    return [dataclasses.replace(table, sampler=cast(Selector, settings.replay.sampler))]


def check_replay(settings: RunSettings, replay: ReplayClient) -> None:
    """Checks that a replay server, which somebody may have started by hand, has the run's table.

    Raises:
      ConfigError: it has not.
      ReplayError: it does not answer.
    """
    (wanted,) = replay_tables(settings)
    found = replay.info().get(TABLE)
    if found is None or found.max_size < wanted.max_size or found.max_times_sampled != 1:
        raise ConfigError(
            f"The replay server at {replay.address} has no table for this run. Start it with"
            f" --tables '{to_json([wanted])}', or leave out --config.replay.address."
        )
