"""The suspects as CSV, for a spreadsheet."""

from __future__ import annotations

import csv
import io

from gpuworker.fleet.fleet_report import Fleet

COLUMNS = (
    "verdict",
    "act",
    "node",
    "device",
    "model",
    "uuid",
    "serial",
    "pci",
    "pod",
    "why",
    "advice",
)


def suspects_csv(fleet: Fleet) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    writer.writerows(
        [_cell(getattr(suspect, column)) for column in COLUMNS] for suspect in fleet.suspects
    )
    return text.getvalue()


def _cell(value: str) -> str:
    """A spreadsheet runs a cell that starts like a formula; an apostrophe makes it text."""
    return (
        f"'{value}"
        if value.lstrip("\t\r\n ").startswith(("=", "+", "-", "@"))
        else value.replace("\0", "?")
    )
