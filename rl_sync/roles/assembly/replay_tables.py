"""Tables of a run's replay buffer, and the check that a server has them."""

from __future__ import annotations

import dataclasses
from typing import cast

from rl_sync.replay.client import ReplayClient
from rl_sync.replay.tables import Selector, TableInfo, TableSpec, queue, to_json
from rl_sync.settings.records import ConfigError
from rl_sync.settings.run_settings import RunSettings

TABLE = "groups"


def replay_tables(settings: RunSettings) -> list[TableSpec]:
    """Returns the replay buffer's one table, which gives each group `replay.times_sampled` times.

    If `replay.max_size` is not set, the table has room for every batch that may be ahead of the
    trainer, and for groups whose leases have ended, so that no explorer waits for room while the
    schedule lets it continue. A full table makes explorers wait instead of removing a group, since
    the master accounts for every group.
    """
    replay = settings.replay
    sampler = cast(Selector, replay.sampler)
    spare = settings.explorers * settings.groups_at_once
    size = replay.max_size or settings.groups_ahead + spare
    table = queue(TABLE, size, sampler, replay.times_sampled)
    return [dataclasses.replace(table, priority_exponent=replay.priority_exponent)]


def check_replay(settings: RunSettings, replay: ReplayClient) -> None:
    """Checks that a replay server, which a user may have started, has the run's table.

    Raises:
      ConfigError: the server does not have the table.
      ReplayError: the server does not answer.
    """
    (wanted,) = replay_tables(settings)
    found = replay.info().get(TABLE)
    if found is None or not _serves(found, wanted):
        raise ConfigError(
            f"The replay server at {replay.address} has no table for this run. Start it with"
            f" --tables '{to_json([wanted])}', or leave out --config.replay.address."
        )


def _serves(found: TableInfo, wanted: TableSpec) -> bool:
    """Says whether a table returns groups as the run needs them, and has enough room."""
    has_room = found.max_size >= wanted.max_size
    drawn = (found.sampler, found.max_times_sampled)
    return has_room and drawn == (wanted.sampler, wanted.max_times_sampled)
