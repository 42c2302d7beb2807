"""The runs that belong to a dossier: those on one data set, on one model, or named by id."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from memlib.audits import AUDITS, audit_of
from memlib.audits.cells import CellsSpec
from memlib.audits.dossier.recipe import SubjectSpec
from memlib.audits.outcomes import models_of
from memlib.data.outside import OF_SOURCES, read_beside_data
from memlib.errors import UserError
from memlib.identity import flat
from memlib.runs.index import BATCH, cells_of, find_run, read_run, refs_of, rows_of
from memlib.runs.records import RunEntry, RunRecord
from memlib.specs import changed_content
from memlib.specs.asks import asks_digest
from memlib.store import MANIFEST, Ref, Store

SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class AuditedModels:
    """The models of a run.

    Attributes:
        trained: number of artifacts of models that memlib trained for the run.
        own: sha256 of each file of weights that memlib wrote.
        external: sha256 of each file from which an external model or supplied outputs came.
    """

    trained: int
    own: tuple[str, ...] = ()
    external: tuple[str, ...] = ()

    @property
    def digests(self) -> tuple[str, ...]:
        """The digests of external files, then those of files that memlib wrote."""
        return (*self.external, *self.own)


def runs_of(store: Store, subject: SubjectSpec, listed: Sequence[RunEntry]) -> list[RunRecord]:
    """Return the runs of a dossier by data, model or id, in the order of the audits; cells take the place of their sweep.

    Args:
        store: the store.
        subject: the subject of the dossier.
        listed: all runs of the store, as `list_runs` returns them.

    Raises:
        UserError: if no run is about the data or the model, or no run or more than one has an id.
    """
    entries = [entry for entry in listed if not _compares(entry["audit"])]
    current = rows_of(entries)
    newest = [entry for entry in entries if current[entry["run"]]["current"]]
    wanted = {run.run: run for name in subject.runs for run in _single(store, find_run(store, name))}
    if subject.data:
        on_data = [entry["run"] for entry in newest if entry["ledger"]["data"].startswith(subject.data)]
        wanted |= _read(store, on_data, f"data {subject.data!r}")
    if subject.model:
        naming = _naming(store, newest, subject.model)
        on_model = [entry["run"] for entry in newest if refs_of(entry) & naming and _is_about(store, entry, subject.model)]
        wanted |= _read(store, on_model, f"model {subject.model!r}")
    order = {AUDITS[name].field: place for place, name in enumerate(AUDITS)}
    return sorted(wanted.values(), key=lambda run: (order[run.audit], run.finished))


def failed_in(store: Store, subject: SubjectSpec, listed: Sequence[RunEntry], runs: Sequence[RunRecord]) -> dict[str, str]:
    """Return the problems of cells that failed or cannot be read, by name of run and cell.

    Args:
        store: the store.
        subject: the subject of the dossier.
        listed: all runs of the store, as `list_runs` returns them.
        runs: the runs of the dossier. A failed cell of a run that it does not name belongs to it if its recipe states the
            same data as another cell of that run, which does, and no later run of the dossier asks the same.
    """
    found: dict[str, str] = {}
    members = {run.run for run in runs}
    named = {run.run: run for run in (find_run(store, name) for name in subject.runs) if _compares(run.audit)}
    for run in named.values():
        found |= _problems(run, run.cells.keys() - cells_of(store, run).keys())
    for entry in listed if subject.data or subject.model else ():
        ended = set(entry["cells"].values())
        if entry["run"] not in named and _compares(entry["audit"]) and None in ended and ended & members:
            run = read_run(store, entry["run"])
            later = {one.asks for one in runs if one.finished > run.finished}
            found |= _problems(run, _beside(run, members, later))
    return dict(sorted(found.items()))


def _problems(run: RunRecord, cells: Iterable[str]) -> dict[str, str]:
    return {f"{run.title}: {cell}": run.problems.get(cell, "its manifest is missing or cannot be read") for cell in cells}


def _beside(run: RunRecord, members: Set[str], later: Set[str]) -> list[str]:
    """Return the failed cells of a run whose data are those of a member, or unknown, unless a later member asks the same."""
    try:
        recipe = AUDITS[audit_of(run.audit)].recipe.model_validate(run.recipe)
        cells = recipe.changes() if isinstance(recipe, CellsSpec) else []
    except ValueError:  # written by another version
        cells = []
    stated = {name: changed_content(base, change) for name, base, change in cells if not isinstance(base, str)}
    data = [stated[cell].get("data") for cell, name in run.cells.items() if name in members and cell in stated]
    failed = [cell for cell, name in run.cells.items() if name is None]
    return [
        one for one in failed if one not in stated or (stated[one].get("data") in data and _asks(stated[one]) not in later)
    ]


def _asks(content: Mapping[str, Any]) -> str:
    """Return the digest of what a cell asks; "" if its recipe is not valid."""
    audit = AUDITS.get(audit_of(str(content.get("audit"))))
    try:
        spec = audit and audit.schema(content).model_validate({key: content[key] for key in content if key != "resources"})
    except ValueError:
        return ""
    return asks_digest(spec.model_dump(mode="json")) if spec else ""


def _compares(audit: str) -> bool:
    """Return whether runs of an audit compare or join other runs."""
    return AUDITS[audit_of(audit)].has_cells


def _single(store: Store, run: RunRecord) -> list[RunRecord]:
    return list(cells_of(store, run).values()) if _compares(run.audit) else [run]


def _read(store: Store, names: Sequence[str], subject: str) -> dict[str, RunRecord]:
    if not names:
        raise UserError(
            f"no run in {store.uri} is about {subject}; memlib index lists the digests of data, and sha256sum prints that of "
            "a file of weights or outputs"
        )
    return {name: read_run(store, name) for name in names}


def _naming(store: Store, entries: Sequence[RunEntry], digest: str) -> set[Ref]:
    """Return the artifacts whose manifests contain a digest anywhere; of ten thousand runs, only theirs are parsed."""
    places = {f"{ref.folder}/{MANIFEST}": ref for ref in refs_of(*entries)}
    paths, named = list(places), set()
    for start in range(0, len(paths), BATCH):
        contents = store.published_together(paths[start : start + BATCH])
        named |= {places[path] for path, content in contents.items() if digest.encode() in content}
    return named


def _is_about(store: Store, entry: RunEntry, digest: str) -> bool:
    return any(one.startswith(digest) for one in models_in(store, read_run(store, entry["run"])).digests)


def models_in(store: Store, run: RunRecord) -> AuditedModels:
    """Return the models of a run, as the manifests of its artifacts record them."""
    trained, own, external = models_of(run), set[str](), set[str]()
    for ref, manifest in store.artifacts.manifests_of(refs_of(run)).items():
        if str(ref) in trained:
            own |= {file.sha256 for name, file in manifest.files.items() if name.endswith(".safetensors")}
        external.update(_of_external(manifest.inputs))
    return AuditedModels(len(trained), tuple(sorted(own)), tuple(sorted(external)))


def _of_external(inputs: Mapping[str, Any]) -> Iterator[str]:
    """Yield the digests of external models and of supplied outputs among the inputs of an artifact.

    Models are described by lists in JSON; so are joined data sources, which are left out.
    """
    for name, value in inputs.items():
        if name in OF_SOURCES:
            continue
        if isinstance(value, str) and (name == "outputs" or value.startswith("[")):
            yield from SHA256.findall(value)
        elif isinstance(value, list) and name == "outputs":
            yield from (one for one in value if isinstance(one, str) and SHA256.fullmatch(one))
        elif isinstance(value, Mapping):
            yield from _of_external(value)


def further_looks(store: Store, listed: Sequence[RunEntry], runs: Sequence[RunRecord]) -> int:
    """Return the number of further tests of the runs' data among the listed runs, or in the ledgers of the runs."""
    data = {run.ledger.data for run in runs} - {""}
    asked = {(run.asks, read_beside_data(store, refs_of(run))) for run in runs}
    own = {run.ledger.look or run.run for run in runs} | {run.run for run in runs}
    looks = {one.look or one.run for run in runs for one in run.ledger.earlier if one.p_value is not None}
    for entry in listed:
        if entry["ledger"]["data"] not in data or all(one["p_value"] is None for one in entry["findings"]):
            continue
        if entry["asks"] not in dict(asked) or (entry["asks"], read_beside_data(store, refs_of(entry))) not in asked:
            looks.add(entry["ledger"].get("look") or entry["run"])
    return len(looks - own)


def persons_in(store: Store, runs: Sequence[RunRecord]) -> dict[str, str]:
    """Return the group (person) of each example by id, from the splits of the runs."""
    from memlib.data.splits import SPLITS_FILE
    from memlib.tables import read_table

    groups: dict[str, str] = {}
    for ref in split_refs(runs):
        table = read_table(store.artifacts.local_path(ref, SPLITS_FILE), ["example_id", "group"])
        groups |= {row["example_id"]: row["group"] for row in table.to_pylist() if row["group"] is not None}
    return groups


def split_refs(runs: Sequence[RunRecord]) -> list[Ref]:
    """Return the artifacts with the splits of the runs, each once."""
    return [Ref.parse(ref) for ref in dict.fromkeys(run.artifacts["splits"] for run in runs if "splits" in run.artifacts)]


def seeds_in(recipe: Mapping[str, Any]) -> str:
    """Return the seeds that a recipe states, as text."""
    return ", ".join(f"{name}={json.dumps(value)}" for name, value in flat(recipe) if name.rpartition(".")[2] == "seed")
