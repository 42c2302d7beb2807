"""The persons and examples at risk: rankings of several audits, joined."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memlib.audits.dossier.tables import RISK
from memlib.audits.ranking import CANARY, EXAMPLE, Ranking
from memlib.findings import Finding, tested
from memlib.identity import derive_seed
from memlib.stats.multiplicity import benjamini_hochberg

GROUP, DRAWS, FAMILY, NAMED_BY = "group", 2000, "named records", 2


@dataclass(frozen=True)
class Ranked:
    """The records of a run in the order of one of its scores, the run, and the digest of its data."""

    run: str
    audit: str
    ranking: Ranking
    data: str = ""


@dataclass
class _AtRisk:
    """The findings about one person or record."""

    kind: str
    examples: set[str] = field(default_factory=set)
    sizes: dict[str, int] = field(default_factory=dict)  # number of examples by run
    p_values: list[float] = field(default_factory=list)
    smallest: list[float] = field(default_factory=list)
    found: dict[str, dict[str, Any]] = field(default_factory=dict)
    named: set[str] = field(default_factory=set)

    @property
    def p_value(self) -> float | None:
        """The smallest p-value, multiplied by the number of p-values."""
        return min(1.0, len(self.p_values) * min(self.p_values)) if self.p_values else None

    @property
    def num_examples(self) -> int:
        """Number of examples that audits examined, of which a ranking of persons names only the first one."""
        return max(len(self.examples), *self.sizes.values())

    @property
    def share_of_places(self) -> float:
        """Mean place among the members, as a fraction, over audits."""
        return float(np.mean([one["place"] / one["members"] for one in self.found.values()]))


def at_risk(ranked: Sequence[Ranked], persons: Mapping[str, str], *, share: float) -> pa.Table:
    """Return tables.RISK: the records that the audited models were trained on, the most exposed first.

    Ids name records of one data set: equal ids of runs on other data are other records.

    A person's p-value is her smallest one times the number of her p-values over all examples and audits (Bonferroni): valid
    however these depend on one another. Rows are ordered by it, then by the number of audits that name them, then by
    their mean place.

    Args:
        ranked: rankings of all runs; of each run, the first one counts.
        persons: person by example id, where known.
        share: share of the members that a run names.
    """
    rows: dict[tuple[str, str, str, str], _AtRisk] = {}
    for one in {one.run: one for one in reversed(ranked)}.values():
        for record in _members(one.ranking, share):
            name = persons.get(record["id"], record["id"]) if one.ranking.kind == EXAMPLE else record["id"]
            kind = GROUP if one.ranking.kind == EXAMPLE and record["id"] in persons else one.ranking.kind
            of_run = _numbers_of(one.ranking) if kind == CANARY else ""  # canaries are numbered from 0 in every run
            _add(rows.setdefault((kind, name, one.data, of_run), _AtRisk(kind)), one, record)
    ordered = sorted(rows.items(), key=lambda item: _order(item[1]))
    adjusted = iter(benjamini_hochberg([p for _, one in ordered if (p := one.p_value) is not None]).tolist())
    table = [_row(place, name, data, one, adjusted) for place, ((_, name, data, _), one) in enumerate(ordered, start=1)]
    return pa.Table.from_pylist(table, schema=RISK.arrow)


def _numbers_of(ranking: Ranking) -> str:
    """Return what tells the canaries of a run from those of another one, whatever the number of runs of the same scores."""
    return hashlib.sha256(ranking.scores.tobytes()).hexdigest()


def _members(ranking: Ranking, share: float) -> Iterator[dict[str, Any]]:
    """Yield the records that the model was trained on, the first ones first."""
    places = np.flatnonzero(ranking.members & np.isfinite(ranking.scores))
    order = places[np.argsort(-ranking.scores[places], kind="stable")]
    scores, named = ranking.scores[order], _number(len(order), share)
    last = scores[named - 1] if len(scores) else math.nan
    for place, (at, score) in enumerate(zip(order.tolist(), scores.tolist(), strict=True), start=1):
        p = None if ranking.p_values is None else float(ranking.p_values[at])
        is_named = place <= named and (score > last or _fits(scores, last, named))
        size = 1 if ranking.sizes is None else int(ranking.sizes[at])
        found = {"id": ranking.ids[at], "score": score, "place": place, "members": len(order)}
        yield {**found, "p": p, "named": is_named, "size": size}


def _number(count: int, share: float) -> int:
    return max(1, math.ceil(share * count))


def _fits(scores: NDArray[np.float64], last: float, named: int) -> bool:
    """Return whether the records that tie with the last named one can all be named; otherwise none of them is."""
    return int((scores >= last).sum()) <= named


def _add(row: _AtRisk, one: Ranked, record: Mapping[str, Any]) -> None:
    row.examples.add(record["id"])
    row.sizes[one.run] = row.sizes.get(one.run, 0) + record["size"]
    if record["p"] is not None and not math.isnan(record["p"]):
        row.p_values.append(record["p"])
        references = one.ranking.references
        row.smallest.append(0.0 if references is None else 1 / (references + 1))
    if record["named"]:
        row.named.add(one.run)
    known = row.found.get(one.run)
    if known is None or record["place"] < known["place"]:
        values = {name: record[name] for name in ("score", "place", "members", "p")}
        row.found[one.run] = {"run": one.run, "by": one.ranking.name, **values}


def _order(row: _AtRisk) -> tuple[float, int, float]:
    return (2.0 if row.p_value is None else row.p_value, -len(row.named), row.share_of_places)


def _row(place: int, name: str, data: str, one: _AtRisk, adjusted: Iterator[float]) -> dict[str, Any]:
    return {
        "place": place,
        "id": name,
        "kind": one.kind,
        "data": data,
        "examples": one.num_examples,
        "named": len(one.named),
        "examined": len(one.found),
        "p_value": one.p_value,
        "p_adjusted": None if one.p_value is None else next(adjusted),
        "smallest_p": min(1.0, len(one.p_values) * min(one.smallest)) if one.smallest else None,
        "found": json.dumps(list(one.found.values())),
    }


def fewest_that_can_pass(risk: pa.Table, alpha: float) -> int | None:
    """Return the number of rows that must share the smallest p-value before any of them passes; None without p-values.

    Benjamini's and Hochberg's method passes k of N rows at p if N p / k is at most alpha.

    Args:
        risk: tables.RISK.
    """
    smallest = [p for p in risk["smallest_p"].to_pylist() if p is not None]
    return max(1, math.ceil(len(smallest) * min(smallest) / alpha)) if smallest else None


def named_together(ranked: Sequence[Ranked], *, share: float, seed: int = 0) -> list[Finding]:
    """Test how many of the records that several scores name were trained on, for scores on one random draw of the members.

    Every score names its share of *all* records, whether or not the model was trained on them. If the model does not depend
    on who was drawn, every other draw within the strata was as likely; the scores stay as they are, with each record's scores
    kept together, as permuting them one by one would break the dependence that they have without memory, too.

    Args:
        ranked: rankings; those with strata are grouped by their draw.
        share: share of the records that a score names.

    Returns:
        a test for each draw with at least two scores.
    """
    draws: dict[str, list[Ranked]] = {}
    for one in ranked:
        if one.ranking.strata is not None:
            draws.setdefault(_draw_of(one.ranking), []).append(one)
    return [_test(of_draw, share, seed) for of_draw in draws.values() if len(of_draw) >= NAMED_BY]


def _draw_of(ranking: Ranking) -> str:
    """Return a digest of the records and of the draw of the members."""
    drawn = sorted(zip(ranking.ids, ranking.members.tolist(), strict=True))
    return hashlib.sha256(json.dumps(drawn).encode()).hexdigest()


def _test(ranked: Sequence[Ranked], share: float, seed: int) -> Finding:
    first = ranked[0].ranking
    order = np.argsort(np.array(first.ids), kind="stable")
    counts = np.zeros(len(first.ids), dtype=np.int64)
    for one in ranked:
        mine = np.argsort(np.array(one.ranking.ids), kind="stable")
        counts[order] += _named(one.ranking.scores[mine], share)
    together = counts >= NAMED_BY
    assert first.strata is not None
    observed = int(first.members[together].sum())
    null = _redrawn(first.members, first.strata, together, seed)
    p = (1 + int((null >= observed).sum())) / (1 + DRAWS)
    params = {
        "runs": sorted({one.run for one in ranked}), "scores": len(ranked), "named_by": NAMED_BY, "share": share,
        "records": int(together.sum()), "expected": float(null.mean()),
    }  # fmt: skip
    value = observed / max(1, int(together.sum()))
    chance = float(null.mean()) / max(1, int(together.sum()))
    return tested(
        "members_named_together", params, value, n=int(together.sum()), p_value=p, family=FAMILY, null_value=chance,
        smallest_p=1 / (1 + DRAWS),
    )  # fmt: skip


def _named(scores: NDArray[np.float64], share: float) -> NDArray[np.int64]:
    """Return 1 for the records that a score names; records that tie with the first unnamed one are not named."""
    number = _number(len(scores), share)
    after = np.sort(scores)[::-1][number] if number < len(scores) else -math.inf
    return (scores > after).astype(np.int64)


def _redrawn(
    members: NDArray[np.bool_], strata: NDArray[np.int64], together: NDArray[np.bool_], seed: int
) -> NDArray[np.int64]:
    """Return the number of members among the named records in each redraw, (DRAWS,): hypergeometric within strata."""
    rng = np.random.default_rng(derive_seed(seed, "named together"))
    total = np.zeros(DRAWS, dtype=np.int64)
    for stratum in np.unique(strata):
        here = strata == stratum
        inside, named = int(members[here].sum()), int(together[here].sum())
        total += rng.hypergeometric(inside, int(here.sum()) - inside, named, size=DRAWS) if named else 0
    return total
