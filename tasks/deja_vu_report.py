"""The déjà vu page as a stage."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from memlib.audits import deja_vu
from memlib.data.shards import IMAGES, read_images
from memlib.store import Attempt, Ref
from tasks import declared
from tasks.data import read_splits
from tasks.observing import read_ids, read_neighbors
from tasks.reporting import REPORT_FILE, read_scores
from tasks.runtime import Context
from tasks.scoring import CURVES_FILE, SUMMARY_FILE, UNITS_FILE, Searches
from tasks.stage import run_stage, stage_task

if TYPE_CHECKING:
    from memlib.report.deja_vu import Facts, Shown


@stage_task("report")
def write_report(
    context: Context, recipe: deja_vu.Recipe, run: str, scores: Ref, searches: Sequence[Searches], shard: Ref,
    splits: Ref, models: Mapping[str, Ref],
) -> Any:  # fmt: skip
    """Draws the figures and the page: report.html, figures/*.svg and *.png."""

    def compute(attempt: Attempt) -> None:
        from memlib.report.deja_vu import build_page  # matplotlib is slow to load
        from memlib.report.page import render

        tables = {name: read_scores(context, scores, name) for name in (UNITS_FILE, SUMMARY_FILE, CURVES_FILE)}
        page = build_page(
            recipe, run, tables[UNITS_FILE], tables[SUMMARY_FILE], tables[CURVES_FILE], _facts(context, splits, models),
            _Pictures(context, recipe, searches, shard, splits).show, attempt.path("figures"),
        )  # fmt: skip
        attempt.path(REPORT_FILE).write_text(render(page), encoding="utf-8")

    spec = {"recipe": recipe.model_dump(mode="json"), "run": run}
    inputs = {"scores": scores.key, "shard": shard.key, "splits": splits.key}
    return run_stage(context, declared.REPORT_DEJA_VU, spec=spec, inputs=inputs, compute=compute)


def _facts(context: Context, splits: Ref, models: Mapping[str, Ref]) -> "Facts":
    from memlib.report.deja_vu import Facts

    table = read_splits(context, splits)
    reasons = [reason.split(" of ")[0].split(":")[0] for reason in table["reason"].to_pylist() if reason]
    return Facts(
        counts=Counter(table["role"].to_pylist()),
        left_out=Counter(reasons),
        seconds={name: context.store.manifest(ref)["facts"]["training_seconds"] for name, ref in models.items()},
    )


class _Pictures:
    """Finds the pictures for the galleries."""

    def __init__(
        self, context: Context, recipe: deja_vu.Recipe, searches: Sequence[Searches], shard: Ref, splits: Ref
    ) -> None:
        self._context, self._recipe = context, recipe
        self._searches = {(s.pair, s.layer, s.epoch, s.crop): s for s in searches}
        self._images = read_images(context.store.local_path(shard, IMAGES))
        table = read_splits(context, splits)
        names = table["class_name"].to_pylist()
        self._class_names = dict(zip(table["label"].to_pylist(), names, strict=True))
        self._ids = lru_cache(self._read_ids)
        self._neighbors = lru_cache(self._read_neighbors)

    def _read_ids(self, ref: Ref) -> dict[str, dict[str, Any]]:
        rows = read_ids(self._context, ref).to_pylist()
        return {row["example_id"]: {**row, "position": i} for i, row in enumerate(rows)}

    def _read_neighbors(self, ref: Ref) -> Any:
        return read_neighbors(self._context, ref)

    def show(self, unit: Mapping[str, Any]) -> "Shown":
        """The pictures of one row of the units."""
        from memlib.report.deja_vu import Shown

        found = self._searches[unit["pair"], unit["layer"], unit["epoch"], unit["crop"]]
        target, reference = found.by_model if unit["direction"] == "A" else found.by_model[::-1]
        entry = self._ids(target)[unit["example_id"]]
        box = (entry["crop_x0"], entry["crop_y0"], entry["crop_x1"], entry["crop_y1"])
        public = list(self._ids(found.public).values())

        def nearest(search: Ref) -> list[tuple[Any, str]]:
            rows = self._neighbors(search)[self._ids(search)[unit["example_id"]]["position"]]
            chosen = [public[row] for row in rows[: self._recipe.report.neighbors]]
            return [(self._images[c["row"]], self._class_names[c["label"]]) for c in chosen]

        return Shown(self._images[entry["row"]], box, nearest(target), nearest(reference))
