"""Results, report and manifest published where people look."""

import contextlib
import getpass
import hashlib
import json
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact

import memlib
from memlib import ledger
from memlib.errors import RunError
from memlib.findings import verdict_of
from memlib.identity import canonical_json, file_digest
from memlib.private import scratch
from memlib.provenance import software, source_state
from memlib.records import sealed
from memlib.runs import (
    asks_digest,
    findings_of,
    list_runs,
    pins_of,
    publish_rows,
    read_run,
    refs_of,
    results_path,
    run_name,
)
from memlib.store import MANIFEST, Ref
from memlib.tables import PUBLISHED, RUNS, write_table
from tasks.display import quietly
from tasks.runtime import Context
from tasks.scoring import SUMMARY_FILE
from tasks.stage import stage_task

REPORT_FILE = "report.html"
ARTIFACT_ROWS = 50
DATA_STAGES = ("decode", "secret/corpus")


def run_id(recipe: Any, scores: Ref) -> str:
    """The name of a run: of its recipe, wherever its data lie and however its page looks, and of its scores."""
    return run_name(recipe.model_dump(mode="json"), scores.key)


def read_scores(context: Context, scores: Ref, name: str) -> pa.Table:
    """One of the score stage's tables."""
    return pq.read_table(context.store.local_path(scores, name))


@stage_task("publish")
def publish(
    context: Context,
    recipe: Any,
    run: str,
    scores: Ref,
    report: Ref,
    artifacts: Mapping[str, str],
) -> dict[str, Any]:
    """Puts the tables below results/, the page and figures below runs/<run>/, the run's manifest last."""
    if context.plan is not None:
        return {}
    store = context.store
    metadata = {"memlib.run": run, "memlib.stage_key": scores.key, "memlib.software": memlib.__version__}
    results, pages, published = {}, {}, {}
    with scratch("publish") as folder:
        for name, schemas in PUBLISHED.items():
            part = folder / f"{name}.parquet"
            schema = schemas.get(recipe.audit) or schemas.get("")
            if schema is None or name == RUNS.name:  # a table of other audits, or the one that comes last
                continue
            write_table(read_scores(context, scores, part.name), schema, part, metadata=metadata)
            path = results_path(name, recipe.audit, run)
            results[name], published[path] = store.publish(path, part), file_digest(part)
    for name, file in store.manifest(report)["files"].items():
        path = f"runs/{run}/{name}"
        pages[name] = store.publish(path, store.local_path(report, name), secret=True)
        published[path] = file["sha256"]
    summary = read_scores(context, scores, SUMMARY_FILE).to_pylist()
    manifest = {
        "run": run,
        "audit": recipe.audit,
        "title": recipe.title,
        "recipe": recipe.model_dump(mode="json"),
        "verdict": asdict(verdict_of(summary)),
        "ledger": _ledger(context, run, artifacts),
        "findings": findings_of(summary),
        "results": results,
        "report": pages[REPORT_FILE],
        "artifacts": dict(artifacts),
        "scores": str(scores),
        "computed": context.computed,
        "reused": context.reused,
        "published": published,
    }
    manifest = publish_run(context, manifest)
    quietly(_show_in_prefect, manifest, next((uri for name, uri in sorted(pages.items()) if name.endswith(".png")), None))
    return manifest


def _ledger(context: Context, run: str, artifacts: Mapping[str, str]) -> dict[str, Any]:
    """The digest of the run's data, and the audits of the same data that were published before it."""
    data = data_digest(context, [Ref(*name.rsplit("/", 1)) for name in dict.fromkeys(artifacts.values())])
    return ledger.entry(list_runs(context.store).entries, run, data, _published_before(context, run))


def _published_before(context: Context, run: str) -> dict[str, Any] | None:
    """The manifest of an earlier publication of the run; a damaged one is written anew."""
    with contextlib.suppress(RunError):
        return read_run(context.store, run)
    return None


def data_digest(context: Context, artifacts: Sequence[Ref]) -> str:
    """A digest of the data of a run: of the content of its sources, whatever size they are decoded at; empty without any.

    Args:
        context: the run.
        artifacts: of the run; decoded sources and corpora are among them.
    """
    found = []
    for ref in artifacts:
        if ref.stage in DATA_STAGES:
            manifest = context.store.manifest(ref)
            found.append([manifest["inputs"].get("source") or manifest["inputs"]["text"], manifest["spec"].get("source")])
    return hashlib.sha256(canonical_json(sorted(found, key=canonical_json)).encode()).hexdigest() if found else ""


def publish_run(context: Context, manifest: dict[str, Any]) -> dict[str, Any]:
    """Publishes a run's manifest, which comes last; returns it with who ran it when, where, and with which software."""
    run, store = manifest["run"], context.store
    whole = manifest | {
        "asks": asks_digest(manifest["recipe"]),
        "pins": pins_of(store, refs_of(manifest)),
        "resources": context.resources.model_dump(mode="json"),
        "history": run_history(context, run),
        "seconds": round(time.time() - context.started, 1),
        "finished": time.time(),
        "software": dict(software()),
        "source": dict(source_state()),
    }
    whole = sealed(whole)
    store.publish_bytes(f"runs/{run}/{MANIFEST}", json.dumps(whole, indent=1).encode())
    publish_rows(store, [entry for entry in list_runs(store).entries if entry["run"] == run])
    return whole


def run_history(context: Context, run: str) -> list[dict[str, Any]]:
    """Who ran it when, the first time first: a run that is found finished is still noted."""
    before = _published_before(context, run)
    entries: list[dict[str, Any]] = [] if before is None else before["history"]
    entry = {
        "who": f"{_user()}@{socket.gethostname()}",
        "started": context.started,
        "seconds": round(time.time() - context.started, 1),
        "computed": len(context.computed),
        "reused": len(context.reused),
    }
    return [*entries, entry]


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without a name for its user
        return "unknown"


def _show_in_prefect(manifest: Mapping[str, Any], figure: str | None) -> None:
    rows = [
        {
            name: row[name]
            for name in ("metric", "params", "role", "value", "ci_low", "ci_high", "p_value", "p_adjusted", "verdict")
        }
        for row in manifest["findings"][:ARTIFACT_ROWS]
    ]
    key = f"{manifest['audit']}-{manifest['run']}".replace("_", "-")
    create_table_artifact(table=rows, key=f"{key}-summary", description=manifest["title"])
    where = f"Report: `{manifest['report']}`\n\nResults: `{manifest['results']['summary']}`"
    text = f"# {manifest['title']}\n\n{_said(manifest)}{where}"
    create_markdown_artifact(markdown=text, key=f"{key}-report", description=manifest["title"])
    if figure is not None:
        create_link_artifact(link=_as_link(figure), link_text="figure", key=f"{key}-figure", description=manifest["title"])


def _said(manifest: Mapping[str, Any]) -> str:
    said = manifest.get("verdict")
    return f"**{said['sentence']}** {said['explanation']}\n\n" if said is not None else ""


def _as_link(uri: str) -> str:
    return uri if "://" in uri else Path(uri).as_uri()
