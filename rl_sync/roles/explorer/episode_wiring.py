"""Builds a run's environments and their engine from its settings."""

from __future__ import annotations

import os
from collections.abc import Callable

from rl_sync.cluster.host_names import OWN_ADDRESS
from rl_sync.cluster.secret import key_for_agents, secret_of
from rl_sync.environments.dialogue.bridge import Bridge
from rl_sync.environments.dialogue.reader import ReplyReader
from rl_sync.environments.dialogue.sight import Sight
from rl_sync.environments.dialogue.tool_call_text import CALL_FORMATS, call_format
from rl_sync.environments.environment_catalog import reference_of
from rl_sync.environments.environment_settings import EnvironmentSettings
from rl_sync.environments.hosts.construction import Construction
from rl_sync.environments.hosts.episode_limits import Access, HostLimits
from rl_sync.environments.hosts.host_choice import host_of
from rl_sync.environments.opponents import script_of
from rl_sync.roles.explorer.director import Director
from rl_sync.rollout.engine_interface import RolloutEngine
from rl_sync.rollout.episodes.episode_engine import Agree, EpisodeEngine, alone
from rl_sync.rollout.episodes.older_versions import OlderVersions
from rl_sync.settings.records import ConfigError, require
from rl_sync.settings.run_settings import RunSettings
from rl_sync.tasks.task import Task
from rl_sync.tasks.tokenizers.pretrained import PretrainedTokenizer

_QUEUE_SECS = 86400.0
"""Time limit for episodes in the queue while others end; `Director` notices if none end."""


def environment_of(settings: RunSettings) -> Construction | None:
    """Returns the maker of the run's environments, or None if the run has none.

    Raises:
      ValueError: it cannot be imported, or has no such option.
    """
    name = settings.environment.name
    return None if name is None else Construction.of(reference_of(name))


def check_environment(settings: RunSettings, task: Task) -> None:
    """Rejects an environment that cannot run on this machine, or whose tools cannot be called.

    Raises:
      ConfigError: the message says what is missing.
    """
    try:
        construction = environment_of(settings)
        if construction is not None:
            construction.check()
            for opponent in settings.environment.opponents:
                script_of(opponent)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if construction is None or not construction.has_tools:
        return
    name, calls = settings.environment.name, settings.environment.calls
    tokenizer = task.tokenizer
    require(
        isinstance(tokenizer, PretrainedTokenizer) and tokenizer.chat,
        f"environment.name={name} has tools, which a prompt without a chat template cannot"
        " describe: use a tokenizer with a template (model.path or tokenizer.path), and not"
        " tokenizer.chat=no.",
    )
    require(
        call_format(tokenizer, calls) is not None,
        f"environment.name={name} has tools, and environment.calls={calls} reads no calls: set the"
        f" form in which the policy writes them, one of {', '.join(CALL_FORMATS)}.",
    )


def playing(
    settings: RunSettings,
    task: Task,
    engine: RolloutEngine,
    agree: Agree = alone,
    *,
    process: str = "",
    opponents: Callable[[], RolloutEngine] | None = None,
    check: Callable[[], None] = lambda: None,
) -> RolloutEngine | EpisodeEngine:
    """Returns an engine as it is, or an episode engine if the run has an environment.

    Args:
      process: name of the program in the run; empty outside of runs.
      agree: lets the processes of a program agree on the environments' answers.
      opponents: makes an engine for opponents with older weights; None for evaluations, whose
        opponents are scripted.
      check: see `Director`.
    """
    if (construction := environment_of(settings)) is None:
        return engine
    repeats = settings.schedule.pull == "exact"
    count, older = settings.environment.older_versions, None
    if count and opponents is not None:
        older = OlderVersions(opponents(), count, settings.seed)
    return EpisodeEngine(
        engine,
        lambda: _director(
            settings.environment,
            task,
            construction,
            access=_access(settings, process),
            most_pixels=settings.task.max_image_pixels,
            check=check,
        ),
        repeats=repeats,
        side_by_side=construction.asks_endpoint,
        agree=agree,
        older=older,
    )


def _access(settings: RunSettings, process: str) -> Access:
    """Returns the access to the agents' endpoint: only for this machine, or for the network."""
    connections = settings.environment.connections
    host = os.environ.get(OWN_ADDRESS) or settings.launch.host
    if not (process and host):
        return Access(connections=connections)
    return Access(host, key_for_agents(secret_of(settings.workdir)), connections)


def _director(
    settings: EnvironmentSettings,
    task: Task,
    construction: Construction,
    *,
    access: Access,
    most_pixels: int,
    check: Callable[[], None],
) -> Director:
    """Makes the director of a run's episodes.

    Args:
      most_pixels: maximum number of pixels of an image.
      check: see `Director`.
    """
    tokenizer = task.tokenizer
    reader = ReplyReader(tokenizer, call_format(tokenizer, settings.calls))
    limits = HostLimits(
        workers=settings.workers,
        limit_secs=settings.limit_secs,
        queue_secs=_QUEUE_SECS,
        memory_bytes=settings.memory_bytes,
        requests=settings.requests,
    )
    sight = None
    if task.processor is not None:
        token = tokenizer.image_id(task.processor.marks)
        sight = Sight(task.processor, token, most_pixels)
    bridge = Bridge(tokenizer, sight)
    host = host_of(
        construction.reference,
        limits,
        access,
        tokenizer.thoughts,
        lambda turn: len(bridge.first(turn).ids),
    )
    # Agents get rows as they are written.
    placeholder = "" if construction.asks_endpoint else task.placeholder
    return Director(host, bridge, reader, settings, placeholder=placeholder, check=check)
