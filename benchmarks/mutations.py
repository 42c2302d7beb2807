"""Change statistical code in one place, and see which tests notice: a known list of changes, and others drawn by a seed.

    python -m benchmarks.mutations RESULTS.jsonl --tests tests/memlib --seed 1 --drawn 31

A mutation swaps the code of one function in a fork of this process, which runs the test files that reach the function, cheapest
first. Which file reaches which functions is recorded in a first pass, in RESULTS.reached.jsonl. Results are appended as they
come; a second call goes on where the first one ended. Other processes that tests start see no mutation, so that what these
alone would notice counts as survived.
"""

import argparse
import ast
import functools
import gc
import importlib
import inspect
import json
import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

ROOT = Path(__file__).parent.parent
SOURCES = ("memlib/stats", "memlib/audits/*/scores.py")
LIMIT = 600  # seconds for the tests of a file; a mutation that ends a loop never is noticed by it
OPERATORS = ("comparison", "constant", "term")
FLIPPED = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}


@dataclass(frozen=True)
class Mutation:
    """A change of one expression of a function.

    Attributes:
        module, function: where it is; the function's qualified name.
        old, new: the expression as `ast.unparse` prints it, and what takes its place.
        number: which of several equal expressions of the function, from 0.
    """

    module: str
    function: str
    old: str
    new: str
    number: int = 0


def listed() -> list[Mutation]:
    """Return the changes that were made by hand once; four of them survived tests of simulated levels."""
    stats, exposure = "memlib.stats.", "memlib.audits.exposure.scores"
    steps, below = "np.arange(len(values), 0, -1)", "np.maximum(np.arange(len(values) - 1, -1, -1), 1)"
    rows = [
        (stats + "multiplicity", "holm", steps, below),
        (stats + "multiplicity", "holm", steps, "np.arange(len(values), 0, -1) + (np.arange(len(values)) == len(values) - 1)"),
        (stats + "inference", "mcnemar_p", "wins - 1", "wins"),
        (stats + "inference", "threshold_rank", "num_controls + 1", "num_controls + 2"),
        (stats + "inference", "exceedance_p", "num_controls + 1 - rank", "num_controls - rank"),
        (stats + "inference", "permutation_p", "1 + reached", "reached"),
        (stats + "inference", "largest_mean", "len(values)", "len(values) + 2"),
        (stats + "randomization", "smallest_two_class_p", "math.comb(first + second, min(first, second, 1000)) ** 2",
         "math.comb(first + second, min(first, second, 1000))"),
        (stats + "randomization", "two_sided_p", "2 * min(above, below)", "min(above, below)"),
        (stats + "operating", "_clustered_variance", "count / (count - 1)", "1.0"),
        (stats + "operating", "roc", "-scores.astype(np.float64)", "scores.astype(np.float64)"),
        (stats + "divergence", "weighted_ks", "np.diff(both[order]) > 0", "np.diff(both[order]) >= 0"),
        (stats + "tails", "goodness_of_fit", "1 + further", "0.2 + further"),
        (stats + "tails", "_distance", "steps[1:] - below", "steps[:-1] - below"),
        (exposure, "exposure_of_rank", "math.log2(rank)", "math.log2(rank + 1)"),
        (exposure, "upper_exposure", "references - at_or_below + 1", "references - at_or_below"),
        (exposure, "sampled_p", "1 + at_or_below", "at_or_below"),
    ]  # fmt: skip
    return [Mutation(*row) for row in rows]


EQUIVALENT: dict[Mutation, str] = {
    Mutation(
        "memlib.stats.power", "_by_normal_law", "0.0", "1.0"
    ): "the caller returns before if nothing varies under the null",
    Mutation(
        "memlib.stats.multiplicity",
        "max_t_p",
        "top[:, None] >= (observed[moves] - centre) / scale[moves] - 1e-09",
        "top[:, None] > (observed[moves] - centre) / scale[moves] - 1e-09",
    ): "only a difference of exactly the slack for rounding would tell",
    Mutation(
        "memlib.stats.membership", "_inverse_trigamma", "-step < 1e-12 * x", "-step <= 1e-12 * x"
    ): "only a step of exactly the tolerance would tell",
    Mutation(
        "memlib.stats.noninferiority", "_away", "abs(value) > _TINY", "abs(value) >= _TINY"
    ): "only a value of exactly the smallest size would tell",
    Mutation(
        "memlib.audits.exposure.scores",
        "last_checkpoints",
        "model.epoch >= last[training].epoch",
        "model.epoch > last[training].epoch",
    ): "a training has one checkpoint of an epoch",
    Mutation("memlib.stats.ranks", "Ranks._of_side", "1", "2"): "reshape(-2, 1) is reshape(-1, 1) to NumPy",
    Mutation(
        "memlib.stats.totals",
        "_subsets",
        "np.frombuffer(rng.bytes(draws * count), dtype=np.uint8).reshape(draws, count) < threshold",
        "np.frombuffer(rng.bytes(draws * count), dtype=np.uint8).reshape(draws, count) <= threshold",
    ): "surplus units are removed at random",
    Mutation(
        "memlib.stats.totals", "_subsets", "256 * chosen / count", "256 * chosen"
    ): "all units are included first, and surplus ones removed at random: slower, and equally likely",
    Mutation("memlib.stats.membership", "_inverse_trigamma", "50", "51"): "Newton's method ends before at its tolerance",
    Mutation(
        "memlib.stats.counterfactual", "_share", "np.asarray(counts) > 0", "np.asarray(counts) >= 0"
    ): "0 / 0 is NaN, too",
    Mutation("memlib.audits.sweep.scores", "_ordered", "row.value > 0", "row.value >= 0"): "a difference of 0 is never shown",
}  # why no test can tell them from the code


def functions_of(module: str) -> dict[str, ast.FunctionDef]:
    """Return the functions and methods of a module by qualified name; functions within functions are part of these."""
    tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text())
    found = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{part.name}": part for part in node.body if isinstance(part, ast.FunctionDef)}
    return found


def changed(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield the operator and the changed expression for each way to change an expression."""
    match node:
        case ast.Compare(ops=[one]) if type(one) in FLIPPED:
            yield "comparison", ast.Compare(node.left, [FLIPPED[type(one)]()], node.comparators)
        case ast.Constant(value=value) if type(value) in (int, float):
            yield "constant", ast.Constant(value + 1)
        case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div() | ast.Pow()):
            yield "term", node.left
            if isinstance(node.op, ast.Add | ast.Mult):
                yield "term", node.right


def sites(module: str, operator: str) -> list[Mutation]:
    """Return every change of one kind in the bodies of a module's functions, but in messages and axes, where it fails."""
    found = []
    for name, function in functions_of(module).items():
        seen: dict[str, int] = {}
        for node in _expressions(function):
            old = ast.unparse(node)
            number = seen[old] = seen.get(old, -1) + 1
            found += [
                Mutation(module, name, old, ast.unparse(new), number) for kind, new in changed(node) if kind == operator
            ]
    return found


def _expressions(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions of a function's body in order, without defaults, decorators, annotations, messages and axes."""
    if isinstance(node, ast.FunctionDef):
        for statement in node.body:
            yield from _expressions(statement)
        return
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr) or (isinstance(node, ast.keyword) and node.arg == "axis"):
        return
    if isinstance(node, ast.expr):
        yield node
    for name, child in ast.iter_fields(node):
        for one in child if isinstance(child, list) else [child]:
            if isinstance(one, ast.AST) and name != "annotation":
                yield from _expressions(one)


def drawn(seed: int, count: int) -> list[Mutation]:
    """Draw changes by module and operator: modules in random order, operators by turns, a random change of each."""
    rng = random.Random(seed)
    files = sorted(path for source in SOURCES for path in ROOT.glob(f"{source}/*.py" if "*" not in source else source))
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files if path.stem != "__init__"]
    found: list[Mutation] = []
    while len(found) < count:
        rng.shuffle(modules)
        for place, module in enumerate(modules):
            open_ = [one for one in sites(module, OPERATORS[(len(found) + place) % 3]) if one not in found]
            if open_ and len(found) < count:
                found.append(rng.choice(open_))
    return found


class _Put(ast.NodeTransformer):
    """Puts a new expression in the place of a given node."""

    def __init__(self, node: ast.expr, new: ast.expr) -> None:
        self._node, self._new = node, new

    def visit(self, node: ast.AST) -> Any:
        return ast.copy_location(self._new, node) if node is self._node else self.generic_visit(node)


def mutated(mutation: Mutation) -> CodeType:
    """Return the code of the changed function."""
    path = ROOT / f"{mutation.module.replace('.', '/')}.py"
    tree = ast.parse(path.read_text())
    parents: list[ast.AST] = [tree]
    for name in mutation.function.split("."):
        parents.append(next(node for node in parents[-1].body if getattr(node, "name", None) == name))  # type: ignore[attr-defined]
    places = [node for node in _expressions(parents[-1]) if ast.unparse(node) == mutation.old]
    _Put(places[mutation.number], ast.parse(mutation.new, mode="eval").body).visit(parents[-1])
    code = compile(ast.fix_missing_locations(tree), str(path), "exec")
    for name in mutation.function.split("."):
        code = next(part for part in code.co_consts if isinstance(part, CodeType) and part.co_name == name)
    return code


def swap(mutation: Mutation) -> None:
    """Change the function in this process, whatever it is wrapped into."""
    code = mutated(mutation)
    importlib.import_module(mutation.module)
    mine = [
        one for one in gc.get_objects()
        if isinstance(one, FunctionType) and one.__module__ == mutation.module and one.__code__.co_qualname == mutation.function
    ]  # fmt: skip
    assert mine, f"{mutation.module} has no function {mutation.function}"
    for function in mine:
        function.__code__ = code


def apart(work: Callable[[], Any], seconds: float) -> Any:
    """Return the result of work in a fork of this process; None if it took too long or ended the process."""
    receive, send = multiprocessing.Pipe(duplex=False)
    child = os.fork()
    if not child:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            send.send(work())
        finally:
            os._exit(0)
    send.close()
    try:
        return receive.recv()
    except EOFError:
        return None
    finally:
        os.waitpid(child, 0)


def failed(files: list[str]) -> str | None:
    """Run tests until one fails; return its name."""
    import pytest

    class Quiet:
        name: str | None = None

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed and self.name is None:
                self.name = report.nodeid

    quiet = Quiet()
    status = pytest.main(["-q", "-x", "-n0", "-p", "no:cacheprovider", *files], plugins=[quiet])
    return quiet.name or (None if status in (0, 5) else f"{files}: {status}")


def reached(file: str) -> dict[str, Any]:
    """Run a file's tests; return the functions of the sources that they call, and the seconds of the processor."""
    names: set[str] = set()
    roots = [str(ROOT / source.split("/*")[0]) for source in SOURCES]

    def called(frame: FrameType, event: str, arg: object) -> None:
        code = frame.f_code
        if code.co_filename.startswith(roots[0]) or code.co_filename.startswith(roots[1]):
            module = code.co_filename[len(str(ROOT)) + 1 : -3].replace("/", ".")
            names.add(f"{module}:{code.co_qualname.split('.<locals>')[0]}")

    start = time.process_time()
    sys.settrace(called)
    problem = failed([file])
    sys.settrace(None)
    return {"file": file, "functions": sorted(names), "seconds": time.process_time() - start, "failed": problem}


def kept(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a JSON lines file, none if there is none."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def keep(path: Path, row: dict[str, Any]) -> None:
    """Append a row to a JSON lines file."""
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def try_out(mutation: Mutation, tests: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a mutation with the test that noticed it, or the reason why none can."""
    row: dict[str, Any] = {**asdict(mutation), "caught_by": None, "files": 0}
    reason = EQUIVALENT.get(mutation)
    if reason is not None:
        return row | {"equivalent": reason}
    reaching = [test for test in tests if f"{mutation.module}:{mutation.function}" in test["functions"]]
    for number, test in enumerate(sorted(reaching, key=lambda test: float(test["seconds"])), start=1):

        def work(file: str = test["file"]) -> str:
            swap(mutation)
            return failed([file]) or ""

        found = apart(work, LIMIT)
        row["files"] = number
        if found != "":
            return row | {"caught_by": found or f"{test['file']}: no end"}
    return row


def main() -> None:
    """Record which tests reach which functions, and try the listed and the drawn mutations."""
    parser = argparse.ArgumentParser(description=inspect.getdoc(sys.modules[__name__]))
    parser.add_argument("results", type=Path)
    parser.add_argument("--tests", nargs="*", type=Path, default=[Path("tests/memlib")])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--drawn", type=int, default=31)  # one of them is a listed one
    arguments = parser.parse_args()
    for library in ("pytest", "scipy.stats", "torch"):
        importlib.import_module(library)  # once for all forks
    record = arguments.results.with_suffix(".reached.jsonl")
    files = sorted(
        {str(file) for path in arguments.tests for file in ([path] if path.is_file() else path.rglob("test_*.py"))}
    )
    known = {row["file"] for row in kept(record)}
    for file in files:
        if file not in known:
            none = {"file": file, "functions": [], "seconds": LIMIT, "failed": "no end"}
            keep(record, apart(functools.partial(reached, file), LIMIT) or none)
    tests = [row for row in kept(record) if row["file"] in files and row["failed"] is None]
    names = [field.name for field in fields(Mutation)]
    tried = [tuple(row[name] for name in names) for row in kept(arguments.results)]
    for mutation in dict.fromkeys([*listed(), *drawn(arguments.seed, arguments.drawn)]):
        if tuple(asdict(mutation).values()) not in tried:
            row = try_out(mutation, tests)
            keep(arguments.results, row)
            outcome = row["caught_by"] or row.get("equivalent") or "SURVIVED"
            print(f"{mutation.module}.{mutation.function}: {mutation.old} -> {mutation.new}: {outcome}", flush=True)


if __name__ == "__main__":
    main()
