"""Shared code of the validity study: units that are computed once, rates with exact intervals, tables."""

import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import scipy.stats

RESULTS = Path(os.environ.get("MEMLIB_VALIDITY", "validity-results"))

Row = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """A part of the study.

    Attributes:
        name: as given on the command line.
        question: what the part asks, in one sentence.
        units: ids of the units, each computed once.
        compute: computes one unit; returns plain numbers.
        report: yields lines of Markdown from the rows of all units.
    """

    name: str
    question: str
    units: Callable[[], Iterable[str]]
    compute: Callable[[str], Row]
    report: Callable[[Sequence[Row]], Iterator[str]]


def carry_out(part: Part, *, minutes: float) -> list[Row]:
    """Compute the missing units, writing one line per unit to a file; stop after `minutes`, to be resumed later.

    Returns:
        the rows of all units computed so far.
    """
    path = RESULTS / f"{part.name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = _rows(path)
    done = {row["unit"] for row in rows}
    started, units = time.monotonic(), list(part.units())
    with path.open("a") as file:
        for unit in units:
            if unit in done:
                continue
            if time.monotonic() - started > 60 * minutes:
                print(f"{part.name}: {len(done)} of {len(units)} units are done; run the same command again to continue")
                break
            began = sum(os.times()[:4])
            row = part.compute(unit) | {"unit": unit, "seconds": round(sum(os.times()[:4]) - began, 3)}  # of CPUs
            file.write(json.dumps(row) + "\n")
            file.flush()
            rows.append(row)
            done.add(unit)
    return rows


def _rows(path: Path) -> list[Row]:
    """Return the complete rows of a file; an interrupted last line is dropped, so that its unit is computed again."""
    if not path.exists():
        return []
    lines, kept = path.read_text().splitlines(), []
    for line in lines:
        try:
            kept.append(json.loads(line))
        except ValueError:
            continue
    if len(kept) < len(lines):
        path.write_text("".join(json.dumps(row) + "\n" for row in kept))
    return kept


def crossed(names: Iterable[str], numbers: int) -> Iterator[str]:
    """Yield units name/number: every name with the first draw of data, then with the next one.

    So a study that is stopped early is balanced.
    """
    chosen = list(names)
    for number in range(numbers):
        for name in chosen:
            yield f"{name}/{number}"


def clopper_pearson(hits: int, count: int, *, level: float = 0.95) -> tuple[float, float]:
    """Return the exact confidence interval of a proportion."""
    interval = scipy.stats.binomtest(hits, count).proportion_ci(level, method="exact")
    return float(interval.low), float(interval.high)


def lower_limit(hits: int, count: int, *, level: float) -> float:
    """Return the one-sided lower Clopper-Pearson limit at a level.

    A true rate below it gives this many hits or more with probability at most `level`.
    """
    return 0.0 if hits == 0 else float(scipy.stats.beta.ppf(level, hits, count - hits + 1))


def upper_limit(hits: int, count: int, *, level: float = 0.05) -> float:
    """Return the one-sided upper Clopper-Pearson limit."""
    return 1.0 if hits == count else float(scipy.stats.beta.isf(level, hits + 1, count - hits))


def by_rule(hits: int, count: int, nominal: float) -> str:
    """Return what a number of hits says of a rate that may not exceed a nominal one.

    It fails if the lower limit at .9995 lies above the nominal rate, and holds if the upper limit at .975 is at most three
    hundredths above it; otherwise it is open. (A limit at the nominal rate itself would refuse most right tests.)
    """
    if lower_limit(hits, count, level=0.0005) > nominal:
        return "fails"
    return "holds" if upper_limit(hits, count, level=0.025) <= nominal + 0.03 else "open"


def rate(hits: int, count: int) -> str:
    """Return a proportion in words, with its exact 95 % interval."""
    low, high = clopper_pearson(hits, count)
    return f"{hits} of {count} = {hits / count:.3f} ({low:.3f} to {high:.3f})"


def table(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    yield f"| {' | '.join(headings)} |"
    yield f"|{'---|' * len(headings)}"
    for row in rows:
        yield f"| {' | '.join(str(cell) for cell in row)} |"


def level_lines(name: str, found: Mapping[str, tuple[int, int]], *, alpha: float, hit: str = "rejected") -> Iterator[str]:
    """Yield a table of rejections under nulls, each judged by one rule, see `by_rule`.

    Args:
        name: heading of the first column.
        found: (rejections, tries) by null.
        alpha: level of the tests.
        hit: heading of the column of rejections.
    """
    rows = []
    for null, (hits, count) in found.items():
        rows.append((null, rate(hits, count), by_rule(hits, count, alpha)))
    yield from table((name, hit, f"level {alpha:g} by the rule"), rows)


def made(rows: Sequence[Row]) -> str:
    """Return when and on what a part was computed, and its cost."""
    seconds = sum(row["seconds"] for row in rows)
    machine = f"{os.cpu_count()} cores ({platform.machine()})"
    return f"{time.strftime('%Y-%m-%d')}, {machine}, {len(rows)} units, {seconds / 60:.1f} CPU min."
