"""The fleet report as JSON, by the schema schemas/fleet.yaml."""

from __future__ import annotations

import json

from gpuworker.fleet.fleet_report import Fleet


def json_text(fleet: Fleet) -> str:
    return json.dumps(fleet.to_dict(), allow_nan=False) + "\n"
