"""Invariants of jobgen that hold for any input bytes."""

import functools
import os
import tempfile
import time
from pathlib import Path

import jsonschema
import yaml

from jobgen.api import Options, to_values
from tests.helpers.rendering import schema

SECONDS = 10  # CPU time limit: 1 s on an idle machine; quadratic time would take minutes
VALUES = jsonschema.Draft7Validator(schema("job-group"))


@functools.cache
def options() -> Options:
    """With the folder of the files that generated groups mention; libFuzzer ends without a
    clean-up.
    """
    made = Path(tempfile.gettempdir()) / f"gpu-charts-fuzz-{os.getuid()}"
    (made / "code" / "lib").mkdir(parents=True, exist_ok=True)
    files = {"code/train.py": b"print(1)\n", "code/lib/x.bin": b"\xff\x00", "app.conf": b"a = 1\n"}
    for name, content in files.items():
        file = made / name
        if not file.exists() or file.read_bytes() != content:  # another process may be reading it
            file.write_bytes(content)
    return Options(folder=str(made))


def jobgen(source: bytes):
    start = time.process_time()
    result = to_values(source, options())
    spent = time.process_time() - start
    assert spent < SECONDS, f"took {spent:.1f} s"

    again = to_values(source, options())
    assert (again.text, again.diagnostics) == (result.text, result.diagnostics), (
        "a second run differs"
    )

    errors = [diagnostic for diagnostic in result.diagnostics if diagnostic.severity == "error"]
    assert bool(errors) == (result.text is None), "refused without an error, or accepted with one"
    lines = source.count(b"\n") + source.count(b"\r") + 1
    for diagnostic in result.diagnostics:
        assert 1 <= diagnostic.line <= lines + 1, f"line {diagnostic.line} of {lines}"
        assert diagnostic.column >= 1, "no column"
        assert "\n" not in diagnostic.message, "a message of two lines"
        diagnostic.message.encode()
    if result.text is not None:
        result.text.encode()
        for flaw in VALUES.iter_errors(
            yaml.load(result.text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        ):
            raise AssertionError(f"the chart refuses the values: {flaw.json_path}: {flaw.message}")
