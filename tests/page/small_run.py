"""A small work directory, written as a run writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rl_sync.records.json_lines import JsonLinesWriter
from rl_sync.records.rollouts.record_parts import part_name
from rl_sync.workdir import Workdir
from tests.records.simulated_runs import START_SECS, simulate, write_spans

CONFIG = {
    "sync": {"mode": "asynchronous", "interval": 1, "offset": 0, "max_staleness": 2},
    "trainer": {"steps": 50, "group_size": 2},
    "algorithm": {"logprob_gap_alarm": 0.5},
    "observe": {"alarm_steps": 3},
}


def append(path: Path, *records: dict[str, Any]) -> None:
    """Appends lines to a file."""
    writer = JsonLinesWriter(path)
    writer.write_all(records)
    writer.close()


def metrics(step: int, **more: Any) -> dict[str, Any]:
    """The metrics of a trainer step."""
    values = {"reward_mean": step / 100, "reward_min": 0.0, "reward_max": 1.0, "staleness_max": 1.0}
    return {"phase": "rl", "step": step, "time": START_SECS + step, **values, **more}


def rollout(step: int, lease: int, sample: int = 0, **more: Any) -> dict[str, Any]:
    """The record of a completion of two tokens, by two versions."""
    values: dict[str, Any] = {
        "prompt_id": lease,
        "prompt": f"{lease}+1=",
        "completion": f"{lease + 1}",
        "reward": float(sample == 0),
        "why": "the same number",
        "advantage": 0.5 - sample,
        "ids": [5, 6],
        "tokens": [f"{lease + 1}", "\n"],
        "logprobs": [-0.001, -9.0],
        "versions": [[step - 1, 1], [step, 1]],
        "mask": [[1, 1], [0, 1]],
        "ratios": [1.3, None],
        "entropies": [0.9, None],
    }
    return {"step": step, "lease": lease, "sample": sample, **values, **more}


def write_run(path: Path, steps: int = 4, mode: str = "asynchronous") -> Path:
    """Writes a run of some trainer steps, each of two groups of two completions."""
    at = Workdir(path)
    path.mkdir(parents=True, exist_ok=True)
    at.config.write_text(json.dumps(CONFIG))
    write_spans(path, simulate(mode, steps))
    append(at.metrics, *(metrics(step) for step in range(1, steps + 1)))
    for step in range(1, steps + 1):
        write_step(path, step)
    groups = [[lease, 4, 0] for lease in range(2, 2 * steps + 2)]
    append(at.tokens_of("explorer1"), *tokens({"evaluation": 4 * steps}, groups))
    return path


def tokens(to: dict[str, int], groups: list[list[int]]) -> list[dict[str, Any]]:
    """The records of an explorer that has had two devices for 36 seconds, and has ended."""
    life = {"life": "a", "prompt_computed": 0, "prompt_reused": 0}
    began = {**life, "time": START_SECS, "generated": 0, "grouped": 0, "to": {}}
    grouped = sum(sampled + greedy for _, sampled, greedy in groups)
    counts = {"generated": grouped + sum(to.values()), "grouped": grouped, "to": to}
    ended = {**life, **counts, "time": START_SECS + 36, "groups": groups, "is_over": True}
    ended |= {"prompt_computed": 20, "prompt_reused": 7}
    return [{**began, "devices": ["here:0", "here:1"]}, ended]


def write_step(path: Path, step: int, **more: Any) -> None:
    """Writes what a step leaves in the ledger, among consumed groups, and among rollouts."""
    at, leases = Workdir(path), [2 * step, 2 * step + 1]
    append(
        at.ledger,
        *(ledger(step, event, leases) for event in ("leased", "buffered", "trained")),
    )
    groups = [
        {"lease_id": lease, "versions": [[[step - 1, 3]], [[step - 2, 1]]]} for lease in leases
    ]
    append(at.consumed, {"step": step, "groups": groups})
    append(
        at.rollouts / part_name("step", 1),
        *(rollout(step, lease, sample, **more) for lease in leases for sample in (0, 1)),
    )


def ledger(step: int, event: str, leases: list[int], reason: str = "") -> dict[str, Any]:
    """An event of the ledger."""
    reason = f"step {step}" if event == "trained" else reason
    named = [{"lease_id": lease} for lease in leases]
    return {"time": START_SECS + step, "event": event, "leases": named, "reason": reason}
