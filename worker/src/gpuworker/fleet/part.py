"""One part of a node: what is wrong with it, and what follows from that elsewhere."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field


@dataclass
class Part:
    findings: list = field(default_factory=list)
    consequences: list[tuple[str, object]] = field(default_factory=list)  # why it follows, and the finding

    def add(self, other: Part) -> None:
        self.findings += other.findings
        self.consequences += other.consequences


class Parts(defaultdict[str, Part]):
    """Device, link, port or several of them -> its part; "" is the node itself."""

    def __init__(self) -> None:
        super().__init__(Part)


def several(count: int, of_all: int, what: str = "GPUs") -> str:
    """The name of the part that several GPUs or ports of a node are."""
    return f"{'all ' * (count == of_all)}{count} {what}"
