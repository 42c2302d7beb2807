"""Imports between modules, those for types included: no circles, and nothing below it imports the face of memlib."""

from graphlib import TopologicalSorter

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
