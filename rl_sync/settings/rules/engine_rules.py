"""Rules of served engines (`explorer.engine`)."""

from __future__ import annotations

import urllib.parse

from rl_sync.role_names import explorer_name
from rl_sync.settings.explorer_settings import VLLM
from rl_sync.settings.records import require
from rl_sync.settings.rules.algorithm_rules import danger
from rl_sync.settings.rules.rule import LAST_PORT, Rule
from rl_sync.settings.run_settings import RunSettings


def _addresses(s: RunSettings) -> None:
    for engine in s.explorer.engines:
        url = urllib.parse.urlsplit(engine.removeprefix(VLLM))
        try:
            port = url.port
        except ValueError:
            port = None
        require(
            engine.startswith(VLLM)
            and url.scheme in ("http", "https")
            and bool(url.hostname)
            and port is not None
            and 0 < port <= LAST_PORT
            and url.path in ("", "/"),
            f"explorer.engine={engine!r} must be vllm:http://HOST:PORT, such as"
            " vllm:http://127.0.0.1:8000, without a path; leave it empty for the explorers' own"
            " engines.",
        )
        require(
            url.username is None,
            f"explorer.engine names a user of {url.hostname}:{port}: leave the part before @ out,"
            " and set VLLM_API_KEY to the server's API key.",
        )


def _one_each(s: RunSettings) -> None:
    engines = s.explorer.engines
    require(
        not engines or len(engines) == s.explorers,
        f"explorer.engine={s.explorer.engine} names {len(engines)} engines for {s.explorers}"
        " explorers (explorer.count): each explorer needs an engine of its own, separated by"
        " commas.",
    )
    places = [_place(s, number) for number in range(len(engines))]
    for engine, place in zip(engines, places, strict=True):
        require(
            places.count(place) == 1,
            f"explorer.engine={s.explorer.engine} names {engine} for two explorers: each needs a"
            " server of its own.",
        )


def _place(s: RunSettings, index: int) -> tuple[str, str]:
    """Returns an engine's address, and for one of a machine's own also the explorer's machine."""
    address = s.explorer.engines[index].rstrip("/").replace("//localhost:", "//127.0.0.1:")
    machine = s.launch.elsewhere.get(explorer_name(index + 1), "")
    return (machine if "//127." in address else ""), address


def _recorded(s: RunSettings) -> None:
    """Refuses what only the explorers' own engines record or promise."""
    rollout = s.rollout
    own = {
        # It draws from few tokens, and does not tell which they were.
        f"rollout.top_k={rollout.top_k}": rollout.top_k > 0,
        f"rollout.top_p={rollout.top_p:g}": rollout.top_p < 1,
        f"rollout.min_p={rollout.min_p:g}": rollout.min_p > 0,
        f"rollout.min_new_tokens={rollout.min_new_tokens}": rollout.min_new_tokens > 0,
        "rollout.routing_replay=True": rollout.routing_replay,
        f"rollout.speculation={rollout.speculation}": rollout.speculation != "off",
        f"explorer.quantization={s.quantization}": s.quantization is not None,
        "model.batch_invariant=True": s.model.batch_invariant,
        f"algorithm.score_centering={s.algorithm.score_centering}": (
            s.algorithm.score_centering != "off" and rollout.score == "explorer"
        ),
        f"explorer.processes={s.explorer.processes}": s.explorer.processes > 1,
    }
    for setting, is_set in own.items():
        require(
            not (s.explorer.engines and is_set),
            f"{setting} needs the explorers' own engines, not explorer.engine={s.explorer.engine}:"
            " leave out one of them.",
        )


def _bears_engine(s: RunSettings) -> None:
    require(
        not s.explorer.engines
        or s.schedule.staleness_bound > 0
        or not s.algorithm.generates
        or s.algorithm.allow_unsafe
        or danger(s) is None,
        f"algorithm.name={s.algorithm.name} does not fit explorer.engine={s.explorer.engine}, whose"
        f" log-probabilities differ from the trainer's: {danger(s)}, leave out algorithm.name for"
        " one that bears it, or insist with algorithm.allow_unsafe=True.",
    )


ENGINE_RULES: dict[str, Rule] = {
    "explorer.engine": _addresses,
    "explorer.engine, explorer.count": _one_each,
    "explorer.engine, sync.pull": lambda s: require(
        not s.explorer.engines or s.schedule.pull == "latest",
        f"sync.mode={s.sync.mode} promises the same bits whatever dies (exact pulls), which"
        f" explorer.engine={s.explorer.engine} cannot keep: its sums depend on the batch. Use"
        " sync.mode=asynchronous or multi_explorer; or sync.mode=custom with sync.pull=latest,"
        " which with sync.max_staleness=0 waits for each version as the synchronous mode does.",
    ),
    "explorer.engine_transfer, explorer.engine": lambda s: require(
        s.explorer.engine_transfer == "checkpoint" or bool(s.explorer.engines),
        f"explorer.engine_transfer={s.explorer.engine_transfer} is for a served engine: set"
        " explorer.engine, or leave it out.",
    ),
    "explorer.engine, rollout, model, algorithm.score_centering": _recorded,
    "algorithm.name, explorer.engine, algorithm.allow_unsafe": _bears_engine,
}
"""See `rl_sync.settings.rules.table.RULES`."""
