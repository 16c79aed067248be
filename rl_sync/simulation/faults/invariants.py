"""Rules that hold after every event of a run, whatever fails."""

from __future__ import annotations

import collections
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rl_sync.messages.events import LiveLease
from rl_sync.records.flow import Fate
from rl_sync.records.tokens.token_account import account
from rl_sync.records.tokens.token_lives import GroupTokens, TokenLife
from rl_sync.roles.master.state import MasterState
from rl_sync.simulation.faults.drawn_run import DrawnRun
from rl_sync.types import CompletionProgress, Group, Lease

_MODULUS = 2**61 - 1


class BrokenRuleError(AssertionError):
    """A rule does not hold; the message says which, and with which values."""


class SimulatedGroup(NamedTuple):
    """A generated group.

    Attributes:
      lease_id, ordinal: see `Lease`.
      explorer: number of the explorer that generated it.
      oldest_version: version of its first token.
      content: stands for its tokens, and depends on the prompt and on the weights.
    """

    lease_id: int
    ordinal: int
    explorer: int
    oldest_version: int
    content: int

    @property
    def tokens(self) -> int:
        """Number of its tokens."""
        return 1 + self.content % 7


class TrainedBatch(NamedTuple):
    """The batch of a step, and the leases that later steps may train on again."""

    groups: tuple[SimulatedGroup, ...]
    kept: tuple[int, ...]


def mixed(*values: int) -> int:
    """Returns a number that depends on all values and their order, in every process alike."""
    text = ",".join(map(str, values)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) % _MODULUS


def first_weights(run: DrawnRun) -> int:
    """Returns the weights before the first step."""
    return mixed(run.seed, 0)


def content_of(run: DrawnRun, ordinal: int, attempt: int, weights: int) -> int:
    """Returns the content of a group."""
    return mixed(run.seed, ordinal, attempt, weights)


def trained(weights: int, groups: Sequence[SimulatedGroup]) -> int:
    """Returns the weights after a step."""
    return mixed(weights, *(group.content for group in groups))


def digest_of(weights: int) -> str:
    """Returns the digest of weights."""
    return f"{mixed(weights, 1):x}"


def expected_weights(run: DrawnRun) -> int:
    """Computes the last weights of an exact run from its schedule alone."""
    weights = {0: first_weights(run)}
    for step in range(1, run.steps + 1):
        version = run.schedule.exact_version(step)
        ordinals = range((step - 1) * run.groups_per_step, step * run.groups_per_step)
        groups = [
            SimulatedGroup(0, at, 0, version, content_of(run, at, 0, weights[version]))
            for at in ordinals
        ]
        weights[step] = trained(weights[step - 1], groups)
    return weights[run.steps]


class Invariants:
    """Watches a run, and raises `BrokenRuleError` once a rule does not hold.

    Args:
      run: the run.
    """

    def __init__(self, run: DrawnRun) -> None:
        self._run = run
        self._published: dict[int, str] = {}
        self._begun: dict[tuple[int, int], set[tuple[int, int]]] = {}
        self._holders: dict[int, tuple[int, str, int]] = {}
        self._batches: dict[int, TrainedBatch] = {}
        self._tokens: dict[int, GroupTokens] = {}
        self._newest, self._reported = -1, 0
        self._saving: frozenset[int] = frozenset()
        self._saved: frozenset[int] = frozenset()

    def granted(self, explorer: str, life: int, leases: Sequence[Lease]) -> None:
        """An explorer has got leases: nobody else has them."""
        for lease in leases:
            holder = (lease.ordinal, explorer, life)
            before = self._holders.setdefault(lease.lease_id, holder)
            if before != holder:
                raise BrokenRuleError(
                    f"lease {lease.lease_id} was granted twice: as {before}, then as {holder}"
                )

    def gives(self, lease: LiveLease, oldest_version: int) -> None:
        """The master gives tokens with a lease: its bound is that of the oldest of them."""
        if oldest_version < lease.version:
            raise BrokenRuleError(
                f"lease {lease.lease_id} of version {lease.version} goes on with tokens of version"
                f" {oldest_version}"
            )

    def begins(self, lease: Lease, version: int, content: int, *, is_new: bool) -> None:
        """An explorer begins a group, or goes on with one: then with draws of the same attempt."""
        begun = self._begun.setdefault((lease.ordinal, lease.attempt), set())
        if is_new:
            begun.add((version, content))
        elif (version, content) not in begun:
            raise BrokenRuleError(
                f"lease {lease.lease_id} goes on with {content} of version {version}, but attempt"
                f" {lease.attempt} of ordinal {lease.ordinal} was begun with {begun}"
            )

    def answers(self, lease: Lease, progress: CompletionProgress, content: int) -> None:
        """An episode goes on: each reply answers its turn, and all are of the same attempt.

        Args:
          content: content of the group; a reply is its sum with the number of the turn.
        """
        turns = [int(mark.turn) for mark in progress.replies]
        said = [int(token) - content for token in progress.tokens]
        if turns and said != turns:
            raise BrokenRuleError(
                f"lease {lease.lease_id} goes on with replies to the turns {said}, but the turns"
                f" were {turns}"
            )
        if sorted(turns) != turns or any(turn // 1000 != progress.attempt for turn in turns):
            raise BrokenRuleError(
                f"lease {lease.lease_id} goes on with turns of several attempts: {turns} in"
                f" attempt {progress.attempt}"
            )

    def published(self, version: int, weights: int) -> None:
        """The trainer publishes a version: it is the same as any time before."""
        digest = digest_of(weights)
        before = self._published.setdefault(version, digest)
        if before != digest:
            raise BrokenRuleError(
                f"version {version} was published with digest {before}, and again with {digest}"
            )

    def decodes(self, explorer: str, version: int | None, weights: int | None) -> None:
        """An explorer generates: the digest of its weights is the published one."""
        digest = None if weights is None else digest_of(weights)
        known = None if version is None else self._published.get(version)
        if known is None or digest != known:
            raise BrokenRuleError(
                f"{explorer} decodes with version {version} of digest {digest}; published: {known}"
            )

    def generates(self, explorer: str, groups: int) -> None:
        """An explorer begins a part of a rollout: it has something to generate."""
        if not groups:
            raise BrokenRuleError(f"{explorer} begins a rollout without a group")

    def generated(self, groups: Sequence[Group]) -> None:
        """An explorer has generated groups, whose tokens count whatever becomes of them."""
        sampled = {group.lease_id: int(group.completion_mask.sum()) for group in groups}
        self._tokens |= {lease_id: GroupTokens(count, 0) for lease_id, count in sampled.items()}

    def waits(self, process: str, what: str, secs: float | None) -> None:
        """A process begins to wait: not for ever."""
        if secs is None or secs > 1e6:
            raise BrokenRuleError(f"{process} waits for {what} without a deadline")

    def stepped(self, step: int, batch: TrainedBatch, is_again: bool) -> None:
        """The trainer has computed a step, on groups that it may train on."""
        run, schedule = self._run, self._run.schedule
        groups = batch.groups
        before = self._batches.get(step)
        if before is not None and before != batch and (is_again or step <= self._reported):
            what = "was logged" if is_again else "was reported"
            raise BrokenRuleError(f"step {step} {what} with {before}, and now trains on {batch}")
        self._batches[step] = batch
        if len(groups) != run.groups_per_step:
            raise BrokenRuleError(f"step {step} has {len(groups)} groups")
        for group in groups:
            if not schedule.accepts(step, group.oldest_version):
                raise BrokenRuleError(
                    f"step {step} trains on {group}, whose staleness is"
                    f" {schedule.staleness(step, group.oldest_version)}, over the bound"
                    f" {schedule.staleness_bound}"
                )
            if run.is_exact and group.oldest_version != schedule.exact_version(step):
                raise BrokenRuleError(f"step {step} trains on {group} of another version")
        ordinals = [group.ordinal for group in groups]
        first = (step - 1) * run.groups_per_step
        if run.is_exact and ordinals != [*range(first, first + run.groups_per_step)]:
            raise BrokenRuleError(f"step {step} trains on the ordinals {ordinals}")
        uses = collections.Counter(
            group.lease_id
            for at, one in self._batches.items()
            if at <= step
            for group in one.groups
        )
        doubled = [lease_id for lease_id, count in uses.items() if count > run.times_sampled]
        if doubled or len({group.lease_id for group in groups}) < len(groups):
            raise BrokenRuleError(
                f"step {step} trains on leases {doubled or ordinals} more often than allowed"
            )

    def mastered(self, state: MasterState, tokens: dict[int, int]) -> None:
        """The master has handled an event: its ledger is balanced.

        Args:
          tokens: tokens of each step that was reported to the master.
        """
        ended = state.trained + sum(state.dropped.values())
        if state.leased != ended + len(state.live):
            raise BrokenRuleError(
                f"the ledger lost groups: {state.leased} leased, {ended} ended,"
                f" {len(state.live)} live"
            )
        if self._run.style != "whole" and self._run.times_sampled == 1:
            self._meet_deadlines(state)
        newest = -1 if state.newest is None else state.newest
        is_anew = (
            newest == -1 and self._run.is_joint
        )  # Nobody has weights in a cluster formed anew.
        if newest < self._newest and not is_anew:
            raise BrokenRuleError(f"version {newest} became the newest after {self._newest}")
        self._newest, self._reported = newest, max(self._reported, state.trained_steps)
        if sorted(tokens) != [*range(1, state.trained_steps + 1)]:
            raise BrokenRuleError(
                f"{state.trained_steps} steps are trained, and tokens are known of {sorted(tokens)}"
            )

    def _meet_deadlines(self, state: MasterState) -> None:
        """All live groups can be trained on in time, the oldest versions first."""
        run, live = self._run, state.live.values()
        taken = max([state.trained_steps, *(one.taken for one in live)])
        last = sorted(
            min(run.steps, one.version + run.schedule.max_staleness + 1)
            for one in live
            if not one.taken
        )
        for number, step in enumerate(last, start=1):
            if number > (step - taken) * run.groups_generated:
                raise BrokenRuleError(
                    f"{number} groups have to be trained on up to step {step}, of which {taken}"
                    f" steps of {run.groups_generated} are taken"
                )

    def master_restarted(self, state: MasterState) -> None:
        """The master has read its journal: it may not remember what nobody was told."""
        self._newest = -1 if state.newest is None else state.newest
        self._reported = state.trained_steps

    def snapshot_begins(self, buffered: frozenset[int]) -> None:
        """The trainer begins a snapshot, while these groups are in the buffer."""
        self._saving = buffered

    def snapshot_ends(self) -> None:
        """The snapshot counts from now on."""
        self._saved = self._saving

    def sampled(self, lease_id: int) -> None:
        """A group has left the buffer."""
        self._saving -= {lease_id}
        self._saved -= {lease_id}

    def buffer_restarted(self, buffered: frozenset[int]) -> None:
        """The buffer has read its checkpoint: nothing that the newest snapshot had is lost."""
        if lost := self._saved - buffered:
            raise BrokenRuleError(f"the groups {sorted(lost)} of the newest snapshot are lost")
        self._saving &= buffered  # The others were lost before the snapshot had them.

    def ended(self, state: MasterState, tokens: dict[int, int], weights: int) -> None:
        """The run is over."""
        run = self._run
        if state.trained_steps != run.steps:
            raise BrokenRuleError(f"the run ended after step {state.trained_steps} of {run.steps}")
        used = {step: sum(g.tokens for g in one.groups) for step, one in self._batches.items()}
        if used != tokens:
            raise BrokenRuleError(f"the ledger has tokens {tokens}, trained were {used}")
        if run.is_exact and weights != expected_weights(run):
            raise BrokenRuleError(
                f"the digest is {digest_of(weights)}; without faults it is"
                f" {digest_of(expected_weights(run))}"
            )

    def accounted(self, fates: Mapping[int, Fate]) -> None:
        """The run is over: the account of tokens closes, and has those that were trained on."""
        lives = [TokenLife("explorers", 0, 0, sum(one.sampled for one in self._tokens.values()))]
        uses = collections.defaultdict[int, list[int]](list)
        for batch in self._batches.values():
            for group in batch.groups:
                uses[group.lease_id].append(group.tokens)
        found = account(lives, self._tokens, fates, uses, is_over=True)
        trained = sum(max(of) for of in uses.values())
        if found.unrecorded or found.trained != trained:
            raise BrokenRuleError(
                f"of {found.generated} generated tokens {found.unrecorded} are in no place;"
                f" {found.trained} count as trained, and steps have trained on {trained}"
            )


def described(event: Any) -> str:
    """Returns a short text about a command or an event."""
    text = str(event)
    return text if len(text) <= 400 else text[:157] + "..."
