"""The interface of every transfer: a publisher for the trainer, a puller for an explorer."""

from __future__ import annotations

from typing import Protocol

from rl_sync.types import Params


class WeightsTimeoutError(TimeoutError):
    """A publish or a pull missed its deadline; the message says what it waited for."""


class WeightsMismatchError(RuntimeError):
    """The received weights differ from the published ones, by their digests.

    Attributes:
      version: the policy version.
      published, received: digests of the published and of the received weights.
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
    """A transfer broke; its process group or its storage is no longer usable."""


class TransferUnavailableError(RuntimeError):
    """A transfer is unavailable in this version of JAX, or on this backend."""


class Publisher(Protocol):
    """The trainer's end of a transfer."""

    def publish(self, version: int, params: Params) -> None:
        """Offers `params` as `version`; the caller may donate `params` as soon as this returns.

        Raises:
          WeightsTimeoutError: a deadline passed.
          WeightsTransferError: this or an earlier version could not be transferred.
        """

    def close(self) -> None:
        """Finishes the transfers that `publish` started, and frees all resources."""


class Puller(Protocol):
    """An explorer's end of a transfer."""

    def pull(
        self, *, exactly: int | None = None, at_least: int | None = None, timeout_secs: float
    ) -> tuple[int, Params]:
        """Waits for a version and receives it.

        Args:
          exactly: the only version that will do.
          at_least: minimum version: the newest version is received once it reaches this. With
            neither argument, the newest version is received, whichever it is.
          timeout_secs: maximum wait.

        Returns:
          The version and its parameters, equal to the published ones to the bit.

        Raises:
          WeightsTimeoutError: no such version was published in time.
          WeightsMismatchError: the received weights differ from the published ones.
        """

    def newest(self, at_least: int = -1, timeout_secs: float = 0.0) -> int:
        """Returns the newest version that can be pulled now; -1 if there is none.

        Args:
          at_least: version to wait for.
          timeout_secs: maximum wait for it. The wait ends early if the version will not come,
            because the run is being stopped.
        """

    def close(self) -> None:
        """Frees all resources."""


def wanted_text(exactly: int | None, at_least: int | None) -> str:
    """Describes the version that a pull asks for.

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
