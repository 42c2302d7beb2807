"""Measure the structure of the code: sizes, imports, signatures, tests and examples; prints a table for docs/architecture.md.

    python benchmarks/structure.py [FOLDER ...]      folders of checkouts, one column each; by default this one

Only syntax trees are read: nothing is imported. Modules are those of memlib, tasks and flows; p95 is the value that 95 % of the
modules, folders or functions do not exceed.
"""

import argparse
import ast
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

PACKAGES = ("memlib", "tasks", "flows")
Function = ast.FunctionDef | ast.AsyncFunctionDef
Graph = Mapping[str, frozenset[str]]


@dataclass(frozen=True)
class Checkout:
    """A checkout of the project."""

    root: Path

    @cached_property
    def modules(self) -> dict[str, Path]:
        """Paths of all modules and packages by dotted name."""
        paths = [path for package in PACKAGES for path in sorted((self.root / package).rglob("*.py"))]
        return {".".join(path.relative_to(self.root).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}

    @cached_property
    def trees(self) -> dict[str, ast.Module]:
        """Syntax trees by dotted name."""
        return {name: ast.parse(path.read_text()) for name, path in self.modules.items()}

    @cached_property
    def functions(self) -> list[Function]:
        """All functions and methods, inner ones included."""
        return [node for tree in self.trees.values() for node in ast.walk(tree) if isinstance(node, Function)]

    def lines(self, paths: Iterable[Path]) -> int:
        """Return the number of lines of files."""
        return sum(len(path.read_text().splitlines()) for path in paths)

    def imports(self, *, typing: bool) -> Graph:
        """Return the own modules that each module imports, anywhere in it.

        Args:
            typing: whether imports that only type checkers see (`if TYPE_CHECKING`) count.
        """
        return {name: frozenset(self._imported(name, typing)) - {name} for name in self.modules}

    def _imported(self, name: str, typing: bool) -> Iterator[str]:
        for node in _nodes(self.trees[name], typing):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names if alias.name in self.modules)
            elif isinstance(node, ast.ImportFrom) and node.module:
                inner = {f"{node.module}.{alias.name}" for alias in node.names} & self.modules.keys()
                yield from inner
                if node.module in self.modules and len(inner) < len(node.names):
                    yield node.module

    @property
    def named_tests(self) -> frozenset[str]:
        """Names of modules that a test file has: test_NAME.py."""
        return frozenset(path.stem.removeprefix("test_") for path in (self.root / "tests").rglob("test_*.py"))

    @property
    def examples(self) -> int:
        """Number of docstrings with an example."""
        documented = ast.Module | ast.ClassDef | Function
        nodes = (node for tree in self.trees.values() for node in ast.walk(tree) if isinstance(node, documented))
        return sum(">>> " in (ast.get_docstring(node) or "") for node in nodes)


def _nodes(tree: ast.AST, typing: bool) -> Iterator[ast.AST]:
    """Yield all nodes below one; without those that only type checkers see, unless `typing` is set."""
    for node in ast.iter_child_nodes(tree):
        if not typing and isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for other in node.orelse:
                yield other
                yield from _nodes(other, typing)
            continue
        yield node
        yield from _nodes(node, typing)


def circles(graph: Graph) -> list[frozenset[str]]:
    """Return the sets of modules that import one another, directly or not, the largest first (Tarjan 1972)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[frozenset[str]] = []

    def visit(name: str) -> None:
        number[name] = low[name] = len(number)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in number:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], number[other])
        if low[name] == number[name]:
            place = stack.index(name)
            found.append(frozenset(stack[place:]))
            del stack[place:]

    for name in graph:
        if name not in number:
            visit(name)
    return sorted((part for part in found if len(part) > 1), key=len, reverse=True)


def is_open(function: Function) -> bool:
    """Return whether a signature has dict[str, Any] in it."""
    arguments = function.args
    listed = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    annotations = [one.annotation for one in listed if one is not None] + [function.returns]
    return any("dict[str, Any]" in ast.unparse(one) for one in annotations if one is not None)


def p95(values: Sequence[int]) -> int:
    """Return the smallest value that at least 95 % of the values do not exceed."""
    return sorted(values)[-(-95 * len(values) // 100) - 1]


def said_of(parts: Sequence[frozenset[str]]) -> str:
    """Return the number of circles and of modules in them."""
    return f"{len(parts)} ({sum(map(len, parts))} modules, the largest {len(parts[0])})" if parts else "0"


def measured(checkout: Checkout) -> dict[str, str]:
    """Return each measure in words."""
    modules = checkout.modules
    loose = [path for name, path in modules.items() if path.parent == checkout.root / "memlib" and path.stem != "__init__"]
    fan_out = [len(others) for others in checkout.imports(typing=True).values()]
    folders = Counter(path.parent for path in modules.values())
    own = [name.rpartition(".")[2] for name, path in modules.items() if path.stem != "__init__"]
    functions = checkout.functions
    lengths = [(node.end_lineno or node.lineno) - node.lineno + 1 for node in functions]
    return {
        "loose modules in memlib/": f"{len(loose)} ({checkout.lines(loose):,} lines)",
        "modules of memlib, tasks and flows": f"{len(modules)} ({checkout.lines(modules.values()):,} lines)",
        "files in flows/ itself": str(folders[checkout.root / "flows"]),
        "own modules that a module imports, p95 / max": f"{p95(fan_out)} / {max(fan_out)}",
        "files per folder, p95 / max": f"{p95(list(folders.values()))} / {max(folders.values())}",
        "signatures with `dict[str, Any]`": f"{sum(map(is_open, functions)) / len(functions):.1%}".replace("%", " %"),
        "modules with a test of their name": f"{sum(name in checkout.named_tests for name in own) / len(own):.0%}".replace(
            "%", " %"
        ),
        "docstrings with an example that runs": str(checkout.examples),
        "import circles, without imports for types": said_of(circles(checkout.imports(typing=False))),
        "import circles, with imports for types": said_of(circles(checkout.imports(typing=True))),
        "lines of a function, median / p95": f"{statistics.median_low(lengths)} / {p95(lengths)}",
    }


def main(folders: Sequence[str]) -> None:
    """Print one column per checkout."""
    columns = [measured(Checkout(Path(folder).resolve())) for folder in folders]
    heads = [""] if len(folders) == 1 else list(folders)
    print("| measure | " + " | ".join(heads) + " |")
    print("|---|" + "---|" * len(columns))
    for name in columns[0]:
        print(f"| {name} | " + " | ".join(column[name] for column in columns) + " |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Print measures of the structure of checkouts, a column each.")
    parser.add_argument("folders", nargs="*", default=[str(Path(__file__).parents[1])], help="checkouts; by default this one")
    main(parser.parse_args().folders)
