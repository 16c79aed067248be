"""What every transfer of weights offers: a publisher for the trainer, a puller for an explorer."""

from __future__ import annotations

from typing import Protocol

from rl_sync.types import Params


class WeightsTimeoutError(TimeoutError):
    """A publish or a pull passed its deadline; the message says what it waited for and how long."""


class WeightsMismatchError(RuntimeError):
    """The received weights are not the published ones: their digests differ.

    Attributes:
      version: the policy version.
      published, received: the two digests.
    """

    def __init__(self, version: int, published: str, received: str) -> None:
        super().__init__(
            f"The weights of version {version} arrived changed: the trainer published digest"
            f" {published}, this process received {received}. The transfer or the storage below it"
            " is at fault; nothing was generated with these weights."
        )
        self.version = version
        self.published = published
        self.received = received


class WeightsTransferError(RuntimeError):
    """A transfer broke while it ran, so its process group or its storage can no longer be used."""


class TransferUnavailableError(RuntimeError):
    """A transfer cannot be had with this version of JAX, or on its backend."""


class Publisher(Protocol):
    """The trainer's end."""

    def publish(self, version: int, params: Params) -> None:
        """Offers `params` as `version`; the caller may donate `params` as soon as this returns.

        Raises:
          WeightsTimeoutError: a deadline passed.
          WeightsTransferError: this or an earlier version could not be transferred.
        """

    def close(self) -> None:
        """Finishes what `publish` began and frees what it holds."""


class Puller(Protocol):
    """An explorer's end."""

    def pull(
        self, *, exactly: int | None = None, at_least: int | None = None, timeout_secs: float
    ) -> tuple[int, Params]:
        """Waits for a version and receives it.

        Args:
          exactly: this version and no other.
          at_least: the newest version, which must not be below this one. With neither argument
            the newest version, whichever it is.
          timeout_secs: how long to wait.

        Returns:
          The version and its parameters, bit for bit as they were published.

        Raises:
          WeightsTimeoutError: no such version was published in time.
          WeightsMismatchError: what arrived is not what was published.
        """

    def newest(self, at_least: int = -1, timeout_secs: float = 0.0) -> int:
        """The newest version that could be pulled now; -1 if there is none.

        Args:
          at_least: a version to wait for.
          timeout_secs: how long to wait for it; who hears earlier that it will not come, because
            the run is being stopped, may return earlier.
        """

    def close(self) -> None:
        """Frees what the puller holds."""


def wanted_text(exactly: int | None, at_least: int | None) -> str:
    """What a pull asks for, in words.

    Raises:
      ValueError: both are given.
    """
    if exactly is not None and at_least is not None:
        raise ValueError(
            f"A pull asks for one version (exactly={exactly}) or for the newest"
            f" (at_least={at_least}), not for both."
        )
    if exactly is not None:
        return f"version {exactly}"
    return f"a version of at least {at_least}" if at_least else "any version"
