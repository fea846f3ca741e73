"""The end of a program that has used torch.distributed."""

from __future__ import annotations

import atexit
import os
import sys
from typing import NoReturn


def leave(code: int) -> NoReturn:
    """As sys.exit, but without the exit handlers registered before and without the interpreter's own end: a thread of
    Gloo that still lets go of a tensor then aborts a process that was done ("terminate called without an active
    exception", torch 2.14 and 2.15, once in hundreds).
    """
    sys.stdout.flush()
    sys.stderr.flush()
    atexit.register(os._exit, code)
    sys.exit(code)
