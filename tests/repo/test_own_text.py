"""Findings are data: no regular expression reads text that this project wrote."""

import ast

import pytest

from hack.paths import REPO

SOURCE = REPO / "worker/src/gpuworker"
# Modules with regular expressions -> the foreign text that they read.
FOREIGN = {
    "accept/checks/repeatability.py": "the form of a hash in a report",
    "accept/fabric.py": "files of sysfs and names of adapters",
    "accept/host_info.py": "the kernel's log and /proc",
    "accept/kernels/fingerprint.py": "/proc/self/maps",
    "judgement/fleet_report.py": "names of nodes and devices",
    "judgement/suspects.py": "names of nodes",
}


def imports_re(text: str) -> bool:
    """Also in a function, or under another name."""
    found = [
        node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    names = {getattr(node, "module", None) or alias.name for node in found for alias in node.names}
    return not names.isdisjoint({"re", "regex", "fnmatch"})


@pytest.mark.parametrize("part", ["accept", "judgement", "fleet"])
def test_only_modules_that_read_foreign_text_have_regular_expressions(part):
    files = {
        str(path.relative_to(SOURCE)): path.read_text() for path in (SOURCE / part).rglob("*.py")
    }
    assert {name for name, text in files.items() if imports_re(text)} == {
        n for n in FOREIGN if n.startswith(part)
    }


def test_an_import_of_re_is_seen():
    assert imports_re("def f():\n    import re as _re") and imports_re("from re import match")
    assert not imports_re("import repeatability")
