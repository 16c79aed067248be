"""The account of a run's tokens: each is trained on, dropped for a reason, or waits."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rl_sync.messages.events import (
    EXPLORER_DIED,
    FORMED_ANEW,
    LEASE_EXPIRED,
    LEFT_OUT,
    LOST_IN_BUFFER,
    TOO_STALE,
)
from rl_sync.records.flow import BUFFERED, DROPPED, GENERATING, TRAINED, Fate
from rl_sync.records.tokens.lease_columns import Rows
from rl_sync.records.tokens.token_lives import RESTARTED, GroupTokens, TokenLife

GREEDY, UNSCORED = "greedy baselines", "not scored"
IN_FLIGHT, IN_BUFFER = "in flight", "in the buffer"
CUT, LOST, UNDONE = "cut at the end", "lost with a process", "undone by a restart"
_WORDS = {
    TOO_STALE: "stale",
    LEFT_OUT: "over-sampled",
    LEASE_EXPIRED: "lease expired",
    EXPLORER_DIED: LOST,
    LOST_IN_BUFFER: LOST,
    FORMED_ANEW: UNDONE,
    "from the future": UNDONE,
    "time-out": RESTARTED,
    "environment failure": RESTARTED,
    **{fault: fault for fault in ("no spread", "too hard", "too easy")},
}
"""Words for the ledger's reasons of drops. Any other reason is that of the run's end."""

_UNDONE = "not trained when the run went on"
"""Beginning of the ledger's reason for groups of steps that a restart has undone."""


class TokenAccount(NamedTuple):
    """Numbers of generated tokens by what became of them.

    Attributes:
      generated: number of tokens by the engines' counters.
      trained: number of tokens that a trainer step has trained on, each counted once.
      uses: number of tokens that trainer steps have trained on, counted again in each step.
      buffered: number of tokens in the replay buffer.
      in_flight: number of tokens that are being generated or scored.
      dropped: number of tokens by the reason why no step trains on them, most first.
      prompt_computed, prompt_reused: numbers of prompt tokens; see `TokenLife`.
    """

    generated: int = 0
    trained: int = 0
    uses: int = 0
    buffered: int = 0
    in_flight: int = 0
    dropped: Mapping[str, int] = {}
    prompt_computed: int = 0
    prompt_reused: int = 0

    @property
    def unrecorded(self) -> int:
        """Number of generated tokens that no record explains; 0 unless records were lost."""
        found = self.trained + self.buffered + self.in_flight + sum(self.dropped.values())
        return self.generated - found

    @property
    def per_trained(self) -> float | None:
        """Number of generated tokens for each trained token; None before the first one."""
        return self.generated / self.trained if self.trained else None

    @property
    def places(self) -> dict[str, int]:
        """Numbers of tokens by place or reason, without zeros; their sum is `generated`."""
        waiting = {IN_BUFFER: self.buffered, IN_FLIGHT: self.in_flight}
        found = {TRAINED: self.trained, **self.dropped, **waiting, "not recorded": self.unrecorded}
        return {name: count for name, count in found.items() if count}

    def describe(self) -> str:
        """Answers in one line how many tokens were generated for a trained token, and why."""
        if not self.trained:
            parts = ", ".join(f"{count:,} {name}" for name, count in self.places.items())
            return f"{self.generated:,} tokens generated, none of them trained" + (
                f": {parts}" if parts else ""
            )
        shares = {name: count / self.trained for name, count in self.places.items()}
        parts = ", ".join(
            f"{share:.2f} {name}" if share >= 0.01 else f"{share:.1g} {name}"
            for name, share in shares.items()
        )
        times = self.uses / self.trained
        again = f"; each was trained on {times:.2f} times" if self.uses != self.trained else ""
        return f"{self.per_trained:.2f} tokens generated for each trained token: {parts}{again}"


def together(accounts: Sequence[TokenAccount]) -> TokenAccount:
    """Returns the account of several runs together."""
    dropped = collections.Counter[str]()
    for one in accounts:
        dropped.update(one.dropped)
    sums = {
        name: sum(getattr(one, name) for one in accounts)
        for name in TokenAccount._fields
        if name != "dropped"
    }
    return TokenAccount(**sums, dropped=dict(dropped.most_common()))


class GroupColumns(NamedTuple):
    """Tokens and fates of whole groups, a row for each.

    Attributes:
      sampled, greedy: numbers of tokens; see `GroupTokens`.
      fate: place of the group's fate in `fates`; -1 if it is not known.
      fates: the fates.
      used: a row for each time that a step has trained on a group.
      used_tokens: number of tokens that this step has trained on.
    """

    sampled: Rows
    greedy: Rows
    fate: Rows
    fates: Sequence[Fate]
    used: Rows
    used_tokens: Rows


def account(
    lives: Sequence[TokenLife],
    groups: Mapping[int, GroupTokens],
    fates: Mapping[int, Fate],
    uses: Mapping[int, Sequence[int]],
    is_over: bool,
) -> TokenAccount:
    """Accounts for all generated tokens.

    Args:
      lives: counts of each process, each role's in order.
      groups: tokens of each whole group, by its lease id.
      fates: fate of each lease.
      uses: tokens of each group that steps have trained on, a number for each such step.
      is_over: whether the run has ended.
    """
    known = [*dict.fromkeys(fates.values())]
    used = [(row, n) for row, lease in enumerate(groups) for n in uses.get(lease, ())]
    columns = GroupColumns(
        sampled=_rows(one.sampled for one in groups.values()),
        greedy=_rows(one.greedy for one in groups.values()),
        fate=_rows(known.index(fates[one]) if one in fates else -1 for one in groups),
        fates=known,
        used=_rows(row for row, _ in used),
        used_tokens=_rows(tokens for _, tokens in used),
    )
    return account_of(lives, columns, is_over)


def account_of(lives: Sequence[TokenLife], groups: GroupColumns, is_over: bool) -> TokenAccount:
    """Accounts for all generated tokens; see `account`."""
    totals: collections.Counter[str] = collections.Counter()
    dropped = _of_lives(lives, is_over)
    rows = len(groups.sampled)
    # Tokens of completions that could not be scored were masked.
    tokens = np.minimum(groups.used_tokens, groups.sampled[groups.used])
    most, uses = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    np.maximum.at(most, groups.used, tokens)
    np.add.at(uses, groups.used, tokens)
    unknown = np.bincount(groups.used, minlength=rows) == 0
    most[unknown] = uses[unknown] = groups.sampled[unknown]
    for number, fate in enumerate(groups.fates):
        found = groups.fate == number
        sampled, greedy = int(groups.sampled[found].sum()), int(groups.greedy[found].sum())
        if fate.state == TRAINED:
            trained = int(most[found].sum())
            totals[TRAINED] += trained
            totals["uses"] += int(uses[found].sum())
            dropped[UNSCORED] += sampled - trained
            dropped[GREEDY] += greedy
        elif fate.state == BUFFERED:
            totals[BUFFERED] += sampled
            dropped[GREEDY] += greedy
        elif fate.state == DROPPED:
            dropped[_word(fate.reason)] += sampled + greedy
        elif fate.state == GENERATING:
            totals[IN_FLIGHT] += sampled + greedy
    # Tokens with which a process went on are in its groups. What is left of them has another
    # process generated after its last record.
    given = sum(one.given for one in lives)
    for place in (LOST, CUT, IN_FLIGHT, LEASE_EXPIRED):
        moved = min(given, dropped[place])
        dropped[place] -= moved
        given -= moved
    totals[IN_FLIGHT] += dropped.pop(IN_FLIGHT, 0)
    return TokenAccount(
        generated=sum(one.generated for one in lives) + given,
        trained=totals[TRAINED],
        uses=totals["uses"],
        buffered=totals[BUFFERED],
        in_flight=totals[IN_FLIGHT],
        dropped={name: count for name, count in dropped.most_common() if count},
        prompt_computed=sum(one.prompt_computed for one in lives),
        prompt_reused=sum(one.prompt_reused for one in lives),
    )


def _rows(numbers: Iterable[int]) -> Rows:
    return np.fromiter(numbers, np.int64)


def _of_lives(lives: Sequence[TokenLife], is_over: bool) -> collections.Counter[str]:
    """Counts the tokens that are in no whole group."""
    found: collections.Counter[str] = collections.Counter()
    last = {one.role: one for one in lives}
    for life in lives:
        found.update(life.to)
        if life.is_over:
            found[CUT] += life.in_flight
        elif life is last[life.role] and not is_over:
            found[IN_FLIGHT] += life.in_flight
        else:
            found[LOST] += life.in_flight
    return found


def _word(reason: str) -> str:
    return UNDONE if reason.startswith(_UNDONE) else _WORDS.get(reason, CUT)
