"""The findings of an audit of image-text models, from its units.

The gain of a pair is its recall of unnamed objects under the model trained on A less that under the model trained on B. With
models on A alone, twice the recall under them takes its place, so that the excess is again a difference of mean recall.

Where the draw of the sides is declared, pairs of A may have easier captions, and a better model gains more on those. The
gains are then adjusted for what the words alone recall and for the mean recall of both models, and the words' recall of the
sides is compared beforehand. With one model alone nothing stands beside the words, a weak measure, so nothing is tested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from memlib.audits.captions.recipe import DOSES, HEADLINE, Config
from memlib.audits.sides import Audited
from memlib.data.given_sets import Difference, p_of_draw
from memlib.data.splits import EXTRA, REFERENCE, TARGET
from memlib.findings import Finding, diagnostic, estimate, settle, untested
from memlib.identity import derive_seed
from memlib.stats.difficulty import CONTRADICTED, unexplained
from memlib.stats.randomization import two_sided_p
from memlib.tables import CURVES, point

EXCESS, UNIMPLIED, TOP, GAP = "recall_excess", "recall_excess_unimplied", "recall_excess_top", "population_gap"
HELD_OUT = "H"
DIRECTION_OF = {TARGET: "A", REFERENCE: "B", EXTRA: HELD_OUT}


@dataclass(frozen=True)
class Setting:
    """The units at one epoch and k: those of each pair of models in order of example id."""

    rows: pa.Table  #: the units of the first pair of models, one row per pair of image and caption.
    #: column of the units -> (num_models, num_rows), as floats, NaN where there is no second model.
    columns: Mapping[str, NDArray[np.float64]]
    declared: bool = False  #: whether a random draw of the sides was only declared.

    @classmethod
    def of(cls, units: pa.Table, *, epoch: int, k: int, declared: bool = False) -> Setting:
        """Return the units with unnamed objects at a setting."""
        units = units.filter((pc.field("epoch") == epoch) & (pc.field("k") == k) & (pc.field("num_unnamed") > 0))
        units = units.sort_by([("pair", "ascending"), ("example_id", "ascending")])
        models = len(pc.unique(units["pair"]))
        numbers = [
            field.name for field in units.schema if pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        ]
        columns = {name: pc.cast(units[name], "double").to_numpy().reshape(models, -1) for name in numbers}
        return cls(units.slice(0, units.num_rows // max(1, models)).combine_chunks(), columns, declared)

    def only(self, mask: NDArray[np.bool_]) -> Setting:
        """Return the rows of a mask (num_rows,)."""
        columns = {name: column[:, mask] for name, column in self.columns.items()}
        return replace(self, rows=self.rows.filter(pa.array(mask)), columns=columns)

    def among(self, *directions: str) -> Setting:
        """Return the rows of some sets."""
        return self.only(np.isin(self.rows["direction"].to_pylist(), directions))

    @property
    def has_reference(self) -> bool:
        """True if there are models trained on B."""
        return not bool(np.isnan(self.columns["b_recovered"]).any())

    def gains(self, kind: str = "recovered") -> NDArray[np.float64]:
        """Return the gains, (num_models, num_rows).

        Args:
            kind: recovered, or unimplied for unnamed objects that the words do not imply.
        """
        total = self.columns["num_unnamed"] - (self.columns["num_implied"] if kind == "unimplied" else 0)
        of_a, of_b = (self.columns[f"{side}_{kind}"] / total for side in "ab")
        return of_a - of_b if self.has_reference else 2 * of_a

    @property
    def words(self) -> NDArray[np.float64]:
        """The recall of unnamed objects by the words alone, (num_rows,)."""
        share: NDArray[np.float64] = (self.columns["prior_recovered"] / self.columns["num_unnamed"])[0]
        return share

    def fair_gains(self, kind: str = "recovered") -> NDArray[np.float64]:
        """Return the gains, adjusted for how easy the captions are where the draw of the sides was declared: as `gains`."""
        gains = self.gains(kind)
        if not self.declared:
            return gains
        easy = [self.words]
        if self.has_reference:
            easy.append((_recall(self, "a") + _recall(self, "b")).mean(axis=0))
        terms = np.stack([power for one in easy for power in (one, np.square(one))], axis=1)
        return unexplained(gains.T, terms, np.zeros(len(terms), dtype=np.int64)).T

    def audited(self, config: Config, use: str) -> Audited:
        """Return the design of the rows; pairs held out from all models are on B's side."""
        roles = [TARGET if name == "A" else REFERENCE for name in self.rows["direction"].to_pylist()]
        members = self.rows.select(["example_id", "group"]).append_column("role", pa.array(roles))
        members = members.append_column("label", pa.array(np.zeros(len(roles), dtype=np.int64)))
        return Audited(members, config, use=use)


def summarize(
    units: pa.Table,
    config: Config,
    *,
    epochs: tuple[int, ...],
    chance: float,
    by_chance: bool = True,
    checks: Difference | None = None,
) -> list[Finding]:
    """Return the settled findings, the headline first.

    Args:
        units: tables.UNITS.
        config: level, settings, replicates, permutations, seed.
        epochs: the scored checkpoints, the last one first.
        chance: recall of unnamed objects if captions had one another's neighbours, at the headline's setting.
        by_chance: whether pairs were assigned to the sides at random; otherwise tests become estimates.
        checks: comparison without a model of sets of which that was only declared; None if memlib drew them.
    """
    declared = checks is not None
    head = Setting.of(units, epoch=epochs[0], k=config.k[0], declared=declared)
    params = {"epoch": epochs[0], "k": config.k[0], "objects": config.objects}
    rows = [_excess(head, params, config, family=HEADLINE)]
    rows += _recalls(head, params, config, chance)
    rows += _further(head, params, config)
    rows += _doses(head, params, config)
    for epoch in epochs:
        for k in config.k:
            if (epoch, k) != (epochs[0], config.k[0]):
                setting = Setting.of(units, epoch=epoch, k=k, declared=declared)
                rows.append(_excess(setting, params | {"epoch": epoch, "k": k}, config))
    if checks is not None and by_chance:
        draw = _draw(head, config, checks)
        rows.append(draw)
        by_chance = head.has_reference and not draw.params["contradicted"]
    rows = rows if by_chance else [untested(row) for row in rows]
    return list(settle(rows, alpha=config.level, headlines=(HEADLINE,)))


def _excess(
    setting: Setting, params: Mapping[str, Any], config: Config, *, metric: str = EXCESS, kind: str = "recovered",
    family: str | None = None,
) -> Finding:  # fmt: skip
    """Return the excess over the pairs of A and B: a test if it has a family, else an estimate."""
    sides = setting.among("A", "B")
    audited, gains = sides.audited(config, f"{metric} {sorted(params.items())}"), sides.fair_gains(kind)
    params = {**params, "pairs": len(gains), **audited.params}
    if family is None:
        value = audited.design.difference(gains.mean(axis=0)) / 2
        return estimate(metric, params, value, n=audited.count, interval=audited.of_difference(gains))
    null = audited.redrawn(gains.mean(axis=0), seed=audited.seed)
    seed = derive_seed(audited.seed, "power")
    return audited.tested(metric, params, gains, null, family=family, level=config.level, seed=seed)


def _draw(head: Setting, config: Config, checks: Difference) -> Finding:
    """Return the test of a declared draw by what is known without a model, what the words alone recall and the models do.

    Memory of both models alike leaves no difference in the sum of their recall; memory of the first alone leaves none in that
    of the second. Only where the sides differ in both do their captions, or images, differ.
    """
    sides = head.among("A", "B")
    audited = sides.audited(config, "declared_draw")

    def compared(values: NDArray[np.float64], name: str) -> float:
        null = audited.redrawn(values, seed=derive_seed(audited.seed, name))
        return two_sided_p(audited.design.difference(values) / 2, null)

    found = {"words": compared(sides.words, "words")}
    if head.has_reference:
        of_a, of_b = (_recall(sides, side).mean(axis=0) for side in "ab")
        found["models"] = max(compared(of_a + of_b, "both"), compared(of_b, "second"))
    p = p_of_draw(known=checks.p_value, models=list(found.values()))
    told = {"told": checks.told} if checks.p_value <= len(found) * min(found.values()) else {}
    by = min(found, key=found.__getitem__)
    params = {"contradicted": p <= CONTRADICTED, "alone": not head.has_reference, "by": by} | told
    return diagnostic("declared_draw", params, p, n=audited.count)


def _recalls(head: Setting, params: Mapping[str, Any], config: Config, chance: float) -> Iterator[Finding]:
    """Yield recall, precision and F of unnamed objects by model, and what is known without memory."""
    sides = head.among("A", "B")
    for metric, of in {"recall": _recall, "precision": _precision, "f_score": _f_score}.items():
        for who, part, values in _own_and_other(sides, of):
            yield _mean(f"{metric}_{who}", part, values, params, config)
    yield _mean("recall_words", sides, sides.columns["prior_recovered"] / sides.columns["num_unnamed"], params, config)
    yield diagnostic("recall_chance", params, chance, n=sides.rows.num_rows)
    named = sides.only(sides.columns["num_named"][0] > 0)
    if named.rows.num_rows:
        for who, part, values in _own_and_other(named, _named_recall):
            yield _mean("named_recall", part, values, {**params, "by": who}, config)


Measure = Callable[[Setting, str], NDArray[np.float64]]


def _own_and_other(sides: Setting, of: Measure) -> Iterator[tuple[str, Setting, NDArray[np.float64]]]:
    """Yield target and reference, the rows, and a measure of these under models that were, and were not, trained on them.

    With models on A alone, the pairs of B are those that they were not trained on.
    """
    if not sides.has_reference:
        for who, direction in (("target", "A"), ("reference", "B")):
            part = sides.among(direction)
            yield who, part, of(part, "a")
        return
    of_a = np.array(sides.rows["direction"].to_pylist()) == "A"
    by_a, by_b = of(sides, "a"), of(sides, "b")
    yield "target", sides, np.where(of_a, by_a, by_b)
    yield "reference", sides, np.where(of_a, by_b, by_a)


def _recall(of: Setting, side: str) -> NDArray[np.float64]:
    share: NDArray[np.float64] = of.columns[f"{side}_recovered"] / of.columns["num_unnamed"]
    return share


def _named_recall(of: Setting, side: str) -> NDArray[np.float64]:
    share: NDArray[np.float64] = of.columns[f"{side}_named"] / of.columns["num_named"]
    return share


def _precision(of: Setting, side: str) -> NDArray[np.float64]:
    found, wrong = of.columns[f"{side}_recovered"], of.columns[f"{side}_wrong"]
    return np.divide(found, found + wrong, out=np.zeros_like(found), where=found + wrong > 0)


def _f_score(of: Setting, side: str) -> NDArray[np.float64]:
    recall, precision = _recall(of, side), _precision(of, side)
    total = recall + precision
    return np.divide(2 * recall * precision, total, out=np.zeros_like(total), where=total > 0)


def _mean(
    metric: str, part: Setting, values: NDArray[np.float64], params: Mapping[str, Any], config: Config, least: float = 0.0
) -> Finding:
    """Return the mean over models and pairs, with an interval over pairs; values are (num_models, num_rows)."""
    audited, mean = part.audited(config, metric), values.mean(axis=0)
    interval = audited.of_mean(mean, least=least)
    return diagnostic(metric, {**params, **audited.params}, float(mean.mean()), n=audited.count, interval=interval)


def _further(head: Setting, params: Mapping[str, Any], config: Config) -> Iterator[Finding]:
    """Yield the excess where words imply nothing and for captions near the public images, and the paper's gaps."""
    unimplied = head.among("A", "B")
    unimplied = unimplied.only((unimplied.columns["num_unnamed"] > unimplied.columns["num_implied"])[0])
    if {"A", "B"} <= set(unimplied.rows["direction"].to_pylist()):
        yield _excess(unimplied, params, config, metric=UNIMPLIED, kind="unimplied")
    sides = head.among("A", "B")
    key = sides.columns["distance"].mean(axis=0)
    for top in config.top:
        count = max(1, round(top * len(key)))
        chosen = np.zeros(len(key), dtype=bool)
        chosen[np.argsort(key, kind="stable")[:count]] = True
        part = sides.only(chosen)
        if {"A", "B"} <= set(part.rows["direction"].to_pylist()):
            yield _excess(part, {**params, "top": top}, config, metric=TOP)
    if not head.has_reference:
        return
    for direction in ("A", "B", HELD_OUT):
        part = head.among(direction)
        if part.rows.num_rows:
            yield _mean(GAP, part, np.sign(part.gains()), {**params, "direction": direction}, config, least=-1.0)


def _doses(head: Setting, params: Mapping[str, Any], config: Config) -> Iterator[Finding]:
    """Yield the excess by the number of copies, if some pairs were trained on several times."""
    copies = sorted(set(head.among("A", "B").columns["copies"][0].astype(int).tolist()))
    for number in copies if len(copies) > 1 else []:
        part = head.only(head.columns["copies"][0] == number)
        if {"A", "B"} <= set(part.rows["direction"].to_pylist()):
            yield _excess(part, {**params, "copies": number}, config, family=DOSES)


def curves(units: pa.Table, *, epochs: tuple[int, ...], k: int) -> pa.Table:
    """Return the curves gain_by_set: the share of pairs of each set whose gain is at most x, at the headline's setting."""
    head = Setting.of(units, epoch=epochs[0], k=k)
    rows = []
    for direction in ("A", "B", HELD_OUT):
        part = head.among(direction)
        if not part.rows.num_rows:
            continue
        gains = np.sort(part.gains().mean(axis=0))
        for x in np.unique(gains.round(6)):
            share = float(np.searchsorted(gains, x + 1e-6, side="right") / len(gains))
            rows.append(point("gain_by_set", direction, {}, float(x), share))
    return pa.Table.from_pylist(rows, schema=CURVES.arrow)
