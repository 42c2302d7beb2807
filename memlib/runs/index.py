"""The finished runs of a store: an index, rebuilt where it is missing or stale, and the manifest of each run.

The index holds the fields that listings and garbage collection need, so that ten thousand runs can be listed by reading one
file. Each entry records the size and modification time of a manifest; a manifest that differs from its entry is read again.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from memlib.errors import RunError, Untrusted, UserError
from memlib.runs import NoSuchRun
from memlib.runs.ledger import look_of
from memlib.runs.records import (
    DamagedEntry,
    FindingRecord,
    Fingerprints,
    Headline,
    IndexedRun,
    LedgerEntry,
    RunEntry,
    RunRecord,
    parse_index,
)
from memlib.runs.signatures import trusted_key, unlike_signed
from memlib.sanitize import plain
from memlib.store import MANIFEST, Ref, Store
from memlib.store.records import NAME, Unreadable, parse
from memlib.tables import RUNS, write_table

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

FILES = ("weights", "path")  # keys of files; only the last part of a path is shown
KINDS = ("architecture", "backbone", "model", "kind")
MOST_NAMES = 3


def data_name(recipe: Mapping[str, Any]) -> str:
    """Return a name for the data of a recipe: the kind of source, and the name of its file or data set; "" for a sweep.

    Args:
        recipe: the recipe as plain JSON, which may be of any version.
    """
    data = recipe.get("data")
    source = data.get("source") if isinstance(data, Mapping) else None
    if not isinstance(source, Mapping):
        return ""
    return " ".join(filter(None, (_text(source, "kind"), _file_name(source) or _text(source, "name"))))


def model_name(recipe: Mapping[str, Any]) -> str:
    """Return a name for the model of a recipe: the file of an external model, or else the architecture; "" for a sweep.

    Args:
        recipe: the recipe as plain JSON, which may be of any version.
    """
    names = list(dict.fromkeys(filter(None, map(_model, _external(recipe)))))
    if not names:
        model = recipe.get("model")
        return _model(model) if isinstance(model, Mapping) else ""
    return ", ".join(names[:MOST_NAMES]) + (", ..." if len(names) > MOST_NAMES else "")


def is_given(recipe: Mapping[str, Any]) -> bool:
    """Return whether a recipe names an external model, its outputs or encoders; otherwise it trains models of its own."""
    return any(True for _ in _external(recipe))


def _external(recipe: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the external models, outputs and encoders of a recipe."""
    targets, encoders, checkpoints = recipe.get("targets"), recipe.get("encoders"), recipe.get("checkpoints")
    holders = [recipe, recipe.get("target"), *(targets.values() if isinstance(targets, Mapping) else ())]
    places = [(holder, name) for holder in holders for name in ("trained", "outputs")]
    places += [(pair, side) for pair in (encoders if isinstance(encoders, list) else ()) for side in ("a", "b")]
    found = [holder.get(name) for holder, name in places if isinstance(holder, Mapping)]
    found += checkpoints if isinstance(checkpoints, list) else []
    yield from (one for one in found if isinstance(one, Mapping))


def _model(spec: Mapping[str, Any]) -> str:
    return _file_name(spec) or next(filter(None, (_text(spec, name) for name in KINDS)), "")


def _file_name(spec: Mapping[str, Any]) -> str:
    return PurePath(next(filter(None, (_text(spec, name) for name in FILES)), "")).name


def _text(spec: Mapping[str, Any], name: str) -> str:
    value = spec.get(name)
    return plain(value) if isinstance(value, str) else ""


INDEX = "index/runs.json"
HISTORY = "history.json"  # of the publications of a run after its first one; its manifest is not rewritten
SIGNATURE = "signature.json"  # of a run's manifest
ENVELOPE = "attestation.json"  # another signature of it, which other programs can read
ERASED = "erased.json"  # names what was deleted of a run to erase a person; publishing the run again removes it
OWN_FILES = (MANIFEST, SIGNATURE, ENVELOPE, HISTORY, ERASED)  # files of a run beside those that it has published
FORMAT = 1
SETTLING_SECONDS = 2.0  # a store's clock may tick once a second: manifests written just before the index are read again
BATCH = 500
MOST_ROW_BYTES = 2**20  # of a run's row of the table of runs


@dataclass(frozen=True)
class Runs:
    """The finished runs of a store."""

    entries: Sequence[RunEntry]  #: the readable runs, newest first.
    damaged: Mapping[str, str]  #: reasons why manifests cannot be read, by run.

    def warning(self) -> str:
        """Return one line about the manifests that cannot be read; "" if there are none."""
        if not self.damaged:
            return ""
        name, problem = next(iter(self.damaged.items()))
        others = f" and {len(self.damaged) - 1} more" if len(self.damaged) > 1 else ""
        return f"the manifest of run {name}{others} cannot be read ({problem})"


def list_runs(
    store: Store,
    *,
    indexed: bool = True,
    listing: Mapping[str, tuple[int, float]] | None = None,
    described: bool = False,
) -> Runs:
    """Return all finished runs, and the runs whose manifests cannot be read, or which the store's trusted key has not signed.

    Args:
        indexed: whether to use and update the index; otherwise all manifests are read, and nothing is written.
        listing: the store's listing of "runs", if the caller already has it.
        described: whether all entries must have a subject, intervals and looks; manifests whose entries were written by an
            earlier version are then read again.
    """
    files = store.listing("runs") if listing is None else listing
    key = _key_of(store)
    indexed &= key is None  # which whoever can write to the store can change
    marks = {path.split("/")[1]: facts for path, facts in files.items() if _is_manifest(path)}
    known, written = _read_index(store) if indexed else ({}, 0.0)
    entries: dict[str, RunEntry | DamagedEntry] = {}
    for name, mark in marks.items():
        entry = known.get(name)
        is_current = entry is not None and tuple(entry["mark"]) == mark and mark[1] < written - SETTLING_SECONDS
        if entry is not None and is_current and (not described or "problem" in entry or "subject" in entry):
            entries[name] = entry
    missing = [name for name in marks if name not in entries]
    for start in range(0, len(missing), BATCH):
        batch = missing[start : start + BATCH]
        paths = (MANIFEST,) if key is None else (MANIFEST, SIGNATURE)
        contents = store.published_together([f"runs/{name}/{path}" for name in batch for path in paths])
        for name in batch:
            manifest, signature = (contents.get(f"runs/{name}/{path}") for path in (MANIFEST, SIGNATURE))
            entries[name] = _entry(manifest, name, marks[name], signature, key)
    if indexed and (missing or len(known) != len(entries)):
        _write_index(store, entries)
    whole = [entry for entry in (entries[name] for name in marks) if "problem" not in entry]
    damaged = {name: entry["problem"] for name, entry in sorted(entries.items()) if "problem" in entry}
    return Runs(sorted(whole, key=lambda entry: -entry["finished"]), damaged)


def _is_manifest(path: str) -> bool:
    parts = path.split("/")
    return len(parts) == 3 and parts[2] == MANIFEST


def _entry(
    content: bytes | None,
    name: str,
    mark: tuple[int, float],
    signature: bytes | None = None,
    key: "Ed25519PublicKey | None" = None,
) -> RunEntry | DamagedEntry:
    """Return the index entry of a run, or the problem with its manifest, or with its signature if a key is trusted."""
    if content is None:  # deleted in the meantime, or not a readable file
        return {"problem": "it is not a regular file", "mark": mark}
    try:
        run = parse(RunRecord, content)
    except Unreadable as error:
        return {"problem": str(error), "mark": mark}
    if run.run != name:
        return {"problem": f"it belongs to run {run.run}", "mark": mark}
    if key is not None and (problem := unlike_signed(run, signature, key)):
        return {"problem": f"it {problem}", "mark": mark}
    return _entry_of(run, mark)


def _entry_of(run: RunRecord, mark: tuple[int, float]) -> RunEntry:
    """Return the index entry of a run."""
    look = look_of(run.ledger, run.audit)
    recorded: LedgerEntry = {
        "data": run.ledger.data,
        "examples": run.ledger.examples,
        "look": run.ledger.look,
        "planned": run.ledger.planned,
        "number": look.number,
        "is_paid_for": look.is_paid_for,
    }
    if run.ledger.previous:
        recorded["previous"] = run.ledger.previous
    entry: RunEntry = {
        "run": run.run,
        "audit": run.audit,
        "title": run.title,
        "finished": run.finished,
        "verdict": None if run.verdict is None else {"word": run.verdict.word, "sentence": run.verdict.sentence},
        "subject": {"data": data_name(run.recipe), "model": model_name(run.recipe)},
        "findings": [_headline(run.findings[0]), *map(_headline, _strongest(run))],
        "ledger": recorded,
        "cells": run.cells,
        "scores": run.scores,
        "asks": run.asks,
        "memlib": str(run.software.get("memlib", "")),
        "refs": sorted(map(str, refs_of(run))),
        "mark": mark,
    }
    if run.ledger.fingerprints is not None:
        entry["fingerprints"] = run.ledger.fingerprints
    return entry


def _headline(row: FindingRecord) -> Headline:
    return {
        "metric": row.metric,
        "params": row.params,
        "value": row.value,
        "p_value": row.p_value,
        "verdict": row.verdict,
        "role": row.role,
        "ci_low": row.ci_low,
        "ci_high": row.ci_high,
        "family": row.family,
        "p_adjusted": row.p_adjusted,
        "alpha": row.alpha,
    }


def _strongest(run: RunRecord) -> list[FindingRecord]:
    """Return the test with the smallest adjusted p-value of each family; none of a sweep, whose cells are runs."""
    strongest: dict[str, FindingRecord] = {}
    for row in run.findings if not run.cells else ():
        if row.family is not None and row.p_adjusted is not None:
            best = strongest.setdefault(row.family, row).p_adjusted
            if best is not None and row.p_adjusted < best:
                strongest[row.family] = row
    return list(strongest.values())


def _read_index(store: Store) -> tuple[dict[str, RunEntry | DamagedEntry], float]:
    """Return the index entries by run, and when the index was written; no entries if it is missing or of another format."""
    written = next((when for path, (_, when) in store.listing("index").items() if path == INDEX), 0.0)
    content = store.published(INDEX) if written else None
    with contextlib.suppress(Unreadable, IndexError):
        index = parse_index(content or b"")
        if index["format"] == FORMAT:
            refs, sets = index["refs"], index.get("fingerprints", [])
            entries: dict[str, RunEntry | DamagedEntry] = {}
            for name, entry in index["entries"].items():
                if "problem" in entry:
                    entries[name] = entry
                else:
                    shared: dict[str, Any] = {"refs": [refs[place] for place in entry["refs"]]}
                    if "fingerprints" in entry:
                        shared["fingerprints"] = sets[entry["fingerprints"]]
                    entries[name] = cast("RunEntry", {**entry, **shared})
            return entries, written
    return {}, 0.0


def _write_index(store: Store, entries: Mapping[str, RunEntry | DamagedEntry]) -> None:
    """Write the index; ignore failures, as in a read-only store, because without an index listings are merely slower."""
    places: dict[str, int] = {}
    sets: dict[tuple[int, str], int] = {}  # of fingerprints, by a key that is cheap to compute
    shared: list[Fingerprints] = []
    brief: dict[str, IndexedRun | DamagedEntry] = {}
    for name, entry in entries.items():
        if "problem" in entry:
            brief[name] = entry
            continue
        stored: dict[str, Any] = {"refs": [places.setdefault(ref, len(places)) for ref in entry["refs"]]}
        if (found := entry.get("fingerprints")) is not None:
            key = (found["count"], "".join(found["smallest"]))
            stored["fingerprints"] = sets.setdefault(key, len(sets))
            if len(shared) < len(sets):
                shared.append(found)
        brief[name] = cast("IndexedRun", {**entry, **stored})
    with contextlib.suppress(OSError, RunError, UserError):
        text = json.dumps({"format": FORMAT, "refs": list(places), "fingerprints": shared, "entries": brief})
        store.publish(INDEX, text.encode(), secret=True)


def cells_of(store: Store, run: RunRecord) -> dict[str, RunRecord]:
    """Return the manifests of a sweep's completed cells, by cell; missing and unreadable ones are left out.

    Raises:
        Untrusted: as `read_run`.
    """
    cells = {}
    for cell, name in run.cells.items():
        if name is not None:
            try:
                cells[cell] = read_run(store, name)
            except Untrusted:
                raise
            except RunError:
                continue
    return cells


def measured_at(store: Store, run: RunRecord) -> float:
    """Return the time at which the numbers of a run were computed, in seconds since 1970; of cells, that of the oldest.

    A run is published again when its page changes; its numbers are as old as its scores. Without their manifest, the first
    publication counts.
    """
    cells = [measured_at(store, cell) for cell in cells_of(store, run).values()]
    if cells:
        return min(cells)
    made = store.artifacts.manifests_of([] if run.scores is None else [Ref.parse(run.scores)])
    times = [manifest.finished for manifest in made.values() if manifest.finished is not None]
    return min(times or [run.finished, *(one.started for one in run.history)])


def _key_of(store: Store) -> "Ed25519PublicKey | None":
    """Return the public key that must have signed the runs of a store; None if no key is trusted."""
    return None if store.trust is None else trusted_key(store.trust, store.root if store.is_local else None)


def read_run(store: Store, name: str) -> RunRecord:
    """Return the whole manifest of a finished run.

    Raises:
        Untrusted: when the store's trusted key has not signed the run. Who publishes reads as `Store.trusting(None)`.
        RunError: when the manifest is missing or cannot be read.
    """
    content = store.published(f"runs/{name}/{MANIFEST}")
    if content is None:
        raise RunError(f"run {name} has no manifest in {store.uri}; run its audit again")
    try:
        run = parse(RunRecord, content)
    except Unreadable as error:
        raise RunError(f"the manifest of run {name} cannot be read ({error}); run its audit again to rewrite it") from error
    key = _key_of(store)
    if key is not None and (problem := unlike_signed(run, store.published(f"runs/{name}/{SIGNATURE}"), key)):
        raise Untrusted(f"run {name} {problem} (trusted: {store.trust}); see memlib verify {name} --trust {store.trust}")
    return run


def find_run(store: Store, prefix: str) -> RunRecord:
    """Read the manifest of the only finished run whose name starts with a prefix; see `read_run`.

    Raises:
        Untrusted: when the store's trusted key has not signed the run.
        NoSuchRun: when no name, or more than one, starts with it.
        RunError: when the manifest cannot be read.
    """
    return read_run(store, only_name(store, prefix, run_names(store)))


def only_name(store: Store, prefix: str, names: Iterable[str]) -> str:
    """Return the only name of a run that starts with a prefix.

    Raises:
        NoSuchRun: when no name, or more than one, starts with it.
    """
    matches = list(dict.fromkeys(name for name in names if name.startswith(prefix)))
    if len(matches) != 1:
        count = "no run id" if not matches else f"{len(matches)} run ids"
        message = f"{count} in {store.uri} begin{'s' if len(matches) < 2 else ''} with {prefix!r}; see memlib runs"
        raise NoSuchRun(message, prefix)
    return matches[0]


def page_path(run: RunRecord) -> str:
    """Return the path of a run's page below the root of its store, wherever the store is now."""
    return f"runs/{run.run}/{run.report.rpartition('/')[2]}"


def findings_of(summary: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the summary rows that a run's manifest repeats: all except those of single classes."""
    return [dict(row) for row in summary if '"class"' not in row["params"]]


def results_path(table: str, audit: str, run: str, part: int = 0) -> str:
    """Return the path of one part of a run's published table below the store's root; large tables have several parts."""
    return f"results/table={table}/audit={audit}/run={run}/part-{part}.parquet"


def rows_of(entries: Iterable[RunEntry]) -> dict[str, dict[str, Any]]:
    """Return each run's row of the table of runs; among runs with the same recipe and data, the newest is current.

    Args:
        entries: all runs of a store, newest first, as `list_runs` returns them.
    """
    rows: dict[str, dict[str, Any]] = {}
    newest: set[tuple[str, str]] = set()
    for entry in entries:
        verdict = entry["verdict"] or {"word": "", "sentence": ""}
        rows[entry["run"]] = {
            "finished": datetime.fromtimestamp(entry["finished"], tz=UTC),
            "title": entry["title"],
            "data": entry["ledger"]["data"],
            "asks": entry["asks"],
            "scores": entry["scores"],
            "current": _question(entry) not in newest,
            "verdict": verdict["word"],
            "sentence": verdict["sentence"],
            "memlib": entry["memlib"],
        }
        newest.add(_question(entry))
    return rows


def publish_row(store: Store, name: str) -> None:
    """Write the row of a run that was just published, and the rows of all runs with the same recipe and data.

    The store's listing need not show the run yet, and other drivers may publish it as well: the last row that is written is
    that of the manifest.
    """
    store, written = store.trusting(None), None
    while (run := read_run(store, name)).digest != written:
        entry, written = _entry_of(run, (0, 0.0)), run.digest
        _publish_rows(store, [entry], [entry, *(one for one in list_runs(store).entries if one["run"] != name)])


def fits_row(metadata: pq.FileMetaData) -> bool:
    """Return whether a file may be the one with a run's row: one row, and not much to decode."""
    sizes = (metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    return bool(metadata.num_rows == 1 and sum(sizes) <= MOST_ROW_BYTES)


def has_row(store: Store, run: RunRecord) -> bool:
    """Return whether the row of a run is there and as old as its manifest; a run that was killed may have left it behind."""
    content = store.published(results_path(RUNS.name, run.audit, run.run))
    if content is None:
        return False
    try:
        file = pq.ParquetFile(pa.BufferReader(content))
        if not fits_row(file.metadata):
            return False
        (finished,) = file.read(["finished"], use_threads=False)["finished"].to_pylist()
    except (pa.ArrowException, KeyError, OSError, ValueError):
        return False
    return bool(finished == datetime.fromtimestamp(run.finished, tz=UTC))


def publish_rows(store: Store, changed: Iterable[RunEntry]) -> None:
    """Rewrite the rows of runs that were changed or deleted, and of all runs with the same recipe and data.

    Args:
        changed: entries of the changed runs, as `list_runs` returned them.
    """
    _publish_rows(store, changed, list_runs(store.trusting(None)).entries)


def _publish_rows(store: Store, changed: Iterable[RunEntry], entries: Sequence[RunEntry]) -> None:
    """Rewrite rows; a run's other tables are counted only once its row exists.

    Args:
        changed: entries of the changed runs.
        entries: all runs of the store, newest first.
    """
    questions = {_question(entry) for entry in changed if entry["asks"]}  # runs without `asks` predate the table of runs
    rows = rows_of(entries)
    for entry in entries:
        if _question(entry) in questions:
            store.publish(results_path(RUNS.name, entry["audit"], entry["run"]), row_bytes(rows[entry["run"]]))


def row_bytes(row: Mapping[str, Any]) -> bytes:
    """Return the content of the file with a run's row of the table of runs."""
    written = pa.BufferOutputStream()
    write_table(pa.Table.from_pylist([row], schema=RUNS.arrow), RUNS, written)
    return bytes(written.getvalue().to_pybytes())


def _question(entry: RunEntry) -> tuple[str, str]:
    return entry["asks"], entry["ledger"]["data"]


def run_names(store: Store) -> list[str]:
    """Return the names of all run folders, finished or not."""
    return sorted(name for name in store.names("runs") if NAME.fullmatch(name))


def refs_of(*runs: RunRecord | RunEntry) -> set[Ref]:
    """Return all artifacts that the manifests or index entries of runs name."""
    named: set[str] = set()
    for run in runs:
        named.update([*run.artifacts.values(), *run.computed, *run.reused] if isinstance(run, RunRecord) else run["refs"])
    return {Ref.parse(name) for name in named}
