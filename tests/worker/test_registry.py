"""A check is one file or folder."""

import re
import sys

import pytest

from gpuworker.accept import checks, fault_injection
from gpuworker.judgement import check_spec, registry
from tests.helpers.fleet_reports import REPO

GOOD = '''"""The disk spins."""
from gpuworker.judgement.check_spec import Evidence, Spec

SPEC = Spec("STORAGE", {"full": 1}, faults={"stuck-disk": "stuck"})

def measure(plan):
    return Evidence(facts={"rpm": 7200})
'''


@pytest.fixture
def add(monkeypatch, tmp_path):
    monkeypatch.setattr(checks, "__path__", [*checks.__path__, str(tmp_path)])

    def write(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text)

    yield write
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(f"{checks.__name__}.{path.stem}", None)


def test_a_file_is_a_check(add):
    before = list(registry.load())
    add("disk", GOOD)
    found = registry.load()
    assert set(found) - set(before) == {"disk"}
    assert found["disk"].proves == "The disk spins"
    assert found["disk"].measure(check_spec.Plan("cpu", 0)).facts == {"rpm": 7200}


def test_every_check_is_complete():
    owners = dict.fromkeys(fault_injection.RUNNER_FAULTS, "the runner")
    for name, check in registry.load().items():
        spec = check
        assert check.proves and (check.measure or check.measure_world or check.ranks), name
        assert spec.tag in check_spec.TAGS and set(spec.seconds) <= set(check_spec.LEVELS), name
        assert bool(spec.seconds) == bool(check.measure or check.ranks), name
        assert bool(spec.across_nodes) >= bool(check.measure_world), name
        assert [fault for fault in spec.faults if owners.setdefault(fault, name) != name] == []
        for measure in spec.measures.values():
            assert measure.better in ("higher", "lower") and measure.each in (
                "device",
                "pair",
                "node",
            ), name


def test_checks_are_listed_without_torch(start):
    """Docs and --list do not need torch."""
    text = "import sys; sys.modules['torch'] = None; import gpuworker.judgement.registry as it; print(len(it.load()))"
    program = start("-c", text)
    assert program.wait() == 0, program.output
    assert int(program.output) == len(registry.load())


def test_every_entry_of_a_report_is_in_the_docs():
    """Also those of the runner, which are not in the registry."""
    sources = [path.read_text() for path in (REPO / "worker/src/gpuworker/accept").rglob("*.py")]
    entry = re.compile(r'\b(?:not_done\(|name=)"(\w+)"')
    names = {name for text in sources for name in entry.findall(text)} | set(registry.load())
    documented = (REPO / "docs/accept-checks.md").read_text()
    assert {"fabric", "xids", "compute"} <= names
    assert [
        name
        for name in names
        if f"\n## {name}\n" not in documented and f"\n| `{name}` | " not in documented
    ] == []
