"""Imports between modules, those for types included: no circles, and nothing below it imports the face of memlib."""

import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

ABOVE_THE_FACE = "flows.cli."


@pytest.fixture(scope="module")
def imported() -> dict[str, set[str]]:
    graph = grimp.build_graph("memlib", "tasks", "flows", exclude_type_checking_imports=False)
    return {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}


def test_no_module_imports_itself_through_others(imported: dict[str, set[str]]) -> None:
    assert len(imported) > 300
    TopologicalSorter(imported).prepare()  # raises CycleError with the modules of a circle


def test_the_face_of_memlib_is_imported_by_the_command_line_alone(imported: dict[str, set[str]]) -> None:
    users = {module for module, others in imported.items() if "memlib" in others}
    assert users
    assert all(module.startswith(ABOVE_THE_FACE) for module in users), users


def test_the_answers_of_audits_load_neither_scipy_nor_torch() -> None:
    """Commands that read runs ask them, and would wait for these libraries."""
    paths = Path(__file__).parents[1].glob("memlib/audits/*/answers.py")
    names = sorted(f"memlib.audits.{path.parent.name}.answers" for path in paths)
    assert len(names) >= 6
    loading = f"import importlib, sys\nfor name in {names}: importlib.import_module(name)\n"
    program = loading + "print({'scipy', 'torch'} & sys.modules.keys())"
    assert subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout == "set()\n"
