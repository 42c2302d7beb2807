"""The runs that belong to a dossier: those on one data set, on one model, or named by id."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memlib.audits import AUDITS, audit_of
from memlib.audits.cells import CellsSpec
from memlib.audits.dossier.recipe import SubjectSpec
from memlib.audits.outcomes import models_of
from memlib.data.read_beside import OF_SOURCES, read_beside_data
from memlib.errors import UserError
from memlib.identity import flat
from memlib.runs.index import BATCH, Runs, cells_of, data_name, find_run, model_name, read_run, refs_of, rows_of
from memlib.runs.ledger import Past, Same
from memlib.runs.records import RunEntry, RunRecord
from memlib.runs.vouching import past_of
from memlib.specs import changed_content
from memlib.specs.question import asks_digest, without_whereabouts
from memlib.store import MANIFEST, Ref, Store

SHA256 = re.compile(r"[0-9a-f]{64}")
DIGITS = 12  # digits of digests in sentences


@dataclass(frozen=True)
class AuditedModels:
    """The models of a run."""

    trained: int  #: number of artifacts of models that memlib trained for the run.
    own: tuple[str, ...] = ()  #: sha256 of each file of weights that memlib wrote.
    external: tuple[str, ...] = ()  #: sha256 of each file from which an external model or supplied outputs came.
    wholes: frozenset[str] = frozenset()  #: digest of each model among these, over all of its files.

    def examined(self, digest: str) -> bool:
        """Return whether a model that was given has this digest, see `model_digest`, or a file with it."""
        return digest in self.wholes or digest in self.external

    @property
    def digests(self) -> tuple[str, ...]:
        """The digests of external files, then those of files that memlib wrote."""
        return (*self.external, *self.own)


@dataclass(frozen=True)
class Examined:
    """The model that an audit was given, or the models that it trained on a data set."""

    key: str  #: equal for audits that examined the same.
    name: str  #: its name in a sentence.
    is_given: bool  #: whether it is a model that was given.


def examined(runs: Sequence[RunRecord], models: Sequence[AuditedModels]) -> list[Examined]:
    """Return what each of several runs examined.

    Runs examined the same model if one of them read all files of a model that the other one read, too.
    """
    given = sorted({one.external for one in models if one.external}, key=len)
    found = []
    for run, of_run in zip(runs, models, strict=True):
        if not of_run.external:
            name = data_name(run.recipe) or "these data"
            data = f" (data {run.ledger.data[:DIGITS]})" if run.ledger.data else ""
            found.append(
                Examined(f"data {run.ledger.data}", f"models that the audits trained on {name}{data}", is_given=False)
            )
            continue
        # the smallest set of files that a run read: another one may have read further files of the same model
        least = next(one for one in given if set(one) <= set(of_run.external))
        digest = model_digest(least)
        name = " ".join(filter(None, ("the model", model_name(run.recipe))))
        found.append(Examined(digest, f"{name} (sha256 {digest[:DIGITS]})", is_given=True))
    return found


def model_digest(files: Iterable[str]) -> str:
    """Return one digest (sha256) of a model from those of its files; of a single file, that file's.

    The names of the files do not count, so that a copy of a folder has the same digest.
    """
    digests = sorted(set(files))
    return digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()


def runs_of(store: Store, subject: SubjectSpec, listed: Sequence[RunEntry]) -> list[RunRecord]:
    """Return the runs of a dossier by data, model or id, in the order of the audits; cells take the place of their sweep.

    Args:
        listed: all runs of the store, newest first.

    Raises:
        UserError: if no run is about the data or the model, or no run or more than one has an id.
    """
    order = {AUDITS[name].field: place for place, name in enumerate(AUDITS)}
    current = rows_of(listed)
    newest = [
        one for one in listed if one["audit"] in order and not _compares(one["audit"]) and current[one["run"]]["current"]
    ]
    wanted = {run.run: run for name in subject.runs for run in _single(store, find_run(store, name))}
    if subject.data:
        on_data = [entry["run"] for entry in newest if entry["ledger"]["data"].startswith(subject.data)]
        wanted |= _read(store, on_data, f"data {subject.data!r}")
    if subject.model:
        named = naming(store, newest, [subject.model])
        on_model = [entry["run"] for entry in newest if refs_of(entry) & named and _is_about(store, entry, subject.model)]
        wanted |= _read(store, on_model, f"model {subject.model!r}")
    return sorted((run for run in wanted.values() if run.audit in order), key=lambda run: (order[run.audit], run.finished))


def failed_in(
    store: Store, subject: SubjectSpec, listed: Runs, members: Sequence[RunRecord], asks: str
) -> list[tuple[str, str]]:
    """Return the titles and problems of cells that failed, and of runs that cannot be read, among the runs of a dossier.

    To a dossier by data or model belong the failed cells of any run whose recipe states the data of a member, as far as is
    known, unless a member answers the same question. Runs and recipes that cannot be read may be about any data.

    Args:
        asks: digest of what the dossier asks, whose earlier publications are left out.
    """
    named = {find_run(store, name).run for name in subject.runs}
    is_wide, current = bool(subject.data or subject.model), rows_of(listed.entries)
    data = {entry["run"]: entry["ledger"]["data"] for entry in listed.entries}
    told = {*data, *(listed.damaged if is_wide else ())}
    known = [(_Stated.by(run), run.ledger.data) for run in members]
    found = [(f"run {run}", f"its manifest cannot be read ({problem})") for run, problem in listed.damaged.items() if is_wide]
    for entry in listed.entries:
        name, lost = entry["run"], [cell for cell, run in entry["cells"].items() if run not in told]
        is_meant = name in named or (is_wide and entry["ledger"]["data"].startswith(subject.data))
        if audit_of(entry["audit"]) not in AUDITS and is_meant:
            found.append((f"run {name}", f"this version of memlib has no audit {entry['audit']}"))
        if not lost or entry["asks"] == asks or not (name in named or (is_wide and current[name]["current"])):
            continue
        run = read_run(store, name)
        if name not in named:
            cells = _cells(run)
            beside = [(one, data[other]) for cell, other in run.cells.items() if other in data and (one := cells.get(cell))]
            lost = [cell for cell in lost if _belongs(cells.get(cell), known, beside, subject.data)]
        others = {title for title, _ in found}
        for cell in lost:
            title = f"{run.title}: {cell}"
            problem = run.problems.get(cell, "its manifest is missing or cannot be read")
            found.append((f"{title} (run {name})" if title in others else title, problem))
    return found


@dataclass(frozen=True)
class _Stated:
    """The question and the data that a recipe states."""

    asks: str  #: digest of its question.
    data: Mapping[str, Any]  #: its data section.
    described: Mapping[str, Any]  #: the same without locations.

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> _Stated | None:
        """Read a recipe's content; None if it is not valid."""
        audit = AUDITS.get(audit_of(str(content.get("audit"))))
        if audit is None:
            return None
        try:
            stated = {key: value for key, value in content.items() if key != "resources"}
            recipe = audit.schema(content).model_validate(stated).model_dump(mode="json")
            return cls(asks_digest(recipe), recipe["data"], without_whereabouts(recipe["data"]))
        except (ValueError, TypeError, KeyError):  # written by another version, or not by memlib
            return None

    @classmethod
    def by(cls, run: RunRecord) -> _Stated | None:
        """Read the recipe of a finished run, which may be of another version."""
        try:
            return cls(run.asks, run.recipe["data"], without_whereabouts(run.recipe["data"]))
        except (ValueError, TypeError, KeyError):
            return None


def _cells(run: RunRecord) -> dict[str, _Stated | None]:
    """Return what the recipes of a run's cells state, by name; cells are missing if the run's recipe is not valid."""
    try:
        recipe = AUDITS[audit_of(run.audit)].schema(run.recipe).model_validate(run.recipe)
        cells = recipe.changes() if isinstance(recipe, CellsSpec) else []
        return {name: _Stated.of(changed_content(base, change)) for name, base, change in cells if not isinstance(base, str)}
    except (ValueError, TypeError, KeyError):
        return {}


def _belongs(
    cell: _Stated | None, members: Sequence[tuple[_Stated | None, str]], beside: Sequence[tuple[_Stated, str]], subject: str
) -> bool:
    """Return whether a failed cell belongs to a dossier.

    Args:
        cell: what the cell states; None if that is unknown.
        members: what each member states, and the digest of its data.
        beside: the same of the completed cells of the same run.
        subject: the beginning of the digest of the dossier's data; "" for a dossier by model.
    """
    known = [(one, data) for one, data in members if one is not None]
    if cell is None or len(known) < len(members):
        return True
    there = {data for one, data in (*known, *beside) if _agree(one.data, cell.data)}  # what was found where the cell looked
    answers = {data for one, data in known if one.asks == cell.asks}
    if answers and (there == answers or any(one.startswith(subject) and (one in there or not there) for one in answers)):
        return False
    return any(data in there if there else _agree(one.described, cell.described) for one, data in known)


def _agree(one: Any, other: Any) -> bool:
    """Return whether two contents are equal as far as both state something; versions of memlib have different keys."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return all(_agree(one[key], other[key]) for key in one.keys() & other.keys())
    return bool(one == other)


def _compares(audit: str) -> bool:
    """Return whether runs of an audit compare or join other runs."""
    return audit_of(audit) in AUDITS and AUDITS[audit_of(audit)].has_cells


def _single(store: Store, run: RunRecord) -> list[RunRecord]:
    return list(cells_of(store, run).values()) if _compares(run.audit) else [run]


def _read(store: Store, names: Sequence[str], subject: str) -> dict[str, RunRecord]:
    if not names:
        raise UserError(
            f"no run in {store.uri} is about {subject}; memlib index lists the digests of data, and sha256sum prints that of "
            "a file of weights or outputs"
        )
    return {name: read_run(store, name) for name in names}


def naming(store: Store, entries: Sequence[RunEntry], digests: Collection[str]) -> set[Ref]:
    """Return the artifacts whose manifests contain a digest anywhere; of ten thousand runs, only theirs are parsed."""
    places = {f"{ref.folder}/{MANIFEST}": ref for ref in refs_of(*entries)}
    paths, named = list(places), set()
    for start in range(0, len(paths), BATCH):
        contents = store.published_together(paths[start : start + BATCH])
        named |= {places[path] for path, content in contents.items() if any(one.encode() in content for one in digests)}
    return named


def _is_about(store: Store, entry: RunEntry, digest: str) -> bool:
    return any(one.startswith(digest) for one in models_in(store, read_run(store, entry["run"])).digests)


def models_in(store: Store, run: RunRecord) -> AuditedModels:
    """Return the models of a run, as the manifests of its artifacts record them."""
    trained, own, external, wholes = models_of(run), set[str](), set[str](), set[str]()
    for ref, manifest in store.artifacts.manifests_of(refs_of(run)).items():
        if str(ref) in trained:
            own |= {file.sha256 for name, file in manifest.files.items() if name.endswith(".safetensors")}
        described = list(_of_external(manifest.inputs))
        external.update(digest for text in described for digest in SHA256.findall(text))
        wholes.update(model_digest(files) for text in described for files in _models_in(text))
    return AuditedModels(len(trained), tuple(sorted(own)), tuple(sorted(external)), frozenset(wholes))


def runs_of_model(store: Store, listed: Sequence[RunEntry], digest: str, files: Collection[str]) -> list[RunRecord]:
    """Return the runs that examined a model, newest first, by its digest and those of its files."""
    known = [one for one in listed if one["audit"] in _orders() and not _compares(one["audit"])]
    named = naming(store, known, files)
    near = [read_run(store, one["run"]) for one in known if refs_of(one) & named]
    return [run for run in near if models_in(store, run).examined(digest)]


def _orders() -> set[str]:
    return {audit.field for audit in AUDITS.values()}


def _models_in(text: str) -> Iterator[list[str]]:
    """Yield the digests of the files of each model in a description: a list of digests, or of pairs of name and digest."""
    try:
        value = json.loads(text)
    except ValueError:  # a digest alone, or a description with marks at its end
        value, _ = json.JSONDecoder().raw_decode(text) if text.startswith("[") else (text, 0)
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if not isinstance(one, list):
            continue
        digests = [part[-1] if isinstance(part, list) and len(part) == 2 else part for part in one]
        if one and all(isinstance(digest, str) and SHA256.fullmatch(digest) for digest in digests):
            yield digests
        else:
            waiting += one


def _of_external(inputs: Mapping[str, Any]) -> Iterator[str]:
    """Yield the descriptions of external models and of supplied outputs among the inputs of an artifact.

    Models are described by lists in JSON; so are joined data sources, which are left out.
    """
    for name, value in inputs.items():
        if name in OF_SOURCES:
            continue
        if isinstance(value, str) and (name == "outputs" or value.startswith("[")):
            yield value
        elif isinstance(value, list) and name == "outputs":
            yield from (one for one in value if isinstance(one, str) and SHA256.fullmatch(one))
        elif isinstance(value, Mapping):
            yield from _of_external(value)


def further_looks(store: Store, listed: Sequence[RunEntry], runs: Sequence[RunRecord]) -> int:
    """Return the number of further tests of the runs' data: listed runs, deleted ones, and those that the ledgers count.

    Data are the same if they share a tenth of the examples of the smaller set, see `memlib.runs.ledger.Same`.
    """
    same = [Same(run.ledger) for run in runs if run.ledger.data]
    asked = {(run.asks, read_beside_data(store, refs_of(run))) for run in runs}
    own = {run.ledger.look or run.run for run in runs} | {run.run for run in runs}
    looks = {one.look or one.run for run in runs for one in run.ledger.earlier if one.p_value is not None}
    gone = [one for one in past_of(store, ()) if one.asks not in dict(asked) and any(is_same(one) for is_same in same)]
    looks |= {one.line.look or one.line.run for one in gone if one.line.p_value is not None}
    for entry in listed:
        if all(one["p_value"] is None for one in entry["findings"]):
            continue
        past = Past.of(entry)
        if not any(is_same(past) for is_same in same):
            continue
        if entry["asks"] not in dict(asked) or (entry["asks"], read_beside_data(store, refs_of(entry))) not in asked:
            looks.add(entry["ledger"].get("look") or entry["run"])
    return max(len(looks - own), *((run.ledger.number or 1) - 1 for run in runs))


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
