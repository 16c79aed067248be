"""Records of what the master's server knows besides the master's state, as its journal has them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

from rl_sync.messages.events import LiveLease
from rl_sync.messages.master_calls import HandInEvaluation, Trained
from rl_sync.messages.run_result import RunResult
from rl_sync.messages.scoring_calls import Judgements
from rl_sync.roles.master.weight_registry import RegistryMemory
from rl_sync.scoring.judging import Verdicts


class CountedStep(NamedTuple):
    """A trainer step was counted: the event, and what its metrics are made of.

    Attributes:
      call: the trainer's report.
      spent: see `RunTotals.spent`.
    """

    call: Trained
    spent: Mapping[str, Mapping[str, float]]


class Answered(NamedTuple):
    """The answer to the trainer's last report, in case that it was lost."""

    step: int
    judgements: Judgements


@dataclasses.dataclass(frozen=True)
class AccountsMemory:
    """Content of the accounts of steps.

    Attributes:
      reward: mean reward of the last step; None if there is none.
      not_selected: leases that were dropped for steps that are not trained yet.
      tokens, told, spent: see `RunTotals`.
      answered: answer to the trainer's last report.
    """

    reward: float | None = None
    not_selected: tuple[LiveLease, ...] = ()
    tokens: float = 0.0
    told: Mapping[str, float] = dataclasses.field(default_factory=dict)
    spent: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    answered: Answered | None = None


@dataclasses.dataclass(frozen=True)
class ServerMemory:
    """Knowledge of the server at the beginning of a file of the journal.

    Attributes:
      began_secs: start of the run, in Unix seconds.
      ledger_bytes: size of the ledger.
      phase: phase of the run.
      result: the run's result so far.
      first_lease: first lease id that no earlier attempt has used.
      accounts: accounts of steps.
      verdicts: verdicts of groups that no step has trained on.
      handed: completions of evaluations that are being scored.
      measured: moments of the evaluations that are measured.
      weights: what the registry of weights knows.
    """

    began_secs: float
    ledger_bytes: int = 0
    phase: str = "start"
    result: RunResult = dataclasses.field(default_factory=RunResult)
    first_lease: int = 0
    accounts: AccountsMemory = dataclasses.field(default_factory=AccountsMemory)
    verdicts: Verdicts = dataclasses.field(default_factory=lambda: Verdicts({}))
    handed: tuple[HandInEvaluation, ...] = ()
    measured: tuple[str, ...] = ()
    weights: RegistryMemory = dataclasses.field(default_factory=RegistryMemory)
