"""Import rules of the worker: products do not import each other, runtime imports nothing above it,
no circles.
"""

import ast
import functools
import graphlib
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "worker" / "src"
PRODUCTS = ("accept", "group", "launch", "train")
# They run in processes that import torch anyway.
WITH_TORCH = ("process_group.py",)


def modules() -> dict[str, Path]:
    """Module name -> file."""
    files = (SOURCE / "gpuworker").rglob("*.py")
    return {
        ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
        for path in files
    }


def imported(name: str, path: Path, known: set[str], tree: ast.AST | None = None) -> set[str]:
    """Modules that a file imports anywhere, also inside functions; names from packages count as
    modules if they are.
    """
    found = set()
    for node in ast.walk(tree or ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            members = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (members & known) or {node.module}
    return found - {name}


@functools.cache
def graph() -> dict[str, set[str]]:
    files = modules()
    return {name: imported(name, path, set(files)) for name, path in files.items()}


def package(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def arrows(source: str) -> set[str]:
    """Modules of other packages of gpuworker that the package `source` imports."""
    targets = {
        target
        for name, all_targets in graph().items()
        if package(name) == source
        for target in all_targets
    }
    return {
        target
        for target in targets
        if target.startswith("gpuworker.") and package(target) != source
    }


def test_the_search_finds_imports():
    assert len(modules()) > 80
    assert "gpuworker.runtime.contract" in arrows("launch")


def test_runtime_imports_nothing_above_it():
    assert arrows("runtime") == set()


@pytest.mark.parametrize("product", PRODUCTS)
def test_products_import_runtime_only(product):
    below = {"runtime"} | ({"judgement"} if product == "accept" else set())
    assert {package(target) for target in arrows(product)} <= below


def test_judgement_is_pure_and_fleet_stands_on_it():
    assert {package(target) for target in arrows("judgement")} <= {"runtime"}
    assert {package(target) for target in arrows("fleet")} <= {"runtime", "judgement"}
    opens = {"gpuworker.runtime.plain_files", "os", "socket", "subprocess", "urllib", "tempfile"}
    for name, targets in graph().items():
        assert package(name) != "judgement" or not targets & opens, name


def test_there_is_no_circle_of_modules():
    known = graph()
    inside = {
        name: {target for target in targets if target in known} for name, targets in known.items()
    }
    tuple(graphlib.TopologicalSorter(inside).static_order())  # raises CycleError with the circle


@pytest.mark.parametrize("product", ["launch", "group", "runtime", "fleet"])
def test_programs_without_torch_import_the_standard_library_only(product):
    """At import time: what a function imports later may be absent."""
    files = modules()
    for name, path in files.items():
        if package(name) != product or path.name in WITH_TORCH:
            continue
        tree = ast.parse(path.read_text())
        top = ast.Module(
            [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))], []
        )
        roots = {target.partition(".")[0] for target in imported(name, path, set(files), top)}
        assert roots <= {*sys.stdlib_module_names, "gpuworker"}, name
