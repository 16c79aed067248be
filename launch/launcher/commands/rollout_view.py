"""Shows rollouts in a terminal: as tables, whole, or side by side."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from rl_sync.display.unprintable import escaped
from rl_sync.records.rollouts.recorded_images import described
from rl_sync.records.rollouts.rollout_records import POLICY, Rollout, digest

_COLUMN = 36
"""The minimum width of a column of completions."""

_MOST_REWARDS = 16


def steps(by_step: Mapping[int, Sequence[Rollout]]) -> RenderableType:
    """A table of steps."""
    table = _table("step", "groups", "rollouts", "reward", "least", "greatest", "tokens", "cut")
    table.add_column("staleness", justify="right")
    for step, rollouts in by_step.items():
        one = digest(rollouts)
        table.add_row(
            str(step),
            str(one.groups),
            str(one.rollouts),
            _reward(one.reward_mean),
            _reward(one.reward_least),
            _reward(one.reward_greatest),
            f"{one.tokens_mean:.1f}",
            f"{one.truncated:.0%}" if one.truncated else "",
            str(one.staleness),
        )
    return table


def groups(found: Sequence[Sequence[Rollout]]) -> RenderableType:
    """A table of groups."""
    table = _table("step", "lease", "problem", "reward", "tokens")
    table.add_column("rewards", overflow="fold", max_width=40)
    table.add_column("prompt", no_wrap=True, overflow="ellipsis", ratio=1)
    for rollouts in found:
        one, first = digest(rollouts), rollouts[0]
        rewards = [_reward(rollout.reward) for rollout in rollouts[:_MOST_REWARDS]]
        more = " …" * (len(rollouts) > _MOST_REWARDS)
        table.add_row(
            str(first.step),
            str(first.lease),
            str(first.prompt_id),
            _reward(one.reward_mean),
            f"{one.tokens_mean:.1f}",
            " ".join(rewards) + more,
            Text(_line(first.prompt)),
        )
    return table


def sample(one: Rollout) -> RenderableType:
    """Shows a whole record: its step and group, its judgement, the prompt and the completion."""
    heading = Text(f"step {one.step} · lease {one.lease} · problem {one.prompt_id} · sample ")
    heading.append(f"{one.sample}")
    return Group(
        Rule(heading, align="left", style="dim"),
        _judgement(one),
        Text(escaped(one.prompt), style="dim"),
        *_images(one),
        _said(one),
        Text(),
    )


def side_by_side(rollouts: Sequence[Rollout], width: int) -> RenderableType:
    """Shows the completions of one group, in as many columns as fit."""
    first = rollouts[0]
    heading = f"step {first.step} · lease {first.lease} · problem {first.prompt_id}"
    parts: list[RenderableType] = [
        Rule(heading, align="left", style="dim"),
        Text(escaped(first.prompt), style="dim"),
        *_images(first),
        *([Text(f"expected: {escaped(first.expected)}")] if first.expected else []),
        Text(),
    ]
    columns = max(1, min(len(rollouts), width // _COLUMN))
    for start in range(0, len(rollouts), columns):
        grid = Table.grid(padding=(0, 2), expand=True)
        for _ in range(columns):
            grid.add_column(ratio=1, overflow="fold")
        cells = [
            Group(Text(f"sample {one.sample}", style="bold"), _judgement(one, False), _said(one))
            for one in rollouts[start : start + columns]
        ]
        grid.add_row(*cells)
        parts += [grid, Text()]
    return Group(*parts)


def _images(one: Rollout) -> list[Text]:
    """Shows a line for each image of the prompt."""
    return [Text(escaped(line), style="dim") for line in described(one.images)]


def _judgement(one: Rollout, with_expected: bool = True) -> RenderableType:
    """Shows everything about a record except the texts of the policy and the environment."""
    style = "" if one.reward is None else "green" if one.reward > 0 else "red"
    line = Text(f"reward {_reward(one.reward)}", style=style)
    parts = [f"{escaped(name)} {value:.3g}" for name, value in one.components.items()]
    if len(parts) > 1:
        line.append(f" ({', '.join(parts)})")
    facts = [] if one.advantage is None else [f"advantage {one.advantage:+.3f}"]
    facts += [] if one.baseline is None else [f"baseline {one.baseline:.3f}"]
    facts += [f"{one.drawn_tokens} tokens", f"staleness {one.staleness}", _versions(one)]
    logprob = one.mean_logprob
    facts += [] if logprob is None else [f"logprob {logprob:.3f}"]
    facts += ["cut by a limit"] if one.truncated else []
    if one.mask and not any(learned for learned, _ in one.mask):
        facts.append("masked")
    line.append(" · " + " · ".join(facts), style="none")
    whys = [one.why, "" if one.episode is None else f"ended: {one.episode['reason']}"]
    if one.expected and with_expected:
        whys.append(f"expected: {one.expected}")
    told = " · ".join(escaped(why) for why in whys if why)
    return Group(line, Text(told, style="italic")) if told else line


def _said(one: Rollout) -> Text:
    """Shows the completion, or the turns of an episode, with the environment's turns dim."""
    if one.turns is None:
        return Text(escaped(one.completion), style="bold")
    text = Text()
    for turn in one.turns:
        mine = turn["by"] == POLICY
        text.append(escaped(turn["text"]), style="bold" if mine else "dim cyan")
    return text


def _versions(one: Rollout) -> str:
    drawn = sorted({version for version, _ in one.versions if version >= 0})
    return "v" + "–".join(map(str, dict.fromkeys([*drawn[:1], *drawn[-1:]])))


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", expand=False)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _line(text: str) -> str:
    return re.sub(r"\s+", " ", escaped(text))


def _reward(value: float | None) -> str:
    """Writes a reward with three decimals, or with six if these would be another number."""
    if value is None:
        return "?"
    few = f"{value:.3f}"
    return few if abs(float(few) - value) < 5e-7 else f"{value:.6f}"
