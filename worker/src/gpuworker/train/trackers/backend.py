"""Interface between the sender and a tracker's client."""

from __future__ import annotations

from typing import Protocol


class RejectedError(Exception):
    """The server rejected the request, for example for a wrong key or name. An early retry would fail again."""


class Backend(Protocol):
    """Client of one tracker. Every method may raise; the sender retries later with the same records.

    `artifacts_last`: files are sent after the end of the run, so that a store that fails cannot keep the run open.
    """

    artifacts_last: bool

    def start(self) -> dict[str, object]:
        """Find or create the run and join it. Returns facts for a log line."""

    def send(self, records: list[dict]) -> None:
        """Pass records to the client, in the form of spool.py."""

    def delivered(self) -> bool:
        """Whether the server has received all records."""

    def end(self, status: str | None) -> None:
        """Set the status of the run, `finished` or `failed`, or leave it open. Ends the client."""

    def abandon(self) -> None:
        """Kill the processes that the client has started."""
