"""The page as a stage; results, report and manifest published where people look."""

import getpass
import json
import platform
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from prefect.artifacts import create_markdown_artifact, create_table_artifact

import memlib
from memlib.audits import deja_vu
from memlib.data.shards import IMAGES, read_images
from memlib.store import MANIFEST, Attempt, Ref
from memlib.tables import PUBLISHED, write_table
from tasks.data import read_splits
from tasks.observing import read_ids, read_neighbors
from tasks.runtime import Context
from tasks.scoring import CURVES_FILE, SUMMARY_FILE, UNITS_FILE, Searches
from tasks.stage import run_stage, stage_task

if TYPE_CHECKING:
    from memlib.report.deja_vu import Facts, Shown

REPORT_FILE = "report.html"
ARTIFACT_ROWS = 50


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
    return run_stage(context, "report", version=1, spec=spec, inputs=inputs, compute=compute, secret=True)


def read_scores(context: Context, scores: Ref, name: str) -> pa.Table:
    """One of the score stage's tables."""
    return pq.read_table(context.store.local_path(scores, name))


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


@stage_task("publish")
def publish(
    context: Context,
    recipe: deja_vu.Recipe,
    run: str,
    scores: Ref,
    report: Ref,
    artifacts: Mapping[str, str],
    started: float,
) -> dict[str, Any]:
    """Puts the tables below results/, the page and figures below runs/<run>/, the run's manifest last."""
    store = context.store
    metadata = {"memlib.run": run, "memlib.stage_key": scores.key, "memlib.software": memlib.__version__}
    results = {}
    with tempfile.TemporaryDirectory(prefix="memlib-publish-") as folder:
        for name, schemas in PUBLISHED.items():
            part = Path(folder) / f"{name}.parquet"
            schema = schemas.get(recipe.audit) or schemas[""]
            write_table(read_scores(context, scores, part.name), schema, part, metadata=metadata)
            path = f"results/table={name}/audit={recipe.audit}/run={run}/part-0.parquet"
            results[name] = store.publish(path, part)
        pages = {
            name: store.publish(f"runs/{run}/{name}", store.local_path(report, name), secret=True)
            for name in store.manifest(report)["files"]
        }
        summary = read_scores(context, scores, SUMMARY_FILE).to_pylist()
        manifest = {
            "run": run,
            "audit": recipe.audit,
            "title": recipe.title,
            "recipe": recipe.model_dump(mode="json"),
            "findings": [row for row in summary if '"class"' not in row["params"]],
            "results": results,
            "report": pages[REPORT_FILE],
            "artifacts": dict(artifacts),
            "history": _history(context, run, started),
            "computed": context.computed,
            "reused": context.reused,
            "seconds": round(time.time() - started, 1),
            "finished": time.time(),
            "software": {"memlib": memlib.__version__, "python": platform.python_version()},
        }
        record = Path(folder) / MANIFEST
        record.write_text(json.dumps(manifest, indent=1))
        store.publish(f"runs/{run}/{MANIFEST}", record)
    _show_in_prefect(manifest)
    return manifest


def _history(context: Context, run: str, started: float) -> list[dict[str, Any]]:
    """Who ran it when, the first time first: a run that is found finished is still noted."""
    before = context.store.published(f"runs/{run}/{MANIFEST}")
    entries: list[dict[str, Any]] = json.loads(before).get("history", []) if before else []
    entry = {
        "who": f"{_user()}@{socket.gethostname()}",
        "started": started,
        "seconds": round(time.time() - started, 1),
        "computed": len(context.computed),
        "reused": len(context.reused),
    }
    return [*entries, entry]


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without a name for its user
        return "unknown"


def _show_in_prefect(manifest: Mapping[str, Any]) -> None:
    rows = [
        {name: row[name] for name in ("metric", "params", "value", "ci_low", "ci_high", "p_value", "verdict")}
        for row in manifest["findings"][:ARTIFACT_ROWS]
    ]
    key = f"{manifest['audit']}-{manifest['run']}".replace("_", "-")
    create_table_artifact(table=rows, key=f"{key}-summary", description=manifest["title"])
    text = f"# {manifest['title']}\n\nReport: `{manifest['report']}`\n\nResults: `{manifest['results']['summary']}`"
    create_markdown_artifact(markdown=text, key=f"{key}-report", description=manifest["title"])
