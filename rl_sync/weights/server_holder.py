"""One process of the trainer in a point-to-point transfer, as explorers call it."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol


class Offer(NamedTuple):
    """One version, ready to be fetched by one explorer.

    Attributes:
      version: the policy version.
      uuid: the id to ask the transfer server for.
    """

    version: int
    uuid: int


class Holder(Protocol):
    """One process of the trainer; arguments and results are plain values.

    All methods raise `ConnectionError` if the process does not answer.
    """

    def manifest(self) -> list[Any]:
        """Returns the manifest; see `Manifest.to_wire`."""

    def open(self, reader: str) -> str:
        """Starts a transfer server for an explorer's process, in place of its earlier one.

        Returns:
          The server's address.
        """

    def offer(
        self,
        reader: str,
        parts: list[int],
        exactly: int | None,
        at_least: int | None,
        timeout_secs: float,
    ) -> list[Any] | None:
        """Waits for a version, and registers parts of it with the explorer's transfer server.

        Returns:
          An `Offer`, as a list; None if there is no such version in time.
        """

    def taken(self, reader: str) -> str:
        """Reports that the explorer has fetched all parts of its last offer.

        Returns:
          The digest of that version's parameters, which is computed during the transfer.
        """

    def close_line(self, reader: str) -> None:
        """Reports that the explorer will not ask again."""
