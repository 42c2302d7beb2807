"""Many audits as one: the cells of a grid, a list of recipes, or both, and their findings side by side.

A sweep asks nothing of its own. Each cell is an audit with a run, results and a report; the sweep's table and page
compare them.
"""

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
from pydantic import Field, model_validator

from memlib.findings import BOUNDED, DESCRIPTIVE, INCONCLUSIVE, SHOWN, Row, Verdict, diagnostic
from memlib.specs import Spec
from memlib.stats.multiplicity import holm
from memlib.tables import SWEEP

MOST_CELLS = 10_000


class CellSpec(Spec):
    """A cell of a sweep that stands in no grid."""

    name: str = ""
    """What it is called; by default its changes, or its recipe."""
    recipe: str | Mapping[str, Any] | None = None
    """A shipped recipe's name, a file, or the recipe itself; by default the sweep's. May be of any audit."""
    set: Mapping[str, Any] = {}
    """What differs in it, by dotted key: {training.epochs: 50}."""


class Recipe(Spec):
    """A sweep of audits."""

    audit: Literal["sweep"] = "sweep"
    title: str = "Sweep"
    """Shown on the report."""
    recipe: str | Mapping[str, Any] | None = None
    """What the cells start from: a shipped recipe's name, a file, or the recipe itself."""
    set: Mapping[str, Any] = {}
    """What differs from that in every cell that starts from it, by dotted key."""
    grid: Mapping[str, tuple[Any, ...]] = {}
    """Dotted keys and their values; every combination is a cell: {training.epochs: [10, 50], training.seed: [0, 1, 2]}."""
    cells: tuple[CellSpec, ...] = ()
    """Further cells, one by one."""
    concurrent_cells: int = Field(default=2, ge=1)
    """Cells under way at a time; of each stage only one, so that what cells share is computed once."""

    @model_validator(mode="after")
    def _cells_have_something(self) -> "Recipe":
        if not self.grid and not self.cells:
            raise ValueError("a sweep needs a grid or cells")
        if self.recipe is None and (self.grid or any(cell.recipe is None for cell in self.cells)):
            raise ValueError("a sweep needs a recipe to start from, unless every cell has its own")
        empty = [key for key, values in self.grid.items() if not values]
        if empty:
            raise ValueError(f"grid.{empty[0]} has no values")
        return self

    def changes(self) -> list[tuple[str, str | Mapping[str, Any], dict[str, Any]]]:
        """(name, recipe, changes by dotted key) of every cell.

        Raises:
            ValueError: when there are too many, or two have one name.
        """
        count = (math.prod(map(len, self.grid.values())) if self.grid else 0) + len(self.cells)
        if count > MOST_CELLS:
            raise ValueError(f"the sweep has {count} cells; at most {MOST_CELLS} are possible")
        found = []
        if self.grid:
            assert self.recipe is not None
            for values in itertools.product(*self.grid.values()):
                change = dict(zip(self.grid, values, strict=True))
                telling = {key: value for key, value in change.items() if len(self.grid[key]) > 1}
                found.append((in_words(telling or change), self.recipe, {**self.set, **change}))
        for cell in self.cells:
            base = cell.recipe if cell.recipe is not None else self.recipe
            assert base is not None
            name = cell.name or in_words(cell.set) or (base if isinstance(base, str) else str(base.get("title", "cell")))
            found.append((name, base, {**(self.set if cell.recipe is None else {}), **cell.set}))
        ((name, times),) = Counter(name for name, _, _ in found).most_common(1)
        if times > 1:
            raise ValueError(f"more than one cell is called {name!r}; give them a name each")
        return found


def in_words(change: Mapping[str, Any]) -> str:
    """Changes as a cell's name; the shortest endings of keys that tell them apart."""
    return " ".join(
        f"{_ending(key, change)}={json.dumps(value, default=str).strip(chr(34))}" for key, value in change.items()
    )


def _ending(key: str, keys: Iterable[str]) -> str:
    parts = key.split(".")
    endings = [".".join(parts[-count:]) for count in range(1, len(parts))]
    return next((e for e in endings if sum(f".{other}".endswith(f".{e}") for other in keys) == 1), key)


def in_brief(params: Mapping[str, Any], headline: Mapping[str, Any]) -> bool:
    """Whether a finding with these params is shown in brief: every cell's headline is."""
    return True


@dataclass(frozen=True)
class Outcome:
    """What became of a cell.

    Attributes:
        cell: its name.
        audit: of its recipe.
        changes: what sets it apart, by dotted key.
        run: its run's manifest, None when it did not end well.
        problem: why not.
    """

    cell: str
    audit: str
    changes: Mapping[str, Any]
    run: Mapping[str, Any] | None
    problem: str = ""


def score(outcomes: Sequence[Outcome]) -> pa.Table:
    """tables.SWEEP: every finding of every cell; a broken cell has one row without a metric."""
    rows = []
    adjusted = _adjusted(outcomes)
    for outcome in outcomes:
        row: Row = {
            "cell": outcome.cell,
            "cell_audit": outcome.audit,
            "changes": json.dumps(outcome.changes, sort_keys=True, default=str),
        }
        if outcome.run is None:
            rows.append({**row, "state": "failed", "problem": outcome.problem})
            continue
        head = headline(outcome.run)
        for finding in outcome.run["findings"]:
            p = adjusted.get(outcome.cell) if finding is head else None
            rows.append({**row, "state": "completed", "cell_run": outcome.run["run"], "p_adjusted_sweep": p, **finding})
    return pa.Table.from_pylist(rows, schema=SWEEP.arrow)


def headline(run: Mapping[str, Any]) -> Row:
    """What a run says first: of its headline's family (several targets or variants) the row with the smallest p-value."""
    findings = run["findings"]
    family = findings[0].get("family")
    alike = [row for row in findings if family is not None and row.get("family") == family]
    return min(alike, key=lambda row: row["p_adjusted"], default=findings[0])


def _headlines(outcomes: Sequence[Outcome]) -> dict[str, Row]:
    """The headline of every cell that ended well."""
    return {outcome.cell: headline(outcome.run) for outcome in outcomes if outcome.run is not None}


def _adjusted(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """The p-value of every cell's headline that is tested, adjusted over the cells (Holm 1979); equal scores count once."""
    tests: dict[str, float] = {}
    for outcome in outcomes:
        p = None if outcome.run is None else headline(outcome.run).get("p_adjusted")
        if outcome.run is not None and p is not None:
            tests.setdefault(_scores(outcome.run), p)
    by_scores = dict(zip(tests, holm(list(tests.values())).tolist(), strict=True))
    known = {o.cell: _scores(o.run) for o in outcomes if o.run is not None}
    return {cell: by_scores[name] for cell, name in known.items() if name in by_scores}


def _scores(run: Mapping[str, Any]) -> str:
    """What a run's numbers are of: cells that differ in their title alone share them."""
    return str(run.get("artifacts", {}).get("scores", run["run"]))


def summarize(outcomes: Sequence[Outcome]) -> list[Row]:
    """The headline of every cell, after the number of cells that ended well.

    A headline keeps the verdict and p-values of its own run; `p_adjusted_sweep` in the sweep's table is over all cells.
    """
    done = _headlines(outcomes)
    rows = [diagnostic("cells_completed", {}, float(len(done)), n=len(outcomes))]
    for cell, first in done.items():
        params = json.dumps({"cell": cell} | json.loads(first["params"]), sort_keys=True)
        rows.append({**first, "params": params} | dict.fromkeys(("conclusion", "sentence", "explanation")))
    return rows


def verdict(outcomes: Sequence[Outcome]) -> Verdict:
    """What the cells say together, adjusted for their number."""
    heads, adjusted = _headlines(outcomes), _adjusted(outcomes)
    words = {o.cell: (o.run.get("verdict") or {}).get("word") for o in outcomes if o.run is not None}
    broken = [outcome.cell for outcome in outcomes if outcome.run is None]
    missing = f" {len(broken)} of {len(outcomes)} cells broke: {', '.join(broken)}." if broken else ""
    if not adjusted:
        return Verdict(DESCRIPTIVE, f"{len(heads)} audits were compared; none of them tests anything.", missing.strip())
    audits = list({_scores(o.run): o.cell for o in reversed(outcomes) if o.run is not None and o.cell in adjusted}.values())
    shown = [cell for cell in audits if adjusted[cell] <= heads[cell]["alpha"]]
    alone = [cell for cell in audits if words[cell] == SHOWN]
    sentence = f"{len(shown)} of {len(audits)} audits show memorization, adjusted for their number."
    unsaid = "" if shown else " That excludes no memorization: each cell's own page says what it could have found."
    text = f"Shown: {', '.join(shown) or 'none'}. Taken alone, {len(alone)} would; each cell's own page says so."
    bounded = all(words[cell] == BOUNDED for cell in audits)
    return Verdict(SHOWN if shown else BOUNDED if bounded else INCONCLUSIVE, sentence, f"{text}{unsaid}{missing}")
