"""The word of a dossier: how often is it false for audits without memory, and when is a bound lost, or memory erased?

The p-values of innocent audits are uniform, those of audits of one design are correlated; that each audit's own p-values are
valid on trained models is what the other parts of the study ask. Everything else is the code that makes dossiers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from benchmarks.validity.harness import Part, Row, level_lines, rate, table
from memlib.audits.dossier.listed import listed
from memlib.audits.dossier.recipe import LEVEL
from memlib.audits.dossier.subject import AuditedModels
from memlib.audits.dossier.verdict import verdict
from memlib.audits.outcomes import Outcome
from memlib.findings import BOUNDED, SHOWN
from memlib.identity import derive_seed
from memlib.runs.records import FindingRecord, FollowedPlan, Ledger, Publication, RunRecord, VerdictRecord

WORLDS = 2_000
CORRELATION = 0.8  # of the statistics of audits of one design
PLANTED = 0.003  # p-value of the one audit that shows memory


@dataclass(frozen=True)
class Design:
    """The audits of a dossier."""

    alphas: Sequence[float] = (0.05,) * 5  #: level of each audit that is of no plan.
    planned: int = 0  #: number of audits that follow frozen plans.
    repeated: int = 1  #: number of audits of each design.
    looks: int = 0  #: further looks at the data.
    powerless: int = 0  #: further audits that can show nothing.


NULLS = {
    "five audits at .05": Design(),
    "one at .45 beside four at .05": Design((0.45, *(0.05,) * 4)),
    "five at .001": Design((0.001,) * 5),
    "five at .45": Design((0.45,) * 5),
    "three of frozen plans beside five": Design(planned=3),
    "one of a frozen plan beside sixteen": Design((0.05,) * 16, planned=1),
    "three designs, six audits each": Design((0.05,) * 3, repeated=6),
    "three designs, one of a plan, six audits each": Design((0.05,) * 2, planned=1, repeated=6),
    "five, three further looks": Design(looks=3),
    "two beside ten that can show nothing": Design((0.05,) * 2, powerless=10),
}
DILUTED = (0, 5, 15, 16, 40, 200)  # innocent audits beside the one that shows memory
LOST = (1, 3, 5, 10)  # innocent audits that all bound memory


def run_of(number: int, design: int, p: float, alpha: float, *, is_planned: bool = False, smallest: float = 0.0) -> RunRecord:
    """Return the manifest of an audit with a p-value; it bounds memory unless it shows it."""
    word, name = SHOWN if p <= alpha else BOUNDED, f"{number:012d}"
    row = FindingRecord.model_validate(
        {
            "metric": "auc", "params": "{}", "role": "test", "value": 0.6, "null_value": 0.5, "p_value": p, "p_adjusted": p,
            "family": "members", "alpha": alpha, "verdict": word, "n": 400, "smallest_p": smallest, "detectable": 0.6,
        }
    )  # fmt: skip
    plan = FollowedPlan(digest="00" * 32, frozen=0.0, began=1.0) if is_planned else None
    return RunRecord(
        run=name, audit="membership", title=name, finished=number, findings=[row], plan=plan,
        verdict=VerdictRecord(word=word, sentence=""), ledger=Ledger(data=f"{design:064x}"), artifacts={"scores": f"scores/{name}"},
        recipe={"data": {"source": {"kind": "table"}}}, history=[Publication(started=float(number))],
    )  # fmt: skip


def word_of(runs: Sequence[RunRecord], looks: int) -> str:
    """Return the word of a dossier of models that the audits trained."""
    audits = listed(
        [Outcome(run.run, run.audit, {}, run) for run in runs], [AuditedModels(1)] * len(runs), looks=looks, stale=()
    )
    return verdict(audits, looks=looks).word


def null_runs(design: Design, rng: np.random.Generator) -> list[RunRecord]:
    """Draw the audits of one dossier, of which none found memory."""
    runs: list[RunRecord] = []
    alphas: list[tuple[float, bool]] = [(0.05, True)] * design.planned + [(alpha, False) for alpha in design.alphas]
    for place, (alpha, is_planned) in enumerate(alphas):
        shared, own = rng.normal(), rng.normal(size=design.repeated)
        p_values = scipy.stats.norm.sf(np.sqrt(CORRELATION) * shared + np.sqrt(1 - CORRELATION) * own)
        runs += [run_of(len(runs) + k, place, float(p), alpha, is_planned=is_planned) for k, p in enumerate(p_values)]
    runs += [
        run_of(10_000 + k, 1_000 + k, float(p), 0.05, smallest=0.5)
        for k, p in enumerate(rng.uniform(0.5, 1, design.powerless))
    ]
    return runs


def compute(unit: str) -> Row:
    kind, name = unit.split("/")
    rng = np.random.default_rng(derive_seed(0, unit))
    if kind == "null":
        design = NULLS[name]
        words = [word_of(null_runs(design, rng), design.looks) for _ in range(WORLDS)]
        return {"kind": kind, "name": name, "hits": words.count(SHOWN), "count": WORLDS}
    if kind == "lost":
        words = [word_of(null_runs(Design((0.05,) * int(name)), rng), 0) for _ in range(WORLDS)]
        return {"kind": kind, "name": name, "hits": WORLDS - words.count(BOUNDED), "count": WORLDS}
    others = [
        [run_of(k + 1, k + 1, float(p), 0.05) for k, p in enumerate(rng.random(int(name)))] for _ in range(WORLDS // 10)
    ]
    found = [(word_of([run_of(0, 0, PLANTED, 0.05), *some], 0), _repeated(some)) for some in others]
    hits: dict[str, Any] = {
        "shown": sum(word == SHOWN for word, _ in found), "bounded": sum(word == BOUNDED for word, _ in found),
        "repeated": sum(word == SHOWN for _, word in found),
    }  # fmt: skip
    return {"kind": kind, "name": name, **hits, "count": len(found)}


def _repeated(others: Sequence[RunRecord]) -> str:
    """Return the word if the others are of the same design as the audit that shows memory, and later."""
    first = run_of(0, 0, PLANTED, 0.05)
    return word_of([first, *(one.model_copy(update={"ledger": first.ledger}) for one in others)], 0)


def report(rows: Sequence[Row]) -> Iterator[str]:
    nulls = {row["name"]: (row["hits"], row["count"]) for row in rows if row["kind"] == "null"}
    yield from level_lines("innocent audits", nulls, alpha=LEVEL, hit="said to show memory")
    diluted = [row for row in rows if row["kind"] == "diluted"]
    if diluted:
        yield ""
        yield f"One audit shows memory at p = {PLANTED:g}, beside innocent ones that bound it:"
        yield ""
        cells = ((r["name"], rate(r["shown"], r["count"]), r["bounded"], rate(r["repeated"], r["count"])) for r in diluted)
        yield from table(("innocent audits beside it", "shown", "bounded", "shown, if they repeat its design"), cells)
    lost = [row for row in rows if row["kind"] == "lost"]
    if lost:
        yield ""
        yield "The price: innocent audits that all bound memory, and a dossier that is not bounded, as one of them shows memory by chance:"
        yield ""
        yield from table(("audits", "not bounded"), ((r["name"], rate(r["hits"], r["count"])) for r in lost))


PARTS = (
    Part(
        "dossier", "How often does a dossier say that innocent audits show memory, and what becomes of memory that one of them shows?",
        lambda: [*(f"null/{name}" for name in NULLS), *(f"diluted/{count}" for count in DILUTED), *(f"lost/{count}" for count in LOST)],
        compute, report,
    ),
)  # fmt: skip
