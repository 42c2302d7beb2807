"""The finished runs of a store: an index that is made again where it is missing or old, and one run's whole manifest.

The index holds what lists of runs and the search for garbage need, so that ten thousand runs are one file to read. Each
entry names size and time of the manifest it was made from; what differs is read again.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from memlib.errors import RunError, UserError
from memlib.identity import canonical_json, content_key
from memlib.private import scratch
from memlib.records import (
    NAME,
    ArtifactRecord,
    DamagedEntry,
    IndexedRun,
    Pin,
    RunEntry,
    RunRecord,
    Unreadable,
    parse,
    parse_index,
)
from memlib.specs.base import whereabouts_of
from memlib.store import MANIFEST, Ref, Store
from memlib.tables import RUNS, write_table

INDEX = "index/runs.json"
FORMAT = 1
SETTLING_SECONDS = 2.0  # a store's clock may tick once a second: what was written just before the index is read again
BATCH = 500
PRESENTATION = ("title", "report")  # keys of a recipe that change no number
NAME_LENGTH = 12


@dataclass(frozen=True)
class Runs:
    """What is known of a store's finished runs.

    Attributes:
        entries: newest first.
        damaged: what is wrong with the manifests that cannot be read, by run.
    """

    entries: Sequence[RunEntry]
    damaged: Mapping[str, str]

    def warning(self) -> str:
        """One line about those that cannot be read, "" where all can."""
        if not self.damaged:
            return ""
        name, problem = next(iter(self.damaged.items()))
        others = f" and {len(self.damaged) - 1} more" if len(self.damaged) > 1 else ""
        return f"the manifest of run {name}{others} cannot be read ({problem})"


def list_runs(store: Store, *, indexed: bool = True, listing: Mapping[str, tuple[int, float]] | None = None) -> Runs:
    """All finished runs; those whose manifest cannot be read are named.

    Args:
        store: which.
        indexed: whether to believe the index. Otherwise all manifests are read, and nothing is written.
        listing: the store's listing of "runs", where the caller has it.
    """
    there = store.listing("runs") if listing is None else listing
    found = {path.split("/")[1]: facts for path, facts in there.items() if _is_manifest(path)}
    known, written = _read_index(store) if indexed else ({}, 0.0)
    entries: dict[str, RunEntry | DamagedEntry] = {}
    for name, mark in found.items():
        entry = known.get(name)
        if entry is not None and tuple(entry["mark"]) == mark and mark[1] < written - SETTLING_SECONDS:
            entries[name] = entry
    missing = [name for name in found if name not in entries]
    for start in range(0, len(missing), BATCH):
        batch = missing[start : start + BATCH]
        contents = store.published_together([f"runs/{name}/{MANIFEST}" for name in batch])
        for name in batch:
            entries[name] = _entry(contents.get(f"runs/{name}/{MANIFEST}"), name, found[name])
    if indexed and (missing or len(known) != len(entries)):
        _write_index(store, entries)
    whole = [entry for entry in entries.values() if "problem" not in entry]
    damaged = {name: entry["problem"] for name, entry in sorted(entries.items()) if "problem" in entry}
    return Runs(sorted(whole, key=lambda entry: -entry["finished"]), damaged)


def _is_manifest(path: str) -> bool:
    parts = path.split("/")
    return len(parts) == 3 and parts[2] == MANIFEST


def _entry(content: bytes | None, name: str, mark: tuple[int, float]) -> RunEntry | DamagedEntry:
    """What the index keeps of a run, or what is wrong with its manifest."""
    if content is None:  # taken away meanwhile, or no file that can be read
        return {"problem": "it is no plain file", "mark": mark}
    try:
        run = parse(RunRecord, content)
    except Unreadable as error:
        return {"problem": str(error), "mark": mark}
    if run.run != name:
        return {"problem": f"it says that it is run {run.run}", "mark": mark}
    first = run.findings[0]
    return {
        "run": run.run,
        "audit": run.audit,
        "title": run.title,
        "finished": run.finished,
        "verdict": None if run.verdict is None else {"word": run.verdict.word, "sentence": run.verdict.sentence},
        "findings": [
            {
                "metric": first.metric,
                "params": first.params,
                "value": first.value,
                "p_value": first.p_value,
                "verdict": first.verdict,
            }
        ],
        "ledger": {"data": run.ledger.data},
        "cells": run.cells,
        "scores": run.scores,
        "asks": run.asks,
        "memlib": str(run.software.get("memlib", "")),
        "refs": sorted(map(str, refs_of(run))),
        "mark": mark,
    }


def _read_index(store: Store) -> tuple[dict[str, RunEntry | DamagedEntry], float]:
    """Entries by run, and when the index was written; none where it is missing or not of this format."""
    written = next((when for path, (_, when) in store.listing("index").items() if path == INDEX), 0.0)
    content = store.published(INDEX) if written else None
    with contextlib.suppress(Unreadable, IndexError):
        index = parse_index(content or b"")
        if index["format"] == FORMAT:
            refs = index["refs"]
            entries: dict[str, RunEntry | DamagedEntry] = {}
            for name, entry in index["entries"].items():
                if "problem" in entry:
                    entries[name] = entry
                else:
                    entries[name] = RunEntry({**entry, "refs": [refs[place] for place in entry["refs"]]})
            return entries, written
    return {}, 0.0


def _write_index(store: Store, entries: Mapping[str, RunEntry | DamagedEntry]) -> None:
    """Where it cannot be written, as in a store that is read-only, nothing is lost but time."""
    places: dict[str, int] = {}
    brief: dict[str, IndexedRun | DamagedEntry] = {}
    for name, entry in entries.items():
        if "problem" in entry:
            brief[name] = entry
        else:
            brief[name] = IndexedRun({**entry, "refs": [places.setdefault(ref, len(places)) for ref in entry["refs"]]})
    with contextlib.suppress(OSError, RunError, UserError):
        text = json.dumps({"format": FORMAT, "refs": list(places), "entries": brief})
        store.publish(INDEX, text.encode(), secret=True)


def read_run(store: Store, name: str) -> RunRecord:
    """The whole manifest of a finished run.

    Raises:
        RunError: when it cannot be read.
    """
    content = store.published(f"runs/{name}/{MANIFEST}")
    if content is None:
        raise RunError(f"run {name} has no manifest in {store.uri}")
    try:
        return parse(RunRecord, content)
    except Unreadable as error:
        raise RunError(
            f"the manifest of run {name} cannot be read ({error}); run its audit again to write it anew"
        ) from error


def without_whereabouts(data: Mapping[str, Any]) -> dict[str, Any]:
    """The data section of a recipe without where its files happen to lie."""
    described: dict[str, Any] = json.loads(json.dumps(data))
    for source in (described["source"], *(part["source"] for part in described["source"].get("parts", {}).values())):
        for name in whereabouts_of(source["kind"]):
            source.pop(name, None)
    return described


def asks(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """What a recipe (plain JSON) asks for: without where its data lie, and without how its page looks."""
    found = {key: value for key, value in recipe.items() if key not in PRESENTATION}
    return found | ({"data": without_whereabouts(recipe["data"])} if "data" in recipe else {})


def asks_digest(recipe: Mapping[str, Any]) -> str:
    """A digest of what a recipe asks for: runs that differ in titles and galleries alone have the same."""
    return hashlib.sha256(canonical_json(asks(recipe)).encode()).hexdigest()


def run_name(recipe: Mapping[str, Any], scores: str) -> str:
    """The name of a run: of what its recipe asks for, and of the key of its scores."""
    return content_key("run", version=2, spec=asks(recipe), inputs={"scores": scores})[:NAME_LENGTH]


def pins_of(store: Store, refs: Iterable[Ref]) -> dict[str, Pin]:
    """By artifact which attempt it is, and a digest of its files, so that it can be told from another one."""
    return {str(ref): pin_of(manifest) for ref, manifest in sorted(store.artifacts.manifests_of(refs).items(), key=str)}


def pin_of(manifest: ArtifactRecord) -> Pin:
    """Which attempt at an artifact that is, a digest of its files, and one of its facts but for who made it."""
    files = {name: file.sha256 for name, file in manifest.files.items()}
    facts = {name: value for name, value in manifest.facts.items() if name != "worker"}
    return Pin(
        attempt=manifest.attempt,
        files=hashlib.sha256(canonical_json(files).encode()).hexdigest(),
        facts=hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest(),
    )


def findings_of(summary: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a summary that a run's manifest repeats: all but those of single classes."""
    return [dict(row) for row in summary if '"class"' not in row["params"]]


def results_path(table: str, audit: str, run: str, part: int = 0) -> str:
    """Where a run's part of a published table lies, below the store's root; large tables are in several files."""
    return f"results/table={table}/audit={audit}/run={run}/part-{part}.parquet"


def rows_of(entries: Iterable[RunEntry]) -> dict[str, dict[str, Any]]:
    """Each run's row of the table of runs; of those that ask the same of the same data the newest one is current.

    Args:
        entries: all runs of a store, newest first, as `list_runs` has them.
    """
    found: dict[str, dict[str, Any]] = {}
    newest: set[tuple[str, str]] = set()
    for entry in entries:
        said = entry["verdict"] or {"word": "", "sentence": ""}
        found[entry["run"]] = {
            "finished": datetime.fromtimestamp(entry["finished"], tz=UTC),
            "title": entry["title"],
            "data": entry["ledger"]["data"],
            "asks": entry["asks"],
            "scores": entry["scores"],
            "current": _question(entry) not in newest,
            "verdict": said["word"],
            "sentence": said["sentence"],
            "memlib": entry["memlib"],
        }
        newest.add(_question(entry))
    return found


def publish_rows(store: Store, changed: Iterable[RunEntry]) -> None:
    """Writes the rows of runs that were published or taken out, and of those that ask the same of the same data.

    A row makes its run's other tables count.

    Args:
        store: which.
        changed: the runs, as `list_runs` has them or had them.
    """
    questions = {_question(entry) for entry in changed if entry["asks"]}  # else of before there were rows
    entries = list_runs(store).entries
    rows = rows_of(entries)
    with scratch("publish") as folder:
        for entry in entries:
            if _question(entry) in questions:
                write_table(pa.Table.from_pylist([rows[entry["run"]]], schema=RUNS.arrow), RUNS, folder / "runs.parquet")
                store.publish(results_path(RUNS.name, entry["audit"], entry["run"]), folder / "runs.parquet")


def _question(entry: RunEntry) -> tuple[str, str]:
    return entry["asks"], entry["ledger"]["data"]


def run_names(store: Store) -> list[str]:
    """Names of the folders of runs, finished or not."""
    return sorted(name for name in store.names("runs") if NAME.fullmatch(name))


def refs_of(*runs: RunRecord | RunEntry) -> set[Ref]:
    """All artifacts that the manifests of runs, or their entries in the list of runs, name."""
    named: set[str] = set()
    for run in runs:
        named.update([*run.artifacts.values(), *run.computed, *run.reused] if isinstance(run, RunRecord) else run["refs"])
    return {Ref.parse(name) for name in named}
