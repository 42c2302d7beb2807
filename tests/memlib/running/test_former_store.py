"""Stores of earlier releases: later code reads, verifies and reuses them.

tests/former/make.py made each archive with the code of the commit that it is named after. If a test fails, a change breaks the
stores that users have. Where that is meant, and CHANGELOG.md says so, `RAISED` names the stages that are computed again.
"""

import json
import os
import shutil
import tarfile
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
import yaml
from harness import unlike

import memlib
from flows.cli.app import main
from memlib.audits import AUDITS, audit_of
from memlib.audits.arrangement import stages_of
from memlib.recipes.request import AuditRequest
from memlib.running.in_process import carry_out_here
from memlib.runs.garbage import garbage
from memlib.runs.pins import is_pinned
from memlib.runs.requests import unfinished
from memlib.runs.run import Run
from memlib.specs.resources import RunOptions
from memlib.store import Ref, Store
from memlib.store.records import ArtifactRecord

ARCHIVES = sorted((Path(__file__).parents[2] / "former").glob("*.tar.xz"))
RAISED = {
    "f485d81a": {
        "captions": {"score_captions", "report_captions"},
        "deja_vu": {"report"},
        "exposure": {"report"},
        "self_influence": {"report"},
        "sweep": {"report"},
        "forgetting": {"score_forgetting", "report"},
        "membership": {"score_membership", "report"},
        "unique_feature": {"score", "report"},
    },
}
"""Stages that a later version of memlib computes again although nothing has changed, by archive and recipe."""
Change = tuple[dict[str, Any], dict[str, Any], set[str]]
SETTINGS: dict[str, Change] = {
    "captions": ({"report.gallery": 20}, {"score.replicates": 120}, {"score_captions"}),
    "deja_vu": ({"report.gallery": 20}, {"decode.replicates": 120}, {"score"}),
    "exposure": ({"title": "another title"}, {"score.replicates": 30}, {"score_exposure"}),
    "forgetting": ({"report.gallery": 20}, {"score.replicates": 120}, {"score_forgetting"}),
    "membership": ({"report.gallery": 20}, {"score.redraws": 1200}, {"score_membership"}),
    "self_influence": ({"report.gallery": 20}, {}, {"self_influence"}),
    "unique_feature": ({"report.examples": 3}, {"score.replicates": 120}, {"score"}),
}
"""For each audit, a change of its page alone, one of its scores, and the stages that compute the scores."""


class Former(NamedTuple):
    """The unpacked archive of a release."""

    folder: Path
    release: str

    @property
    def store(self) -> str:
        return str(self.folder / "store")

    def recipe(self, name: str) -> str:
        return str(self.folder / "recipes" / f"{name}.yaml")

    @property
    def names(self) -> list[str]:
        """The recipes of finished runs; the sweep is last, as its cells are runs of their own."""
        found = {path.stem for path in (self.folder / "recipes").iterdir()} - {"interrupted"}
        return sorted(found, key=lambda name: (name == "sweep", name))

    @property
    def changed_alone(self) -> Iterator[tuple[str, Change]]:
        """The recipes of which at most the page is made again unless a setting changes, and their changes."""
        return ((name, SETTINGS[name]) for name in self.names if name in SETTINGS and self.raised(name) <= {page_of(name)})

    def copied(self, folder: Path) -> "Former":
        shutil.copytree(self.folder, folder, dirs_exist_ok=True)
        return self._replace(folder=folder)

    def run_of(self, name: str) -> Run:
        """Return the finished run of a recipe."""
        asked = yaml.safe_load(Path(self.recipe(name)).read_text())
        epochs = asked.get("training", {}).get("epochs")
        (run,) = (
            memlib.open(one.id, store=self.store)
            for one in memlib.list_runs(store=self.store)
            if one.audit == name and memlib.open(one.id, store=self.store).recipe.get("training", {}).get("epochs") == epochs
        )
        return run

    def raised(self, name: str) -> set[str]:
        return RAISED.get(self.release, {}).get(name, set())


@pytest.fixture(scope="module", params=ARCHIVES, ids=lambda path: path.name.partition(".")[0])
def former(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Former]:
    """An archive, unpacked once, and the secret with which its canaries were drawn; tests must not write to it."""
    folder = tmp_path_factory.mktemp("former")
    with tarfile.open(request.param) as archive:
        archive.extractall(folder / "former", filter="tar")
    secret = folder / "secret"
    secret.write_bytes(bytes(range(32)))
    secret.chmod(0o600)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEMLIB_SECRET_FILE", str(secret))
        yield Former(folder / "former", request.param.name.partition(".")[0])


@pytest.fixture
def copy(former: Former, tmp_path: Path) -> Former:
    """A copy of the archive's content, in another place."""
    return former.copied(tmp_path / "copy")


def tables_of(run: Run) -> dict[str, pa.Table]:
    return {name: table.replace_schema_metadata() for name, table in run.tables.items()}


def differing(mine: dict[str, pa.Table], theirs: dict[str, pa.Table]) -> dict[str, list[str]]:
    """Return the columns that differ by more than rounding, by table."""
    assert mine.keys() == theirs.keys()
    return {name: columns for name in theirs if (columns := unlike(mine[name], theirs[name]))}


def stages_in(refs: list[str]) -> set[str]:
    return {Ref.parse(ref).stage for ref in refs}


def page_of(name: str) -> str:
    """Return the stage that draws the page of an audit."""
    return stages_of(AUDITS[audit_of(name)])[-1].declared.name


def recorded() -> AbstractContextManager[list[warnings.WarningMessage]]:
    caught: AbstractContextManager[list[warnings.WarningMessage]] = warnings.catch_warnings(record=True)
    return caught


def test_runs_are_listed_shown_and_opened(former: Former, capsys: pytest.CaptureFixture[str]) -> None:
    listed = memlib.list_runs(store=former.store)
    assert {run.audit for run in listed} == {*former.names}
    for entry in listed:
        run = memlib.open(entry.id, store=former.store)
        assert run.verdict.word == entry.verdict
        assert run.verdict.sentence in run.report.read_text().replace("&#39;", "'")
        assert all(table.num_columns for table in run.tables.values())
        assert all(run.published(path) for path in run.record.published)
        assert any(path.endswith(".png") for path in run.record.published)
        assert main(["show", entry.id, "--store", former.store]) == 0
        assert run.verdict.sentence.split(";")[0] in " ".join(capsys.readouterr().out.split())


def test_a_store_is_unchanged_and_a_signature_and_a_plan_hold(former: Former) -> None:
    found = memlib.verify(store=former.store)
    assert (found.outcome, found.problems, found.runs) == ("unchanged", [], len(memlib.list_runs(store=former.store)))
    (said,) = found.plans.values()
    assert "follows the plan" in said
    signed = former.run_of("membership").id
    assert memlib.verify(signed, trust=former.folder / "public.pem", store=former.store).problems == []
    unsigned = former.run_of("deja_vu").id
    assert memlib.verify(unsigned, trust=former.folder / "public.pem", store=former.store).outcome == "changed"


def test_audits_that_are_asked_again_compute_and_publish_nothing(copy: Former) -> None:
    def files() -> dict[str, bytes]:
        found = [path for folder in ("runs", "results") for path in Path(copy.store, folder).rglob("*.*")]
        return {str(path): path.read_bytes() for path in found if path.is_file()}

    before = files()
    for name in copy.names:
        planned = memlib.plan(copy.recipe(name), store=copy.store)
        assert {ref.stage for ref, part in planned.parts.items() if not part.is_settled} == copy.raised(name), name
        with recorded() as said:
            run = memlib.run(copy.recipe(name), store=copy.store, quiet=True)
        assert stages_in(run.record.computed) == copy.raised(name), name
        assert not [str(line.message) for line in said if "code" in str(line.message)], name  # pins.json knows all code since
        assert copy.raised(name) or f"{copy.store}/runs/{run.id}/manifest.json" in before, name
    after = files()
    added = {path for path in after.keys() - before.keys() if not path.endswith("/history.json")}
    if not RAISED.get(copy.release):  # else pages, or tables, too, are published again
        assert not added
        assert {path: content for path, content in after.items() if path in before} == before
        signed = copy.run_of("membership").id
        assert memlib.verify(signed, trust=copy.folder / "public.pem", store=copy.store).problems == []
    assert memlib.verify(store=copy.store).problems == []


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_another_page_is_drawn_from_the_tables_that_there_are(copy: Former) -> None:
    for name, (changes, _, _) in copy.changed_alone:
        before = copy.run_of(name)
        tables = tables_of(before)
        run = memlib.run(copy.recipe(name), store=copy.store, changes=changes, quiet=True)
        assert stages_in(run.record.computed) == {page_of(name)}, name
        assert run.id == before.id
        assert not differing(tables_of(run), tables), name
    sweep = memlib.run(copy.recipe("sweep"), store=copy.store, quiet=True)  # one of the runs is a cell of it
    assert stages_in(sweep.record.computed) == copy.raised("sweep")
    assert memlib.verify(store=copy.store).problems == []


@pytest.mark.page
def test_figures_are_drawn_again_with_pngs(copy: Former) -> None:
    run = memlib.run(copy.recipe("self_influence"), store=copy.store, changes={"report.png": True}, quiet=True)
    assert stages_in(run.record.computed) == copy.raised("self_influence") | {page_of("self_influence")}
    drawn = {Path(path).suffix for path in run.record.published if "/figures/" in path}
    assert drawn == {".png", ".svg"}


@pytest.mark.filterwarnings("ignore::UserWarning")
def manifest_of(store: str, ref: str) -> ArtifactRecord:
    return Store(store).artifacts.manifest(Ref.parse(ref))


def test_other_scores_are_computed_from_the_observations_that_there_are(copy: Former) -> None:
    for name, (_, changes, stages) in copy.changed_alone:
        if not changes:
            continue
        before = copy.run_of(name).record
        run = memlib.run(copy.recipe(name), store=copy.store, changes=changes, quiet=True)
        assert stages_in(run.record.computed) == stages | {page_of(name)}, name
        upstream = {ref for ref in before.pins if Ref.parse(ref).stage not in stages | {page_of(name)}}
        assert upstream <= {*run.record.reused}
        assert all(is_pinned(before.pins[ref], manifest_of(copy.store, ref)) for ref in upstream), name
    assert memlib.verify(store=copy.store).problems == []


def test_scores_that_are_computed_again_are_the_same(copy: Former) -> None:
    for name, (_, _, stages) in copy.changed_alone:
        before = copy.run_of(name)
        tables, request = tables_of(before), AuditRequest.read(copy.recipe(name), {})
        options = RunOptions(quiet=True, force=tuple(stages))
        record = carry_out_here(request, Store(copy.store), options, say=lambda line: None)
        assert stages_in(record.computed) - {page_of(name)} == stages, name
        assert not differing(tables_of(Run(Store(copy.store), record)), tables), name


def test_runs_are_compared_gated_shared_and_exported(
    former: Former, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = former.store
    one, other = (run.id for run in memlib.list_runs(store=store) if run.audit == "self_influence")
    assert [change["key"] for change in memlib.diff(one, other, store=store).recipe] == ["training.epochs"]
    policy = tmp_path / "policy.yaml"
    policy.write_text(yaml.safe_dump({"audits": [{"audit": "membership", "verdicts": ["inconclusive"]}]}))
    assert memlib.gate(policy, store=store).outcome == "passed"
    assert memlib.index(folder=tmp_path / "index", store=store).problems == 1  # the interrupted run
    for run in memlib.list_runs(store=store):
        assert main(["card", run.id, "--store", store]) == 0
        assert run.id in capsys.readouterr().out


def test_data_are_exported_without_being_decoded_again(copy: Former, tmp_path: Path) -> None:
    made = {path.relative_to(copy.store) for path in Path(copy.store).glob("artifacts/**/manifest.json")}
    folder = str(tmp_path / "exported")
    assert main(["export", "--recipe", copy.recipe("deja_vu"), "--output", folder, "--store", copy.store]) == 0
    assert {path.relative_to(copy.store) for path in Path(copy.store).glob("artifacts/**/manifest.json")} == made
    assert (tmp_path / "exported" / "images.csv").read_text().count("\n") > 1


def test_persons_are_found_and_no_artifact_of_a_run_is_garbage(former: Former) -> None:
    run = former.run_of("self_influence")
    found = memlib.forget(example=run.units["example_id"][0].as_py(), store=former.store)
    assert run.id in {one.run for one in found.runs}
    assert found.unknown == []
    kinds = {item.kind for item in garbage(Store(former.store), days=0)}
    assert kinds <= {"resume", "request"}  # of the interrupted run, once it is a day old


def test_an_interrupted_run_is_resumed_from_its_state(copy: Former) -> None:
    store = Store(copy.store)
    (left,) = unfinished(store)
    (state,) = Path(copy.store).glob("resume/*/*/manifest.json")
    key, step = state.parent.parent.name, int(state.parent.name.partition("-")[0])
    assert main(["resume", left.run, "--store", copy.store, "--in-process", "--quiet"]) == 0
    manifest = json.loads(Path(copy.store, "artifacts", "train", key, "manifest.json").read_text())
    facts: dict[str, Any] = manifest["facts"]
    assert facts["resumed_from_step"] == step > 0
    assert facts["num_steps"] > step
    assert unfinished(store) == []
    assert not list(Path(copy.store).glob("resume/*/*"))
    run = next(run for run in memlib.list_runs(store=copy.store) if run.title == left.title)
    assert run.verdict in ("shown", "bounded", "inconclusive")
    assert memlib.verify(store=copy.store).problems == []


def test_an_archive_is_small_and_there_is_one() -> None:
    assert ARCHIVES
    assert all(os.path.getsize(archive) <= 2 * 2**20 for archive in ARCHIVES)
