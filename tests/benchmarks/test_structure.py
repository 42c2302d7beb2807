"""The measures of the code's structure, on a tree small enough to count by hand."""

from pathlib import Path

import pytest

from benchmarks.structure import Checkout, circles, measured, p95

FILES = {
    "memlib/__init__.py": "",
    "memlib/loose.py": "from memlib.inner import deep\n\n\ndef one(x: dict[str, Any]) -> None:\n    '''Do.\n\n    >>> 1\n    1\n    '''\n",
    "memlib/inner/__init__.py": "",
    "memlib/inner/deep.py": "if TYPE_CHECKING:\n    from memlib.loose import one\n\n\ndef two() -> int:\n    import tasks.work\n",
    "tasks/__init__.py": "",
    "tasks/work.py": "import memlib.inner.deep\n",
    "flows/__init__.py": "",
    "tests/memlib/test_loose.py": "",
}


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return Checkout(tmp_path)


def test_imports_of_project_modules_are_found_at_any_depth_of_the_code(checkout: Checkout) -> None:
    assert checkout.imports(typing=False)["memlib.inner.deep"] == {"tasks.work"}
    assert checkout.imports(typing=True)["memlib.inner.deep"] == {"tasks.work", "memlib.loose"}
    assert checkout.imports(typing=True)["memlib.loose"] == {"memlib.inner.deep"}


def test_import_circles_are_larger_with_imports_for_type_checking(checkout: Checkout) -> None:
    assert circles(checkout.imports(typing=False)) == [{"memlib.inner.deep", "tasks.work"}]
    assert circles(checkout.imports(typing=True)) == [{"memlib.inner.deep", "tasks.work", "memlib.loose"}]


def test_measured_counts_modules_signatures_and_examples(checkout: Checkout) -> None:
    found = measured(checkout)
    assert found["loose modules in memlib/"] == "1 (9 lines)"
    assert found["signatures with `dict[str, Any]`"] == "50.0 %"
    assert found["modules with a test of their name"] == "33 %"
    assert found["docstrings with an example that runs"] == "1"
    assert p95(range(1, 101)) == 95
    assert p95([7]) == 7
