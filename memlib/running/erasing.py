"""Erasure of a person or an example from a store: everything that holds her rows, and everything computed from them.

Artifacts are deleted as a whole and never rewritten. An artifact holds her if its tables, arrays or texts name her; it is
computed from her if the keys of its inputs lead to such an artifact. Of runs that rest on deleted artifacts, the tables of
aggregates and the manifest are kept, and a record says what was erased. The record of the erasure is written first, so that
one that was interrupted is completed by repeating it.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from memlib.errors import CorruptArtifact, RunError, UserError
from memlib.running.checks import keys_in
from memlib.running.traces import Marks, artifact_names, examples_of, near, rules_in
from memlib.runs.erasures import (
    REMOVED,
    erased_runs,
    erasures,
    is_place,
    mark_erased,
    new_record,
    pseudonym,
    pseudonyms,
    write_record,
)
from memlib.runs.fingerprints import fingerprint_of, without
from memlib.runs.garbage import Garbage, by_artifact, clearing, delete, leftovers
from memlib.runs.index import ENVELOPE, OWN_FILES, SIGNATURE, list_runs, publish_rows, read_run, refs_of
from memlib.runs.pins import AS_READ
from memlib.runs.records import ErasedRunRecord, ErasureRecord, RunRecord
from memlib.runs.requests import at_work
from memlib.runs.vouching import forget_fingerprints
from memlib.sanitize import folded
from memlib.store import MANIFEST, Ref, Store
from memlib.store.permissions import user_folder
from memlib.store.records import ArtifactRecord, sealed

Kind = Literal[
    "rows", "computed", "model", "unfinished", "page", "table", "manifest", "signature", "log", "request", "status", "index",
    "copy", "prefect", "unknown",
]  # fmt: skip
WEIGHTS = ".safetensors"
BASE = "pretrained"  # stage of copies of pretrained models, whose vocabularies may hold her name without any row of hers
AGGREGATES = frozenset({"summary", "curves", "models", "sweep", "audits", "runs"})
"""Published tables without rows of examples; any other table of a run that was computed from her is deleted."""
PLACES = {"results", "report"}  # fields of a run's manifest that hold addresses of the store
FOLDER_KINDS: Mapping[str, Kind] = {
    "runs": "page", "results": "table", "logs": "log", "requests": "request", "status": "status", "index": "index",
}  # fmt: skip
OF_MODELS = ("model", "unfinished")  # kinds that are deleted only on request
DATA_TABLES = ("index.parquet", "splits.parquet", "documents.parquet", AS_READ)  # of data artifacts: ids, groups and digests


MOST_NEAR = 3  # ids that a mistake suggests


@dataclass(frozen=True)
class Asked:
    """The person, or the single example, to erase."""

    name: str  #: id of the person or of the example.
    is_person: bool  #: whether all examples of the person, or of the example's group, are meant.


@dataclass(frozen=True)
class Held:
    """An item of a store that holds an example's rows, or was computed from them.

    Attributes:
        kind: rows: an artifact that names her; computed: an artifact that was computed from one that does; model: the same,
            with weights; unfinished: files that no manifest names, so that their origin is unknown; page, table: published
            files; manifest: a run's manifest that names her; signature: the signature of such a manifest; log, request,
            status, index: files of memlib that name her, or belong to deleted artifacts; copy: a file in the user's cache;
            prefect: rows of Prefect's database; unknown: an item that cannot be searched.
        path: path below the store's root; of a copy and of Prefect's database, the whole path.
        size: size in bytes.
        note: reason why the item cannot be searched, or the number of rows.
    """

    kind: Kind
    path: str
    size: int = 0
    note: str = ""


@dataclass(frozen=True)
class Survey:
    """Everything in a store that concerns a person or an example.

    Attributes:
        items: what was found. Artifacts are in an order in which none precedes one that was computed from it.
        examples: ids of her examples.
        marks: these ids and the id that was asked for.
        fingerprints: digests by which ledgers recognize her examples.
        near: ids in the store's data that are written nearly like the given one, and are not erased with it.
        runs: manifests of the runs that rest on artifacts of `items`, or that name her.
        earlier: earlier erasures of the same id, by path of their records.
    """

    items: Sequence[Held]
    examples: frozenset[str]
    marks: Marks
    fingerprints: frozenset[str]
    near: Sequence[str]
    runs: Sequence[RunRecord]
    earlier: Mapping[str, ErasureRecord]

    @property
    def unknown(self) -> list[Held]:
        """The items of which it cannot be known whether they hold her."""
        return [item for item in self.items if item.kind == "unknown"]

    def with_items(self, more: Sequence[Held]) -> Survey:
        """Return the survey with further items."""
        return replace(self, items=[*self.items, *more])

    def doomed(self, *, models: bool) -> list[Held]:
        """Return the items to delete, with or without models and unfinished work."""
        return [
            item
            for item in self.items
            if item.kind != "unknown" and (models or item.kind not in OF_MODELS or _is_attempt(item))
        ]


def _is_attempt(item: Held) -> bool:
    """Return whether an item is a broken attempt or an incomplete file, which nothing will ever read."""
    return item.kind == "unfinished" and not item.path.startswith(("resume/", "ray/"))


def survey(store: Store, asked: Asked) -> Survey:
    """Find everything in a store that concerns a person or an example; nothing is changed.

    Raises:
        UserError: when nothing in the store concerns her, and everything could be searched.
        RunError: when part of the store is a link, or the record of an erasure cannot be read.
    """
    if links := store.links():
        raise RunError(f"{links[0]} in {store.uri} is a link, so what it holds is unknown; put the file itself in its place")
    found = _Search(store, asked)
    if not found.items and not found.earlier:
        what = "person" if asked.is_person else "example"
        hint = f"; did you mean {' or '.join(map(repr, found.near[:MOST_NEAR]))}?" if found.near else ""
        listed = hint or "; memlib plan lists ids of the data"
        raise UserError(f"nothing in {store.uri} concerns the {what} {asked.name!r}{listed}")
    return found.result


@dataclass
class _Search:
    """A search of a store for a person or an example."""

    store: Store
    asked: Asked
    items: list[Held] = field(default_factory=list)
    runs: list[RunRecord] = field(default_factory=list)

    def __post_init__(self) -> None:
        listed = by_artifact(self.store)
        self._files = {ref: files for ref, files in listed.items() if MANIFEST in files}
        self._manifests = self.store.artifacts.manifests_of(self._files)
        self._every_run, damaged = self._read_runs()
        self.earlier = self._earlier()
        self.near = near(self.asked.name, self._ids)
        self.examples = self._examples()
        self._marks = Marks(self.examples, self.asked.name if self.asked.is_person else None)
        self._fingerprints = self._fingerprints_of()
        self._search_artifacts()
        self._search_runs(damaged)
        self._search_files()
        self._search_copies()
        self._add_recorded()
        if self.items or self.earlier:
            self.items += [Held("unfinished", item.path, item.size) for item in leftovers(self.store)]

    @property
    def result(self) -> Survey:
        """Everything that was found."""
        found = (frozenset(self.examples), self._marks, frozenset(self._fingerprints), self.near, self.runs, self.earlier)
        return Survey(list({item.path: item for item in self.items}.values()), *found)

    def _read_runs(self) -> tuple[list[RunRecord], Mapping[str, str]]:
        found = list_runs(self.store.trusting(None), indexed=False)
        return [read_run(self.store.trusting(None), entry["run"]) for entry in found.entries], found.damaged

    def _earlier(self) -> dict[str, ErasureRecord]:
        known = erasures(self.store)
        subjects = pseudonyms(self.store, self.asked.name) if known else ()
        return {path: record for path, record in known.items() if record.subject in subjects}

    # -- who ------------------------------------------------------------------------------------------

    def _examples(self) -> set[str]:
        """Return the ids of her examples."""
        if not self.asked.is_person:
            wanted = folded(self.asked.name)
            return {self.asked.name, *(name for name in self._ids if folded(name) == wanted)}
        values: list[Any] = [manifest.spec for manifest in self._manifests.values()]
        values += [run.recipe for run in self._every_run]
        values += [content for _, content in _json_files(self.store, "requests")]
        rules = {rule for value in values for rule in rules_in(value)}
        listed: dict[str, str] = {}
        for path in sorted(path for kind, path in rules if kind == "path"):
            listed |= self._listed_in(path)
        return examples_of(
            list(self._data_tables()),
            self.asked.name,
            {pattern for kind, pattern in rules if kind == "pattern"},
            listed,
        )

    @cached_property
    def _ids(self) -> set[str]:
        """Return the ids of all examples and persons in the data of the store, and the folders in ids."""
        columns = [table[name] for table in self._data_tables() for name in {"example_id", "group"} & set(table.column_names)]
        names = {name for column in columns for name in pc.unique(column).drop_null().to_pylist()}
        return names | {folder for name in names for folder in name.split("/")[:-1]}

    def _listed_in(self, path: str) -> dict[str, str]:
        from memlib.data.id_files import said_of_examples

        try:
            return said_of_examples(path, "group", setting="group.path")
        except UserError as error:
            self.items.append(Held("unknown", path, 0, f"this file of groups names persons, but {error}"))
            return {}

    def _data_tables(self) -> Iterator[pa.Table]:
        """Yield ids, groups and digests of the data artifacts; unreadable ones are reported by `_search_artifacts`."""
        for ref, manifest in self._manifests.items():
            for name in DATA_TABLES:
                if name in manifest.files:
                    with contextlib.suppress(CorruptArtifact, pa.ArrowException, OSError, ValueError):
                        file = pq.ParquetFile(self.store.artifacts.local_path(ref, name))
                        wanted = {"example_id", "group", "digest"} & set(file.schema_arrow.names)
                        if "example_id" in wanted:
                            yield file.read(columns=sorted(wanted))

    def _fingerprints_of(self) -> set[str]:
        """Return the digests by which ledgers recognize her examples."""
        digests: set[str] = set()
        wanted = pa.array(sorted(self.examples), pa.string())
        for table in self._data_tables():
            if "digest" in table.column_names:
                mine = table.filter(pc.is_in(table["example_id"], wanted))
                digests.update(mine["digest"].drop_null().to_pylist())
        return set(map(fingerprint_of, digests))

    # -- artifacts ------------------------------------------------------------------------------------

    def _search_artifacts(self) -> None:
        """List artifacts, readers before what they read, so that an interrupted deletion leaves the lineage intact."""
        kinds: dict[Ref, Held | None] = {}
        for ref in self._in_order():
            kinds[ref] = self._judged(ref, kinds)
        for ref in self._files.keys() - self._manifests.keys():
            kinds[ref] = Held("unknown", ref.folder, self._size(ref), "its manifest cannot be read")
        self.items += [item for item in reversed(kinds.values()) if item is not None]

    def _in_order(self) -> list[Ref]:
        """Return the readable artifacts, each after those that it reads."""
        self._by_key = {ref.key: ref for ref in self._manifests}
        order: dict[Ref, None] = {}
        for start in sorted(self._manifests, key=str):
            waiting = [start]
            while waiting:
                ref = waiting[-1]
                missing = [parent for parent in self._parents(ref) if parent not in order and parent not in waiting]
                if missing:
                    waiting += missing[:1]
                else:
                    order[waiting.pop()] = None
        return list(order)

    def _parents(self, ref: Ref) -> list[Ref]:
        return [self._by_key[key] for key in sorted(_reads(self._manifests[ref])) if key in self._by_key]

    def _judged(self, ref: Ref, known: Mapping[Ref, Held | None]) -> Held | None:
        """Return what an artifact has to do with her; None if nothing.

        An artifact that a recorded erasure deleted or kept is hers even if what it was computed from is gone.
        """
        manifest, size = self._manifests[ref], self._size(ref)
        above = [held for parent in self._parents(ref) if (held := known[parent]) is not None]
        recorded = any(str(ref) in (*record.artifacts, *record.kept) for record in self.earlier.values())
        if recorded or any(held.kind != "unknown" for held in above):
            is_model = any(name.endswith(WEIGHTS) for name in manifest.files)
            return Held("model" if is_model else "computed", ref.folder, size)
        try:
            if ref.stage != "pretrained" and artifact_names(
                self.store, ref, self._marks
            ):  # a base model's words are not hers
                return Held("rows", ref.folder, size)
        except Exception as error:  # on damaged or foreign content the readers may raise anything
            return Held("unknown", ref.folder, size, _reason(error))
        if above:
            return Held("unknown", ref.folder, size, f"it was computed from {above[0].path}, which cannot be searched")
        if absent := sorted(_reads(manifest) - self._by_key.keys()):
            return Held("unknown", ref.folder, size, f"it was computed from artifact {absent[0]}, which no longer exists")
        return None

    def _names(self, ref: Ref) -> bool | str:
        """Return whether an artifact names her, or the reason why it cannot be searched."""
        try:
            return ref.stage != BASE and artifact_names(self.store, ref, self._marks)
        except Exception as error:  # on damaged or foreign content the readers may raise anything
            return _reason(error) or type(error).__name__

    def _size(self, ref: Ref) -> int:
        return sum(size for size, _ in self._files[ref].values())

    def _hers(self, ref: Ref) -> bool:
        return ref.folder in self._folders

    # -- runs -----------------------------------------------------------------------------------------

    def _search_runs(self, damaged: Mapping[str, str]) -> None:
        self._folders = {item.path for item in self.items if item.kind != "unknown"}
        listed = {**self.store.listing("runs"), **self.store.listing("results")}
        vouched: set[str] = set()
        for run in self._every_run:
            vouched |= {*run.published, *(f"runs/{run.run}/{name}" for name in OWN_FILES)}
            names_her = self._names_her(run)
            if not names_her and not any(map(self._hers, refs_of(run))):
                continue
            self.runs.append(run)
            self.items += self._published_by(run, listed)
            if names_her:
                kinds: dict[str, Kind] = {MANIFEST: "manifest", SIGNATURE: "signature", ENVELOPE: "signature"}
                paths = {f"runs/{run.run}/{name}": kind for name, kind in kinds.items()}
                self.items += [Held(kind, path, listed[path][0]) for path, kind in paths.items() if path in listed]
        self.items += [Held("unknown", f"runs/{run}/{MANIFEST}", 0, problem) for run, problem in damaged.items()]
        for path in sorted(listed.keys() - vouched - {item.path for item in self.items}):
            if "table=runs/" not in path:
                self.items += self._searched(path, listed[path][0], "page" if path.startswith("runs/") else "table")

    def _names_her(self, run: RunRecord) -> bool:
        """Return whether the manifest of a run names her, or her example's digest."""
        known = {*run.ledger.examples, *(run.ledger.fingerprints or {"smallest": []})["smallest"]}
        return self._marks.in_value(run.model_dump(exclude=PLACES)) or not self._fingerprints.isdisjoint(known)

    def _published_by(self, run: RunRecord, listed: Mapping[str, tuple[int, float]]) -> Iterator[Held]:
        """Yield the published files of a run that may hold rows of hers: pages, tables of units, and what names her."""
        for path in run.published:
            if path not in listed:
                continue
            size, table = listed[path][0], path.split("/")[1].removeprefix("table=")
            if path.startswith("runs/"):
                yield Held("page", path, size)
            elif table not in AGGREGATES:
                yield Held("table", path, size)
            else:
                yield from self._searched(path, size, "table")

    def _searched(self, path: str, size: int, kind: Kind) -> Iterator[Held]:
        """Yield a published file if it names her, or cannot be read."""
        content = self.store.published(path)
        try:
            if content is None:
                raise ValueError("it cannot be read")
            if path.endswith(".parquet"):
                data = pa.BufferReader(content)
                is_hers = self._marks.in_table(lambda: pq.ParquetFile(data))
            else:
                is_hers = self._marks.in_json(content.decode("utf-8"))
        except Exception as error:
            yield Held("unknown", path, size, _reason(error))
            return
        if is_hers:
            yield Held(kind, path, size)

    # -- other files ----------------------------------------------------------------------------------

    def _search_files(self) -> None:
        """List logs of artifacts that are deleted, and logs, requests, status files and the index if they name her."""
        kinds: tuple[tuple[Kind, str], ...] = (
            ("log", "logs"), ("request", "requests"), ("status", "status"), ("index", "index"),
        )  # fmt: skip
        for kind, folder in kinds:
            for path, (size, _) in sorted(self.store.listing(folder).items()):
                if kind == "log" and f"artifacts/{path.rpartition('/')[0].removeprefix('logs/')}" in self._folders:
                    self.items.append(Held(kind, path, size))
                elif kind == "index" and self.runs:
                    self.items.append(Held(kind, path, size))  # it repeats manifests, and is rebuilt
                else:
                    self.items += self._searched(path, size, kind)

    def _search_copies(self) -> None:
        """List the files of the user's cache that name her, or are copies of her runs' pages."""
        with contextlib.suppress(UserError):  # without a home folder there is no cache
            cache = user_folder("cache")
            pages = [cache / "pages" / f"{run.run}.html" for run in self.runs]
            paths = [path for path in pages if path.is_file()]
            for path in (cache / "digests.sqlite", cache / "digests.sqlite-journal", *sorted(cache.glob("defects/*.log"))):
                if path.is_file() and self._marks.in_text(path.read_bytes().decode("utf-8", "replace")):
                    paths.append(path)
            self.items += [Held("copy", str(path), path.stat().st_size) for path in paths]

    def _add_recorded(self) -> None:
        """List what an interrupted erasure has recorded, but not deleted."""
        for record in self.earlier.values():
            for path in record.paths if not record.complete else ():
                kind = FOLDER_KINDS.get(path.split("/")[0], "unfinished")
                if path.rpartition("/")[2] != MANIFEST or kind != "page":
                    self.items += [Held(kind, path, size) for _, (size, _) in self.store.listing(path).items()][:1]


def _reads(manifest: ArtifactRecord) -> set[str]:
    """Return the keys of the artifacts that an artifact was computed from."""
    return {*manifest.reads, *keys_in(manifest.inputs)}


def _reason(error: Exception) -> str:
    """Return why a file cannot be searched, without quoting its content."""
    return str(error) if isinstance(error, RunError) or type(error).__name__ == "UnknownFormat" else type(error).__name__


def _json_files(store: Store, folder: str) -> Iterator[tuple[str, Any]]:
    for path in store.listing(folder):
        with contextlib.suppress(ValueError, RecursionError):
            yield path, json.loads(store.published(path) or b"")


# -- deleting -----------------------------------------------------------------------------------------


def erase(store: Store, asked: Asked, *, models: bool) -> Survey:
    """Delete everything that concerns a person or an example, and return what was found.

    Runs that start in the meantime wait. Records are written first and each manifest is deleted before its files, so that
    nothing that is half deleted is trusted; repeating an interrupted erasure completes it.

    Args:
        models: whether to delete models that were computed from her as well, and unfinished work.

    Raises:
        UserError: when nothing in the store concerns her.
        RunError: when a run is under way, or another process is deleting items of the store.
    """
    with clearing(store):
        if running := at_work(store):
            raise RunError(
                f"run {running[0]} is under way in {store.uri}; erase when it has ended (memlib status {running[0]})"
            )
        found = survey(store, asked)
        doomed = found.doomed(models=models)
        if not doomed and all(record.complete for record in found.earlier.values()):
            return found
        path, record = new_record(), _record(store, asked, found, doomed)
        write_record(store, path, record)
        _mark_runs(store, found, doomed, record.when)
        _redact(store, found)
        for item in sorted(doomed, key=lambda item: bool(_address(item))):  # artifacts last, in the order of the survey
            _delete(store, item)
        write_record(store, path, record.model_copy(update={"complete": True}))
        for earlier, before in found.earlier.items():
            if not before.complete:
                write_record(store, earlier, before.model_copy(update={"complete": True}))
    return found


def _record(store: Store, asked: Asked, found: Survey, doomed: Collection[Held]) -> ErasureRecord:
    gone = [item for item in doomed if item.kind != "copy"]
    before = {digest for record in found.earlier.values() for digest in record.examples}
    return ErasureRecord(
        when=time.time(),
        subject=pseudonym(store, folded(asked.name)),
        examples=sorted(before | {pseudonym(store, folded(name)) for name in found.examples if not is_place(name)}),
        artifacts=sorted(filter(None, map(_address, gone))),
        kept=sorted(filter(None, (_address(item) for item in found.items if item.kind == "model" and item not in gone))),
        paths=sorted(item.path for item in gone if not _address(item)),
    )


def _address(item: Held) -> str:
    """Return the address of an artifact; "" for other items."""
    return item.path.removeprefix("artifacts/") if item.kind in ("rows", "computed", "model") else ""


def _mark_runs(store: Store, found: Survey, doomed: Iterable[Held], when: float) -> None:
    """Record in each run that rests on deleted artifacts what was erased of it."""
    gone = {item.path: item for item in doomed}
    addresses = set(map(_address, gone.values()))
    for run in found.runs:
        files = [path for path in run.published if path in gone]
        named = f"runs/{run.run}/{MANIFEST}" in gone
        artifacts = sorted({str(ref) for ref in refs_of(run)} & addresses)
        mark_erased(store, ErasedRunRecord(run=run.run, when=when, artifacts=artifacts, files=files, redacted=named))


def _redact(store: Store, found: Survey) -> None:
    """Replace her ids in the manifests of runs, which then are no longer the ones that were published or signed."""
    named = {item.path for item in found.items if item.kind == "manifest"}
    for run in found.runs:
        path = f"runs/{run.run}/{MANIFEST}"
        if path in named:
            content = found.marks.without(run.model_dump(exclude=PLACES), REMOVED) | run.model_dump(include=PLACES)
            content["ledger"]["examples"] = [one for one in run.ledger.examples if one not in found.fingerprints]
            content["ledger"]["fingerprints"] = without(run.ledger.fingerprints, found.fingerprints)
            store.publish(path, json.dumps(sealed(content), indent=1).encode())
    forget_fingerprints(store, found.fingerprints)
    erased = erased_runs(store.listing("runs"))
    publish_rows(store, [entry for entry in list_runs(store.trusting(None)).entries if entry["run"] in erased])


def _delete(store: Store, item: Held) -> None:
    """Delete an item of the store, or of the user's cache."""
    if item.kind == "manifest":
        return  # replaced by `_redact`
    if item.kind == "copy":
        Path(item.path).unlink(missing_ok=True)
    elif address := _address(item):
        ref = Ref.parse(address)
        with contextlib.suppress(CorruptArtifact):
            for file in store.artifacts.manifest(ref).files.values():
                store.backend.forget(file)
        store.artifacts.discard(ref)
        delete(store, Garbage("artifact", item.path, item.size))
        store.resume.drop(ref.key)
    else:
        delete(store, Garbage("resume" if item.path.startswith("resume/") else "request", item.path, item.size))


def as_json(found: Survey, *, deleted: bool, models: bool) -> dict[str, Any]:
    """Return a survey, or what was deleted of it, as plain JSON; it names no ids but those that are nearly the same.

    Args:
        deleted: whether its items were deleted.
        models: whether models were meant as well.
    """
    gone = found.doomed(models=models) if deleted else []
    return {
        "items": [{**asdict(item), "deleted": item in gone} for item in found.items],
        "near": list(found.near),
        "runs": [run.run for run in found.runs],
        "earlier": [record.when for record in found.earlier.values()],
    }
