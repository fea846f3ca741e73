"""The lines of charts/job-group/files/entry.sh that define exit codes, generated from the contract
table.
"""

from __future__ import annotations

from hack.gen.contract_files import SOURCE, contract
from hack.paths import between

NAMES = (
    "FAILED",
    "USAGE",
    "NODE_LOST",
    "NODE_UNFIT",
    "SAVED",
    "STOPPED",
)  # those that the script uses
FIRST, LAST = f"# Exit codes. {SOURCE}\n", "# End of the generated lines.\n"


def updated(script: str) -> str:
    """The script with its generated lines replaced."""
    codes = "".join(f"{name}={contract.ExitCode[name]:d}\n" for name in NAMES)
    return between(script, FIRST, LAST, codes)
