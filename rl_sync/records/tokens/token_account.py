"""The account of a run's tokens: each is trained on, dropped for a reason, or waits."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rl_sync.messages.events import (
    EXPLORER_DIED,
    FORMED_ANEW,
    LEASE_EXPIRED,
    LEFT_OUT,
    LOST_IN_BUFFER,
    TOO_STALE,
)
from rl_sync.records.flow import BUFFERED, DROPPED, GENERATING, TRAINED, Fate
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
    totals: collections.Counter[str] = collections.Counter()
    dropped = _of_lives(lives, is_over)
    for lease, tokens in groups.items():
        fate = fates.get(lease)
        if fate is None:
            continue
        if fate.state == TRAINED:
            # Tokens of completions that could not be scored were masked.
            steps = [min(one, tokens.sampled) for one in uses.get(lease, [tokens.sampled])]
            totals[TRAINED] += max(steps)
            totals["uses"] += sum(steps)
            dropped[UNSCORED] += tokens.sampled - max(steps)
            dropped[GREEDY] += tokens.greedy
        elif fate.state == BUFFERED:
            totals[BUFFERED] += tokens.sampled
            dropped[GREEDY] += tokens.greedy
        elif fate.state == DROPPED:
            dropped[_word(fate.reason)] += sum(tokens)
        elif fate.state == GENERATING:
            totals[IN_FLIGHT] += sum(tokens)
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
