"""What the sender asks of a tracker's client."""

from __future__ import annotations

from typing import Protocol


class Refused(Exception):
    """The server answered that it will not: a wrong key, a wrong name. Asking again soon changes nothing."""


class Backend(Protocol):
    """Every method may raise; the sender tries again later, with the same records."""

    def start(self) -> dict[str, object]:
        """Find or create the run, and join it; facts for a log line."""

    def send(self, records: list[dict]) -> None:
        """Hand over records as spool.py describes them."""

    def delivered(self) -> bool:
        """Whether the server has all that was handed over."""

    def end(self, status: str | None) -> None:
        """Give the run its status, `finished` or `failed`, or leave it open; the client is over then."""

    def abandon(self) -> None:
        """End at once what the client runs beside this process."""
