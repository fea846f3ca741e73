"""leave() ends a process with its exit code, whatever the interpreter's own end would do."""

import os
import subprocess
import sys

from tests.helpers.processes import SOURCE


def test_the_interpreters_end_is_left_out():
    program = (
        "import os, sys; from gpuworker.runtime.process_exit import leave\n"
        "class Late:\n    abort = os.abort\n    def __del__(self): self.abort()\n"
        "sys.late = Late(); print('said'); leave(5)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(SOURCE)}, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stdout) == (5, "said\n"), ended.stderr
