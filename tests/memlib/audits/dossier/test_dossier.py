"""Dossiers of small audits: their verdict, the attacks that were not run, and the persons at risk."""

import itertools
import json
import os
import re
import shutil
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

import memlib
from flows.cli.app import main
from memlib.audits.dossier import subject
from memlib.audits.dossier.recipe import Recipe
from memlib.audits.dossier.report import _state_of, compose
from memlib.audits.dossier.tables import AUDITS as AUDITS_TABLE
from memlib.audits.self_influence.stages import Score
from memlib.errors import CorruptArtifact, RunError, Untrusted, UserError
from memlib.findings import Findings, Verdict, diagnostic
from memlib.identity import file_digest
from memlib.pipeline.provenance import who
from memlib.runs.fingerprints import fingerprint_of
from memlib.runs.index import list_runs
from memlib.store import Ref, Store
from memlib.store.records import sealed
from memlib.tables import SUMMARY, read_table, write_table

CANCER = {"source": {"kind": "breast_cancer"}}
MEMBERSHIP = {
    "audit": "membership", "title": "forests", "data": CANCER, "model": {"kind": "forest", "trees": 10},
    "shadows": {"count": 8}, "score": {"redraws": 999, "false_alarms": [0.1]},
}  # fmt: skip
INFLUENCE = {
    "audit": "self_influence", "title": "influence", "data": CANCER, "split": {"train_per_class": 40},
    "model": {"architecture": "mlp", "widths": [4]}, "influence": {"checkpoints": 2},
    "training": {"objective": {"kind": "supervised"}, "epochs": 2, "batch_size": 20, "augment": None},
}  # fmt: skip
MOONS = {**INFLUENCE, "title": "moons", "data": {"source": {"kind": "two_moons", "num_examples": 60}}, "split": {}}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a store with a membership and a self-influence audit of the same data, and one of other data."""
    place = str(tmp_path_factory.mktemp("dossiers") / "store")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for recipe in (MEMBERSHIP, INFLUENCE, MOONS):
            memlib.run(recipe, store=place, quiet=True)
    return place


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Ignore the limits of these small audits."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def data_of(store: str, title: str) -> str:
    """Return the digest of the data of a run."""
    (run,) = [one for one in memlib.list_runs(store=store) if one.title == title]
    return memlib.open(run.id, store=store).record.ledger.data


def dossier_of(store: str, **changes: Any) -> memlib.Run:
    """Run a dossier of the breast cancer data."""
    recipe = {"audit": "dossier", "subject": {"data": data_of(store, "forests")[:16]}, **changes}
    return memlib.run(recipe, store=store, quiet=True)


def test_a_dossier_lists_the_audits_of_its_data_and_the_attacks_that_were_not_run(store: str) -> None:
    run = dossier_of(store)
    rows = run.tables["audits"].to_pylist()
    assert [row["title"] for row in rows if row["state"] == "run" and row["leads"]] == ["influence", "forests"]
    states = {row["attack"]: row["state"] for row in rows}
    assert states["attribute inference from a table"] == "not run"  # the recipe hides no column
    assert states["membership of documents"] == "not applicable"
    page = run.report.read_text()
    assert "its recipe did not ask for it (score.hidden)" in page
    assert "(iv) model inversion" in page
    structure = {row["attack"]: row["value"] for row in rows if row["attack"].startswith("structure: ")}
    assert len(structure) == 3  # the parameters of a forest are not counted
    assert structure["structure: training rows that the model contains as they are (instance-based models)"] == 0
    assert memlib.verify(run).outcome == "unchanged"
    assert memlib.verify(store=store).outcome == "unchanged"


def test_a_dossier_joins_the_records_of_its_audits(store: str) -> None:
    risk = dossier_of(store).tables["risk"].to_pylist()
    assert [row["place"] for row in risk] == list(range(1, len(risk) + 1))
    both = [row for row in risk if row["examined"] == 2]
    assert both  # training examples of the self-influence audit that the membership audit's target saw, too
    audited = {one["by"] for one in json.loads(both[0]["found"])}
    assert audited == {"lira", "self_influence"}
    tested = [row["p_value"] for row in risk if row["p_value"] is not None]
    assert tested == sorted(tested)


def test_a_finished_dossier_computes_nothing_and_a_further_run_changes_it(store: str) -> None:
    first = dossier_of(store)
    assert not dossier_of(store).record.computed
    memlib.run(INFLUENCE, store=store, changes={"title": "a second seed", "training.seed": 1}, quiet=True)
    later = dossier_of(store)
    assert later.id != first.id
    assert "a second seed" in later.tables["audits"]["title"].to_pylist()


def test_artifacts_of_the_joined_runs_count_as_reused(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = dossier_of(store, named_share=0.02)
    assert {address.split("/")[0] for address in run.record.computed} == {"score_dossier", "report"}
    assert main(["status", run.id, "--store", store, "--json"]) == 0
    stages = {row["stage"]: row for row in json.loads(capsys.readouterr().out)["stages"]}
    assert (stages["fit_estimators"]["artifacts"], stages["fit_estimators"]["cpu_seconds"]) == (0, 0)
    assert stages["fit_estimators"]["reused"] > 0
    assert stages["score_dossier"]["artifacts"] == 1
    assert "Structure of the outputs" in run.report.read_text()


def test_a_dossier_without_ids_holds_none(store: str) -> None:
    run = dossier_of(store, ids=False)
    assert "risk" not in run.tables
    ids = dossier_of(store).tables["risk"]["id"].to_pylist()
    published = [run.store.published(path) or b"" for path in run.record.published]
    assert not any(
        f'"{name}"'.encode() in content or f" {name}<".encode() in content for content in published for name in ids
    )


def test_a_dossier_of_one_model_is_found_by_the_digest_of_its_weights(store: str) -> None:
    (moons,) = [one for one in memlib.list_runs(store=store) if one.title == "moons"]
    by_id = memlib.run({"audit": "dossier", "subject": {"runs": [moons.id[:8]]}}, store=store, quiet=True)
    (digest, *_) = by_id.tables["audits"]["digests"].drop_null().to_pylist()[0]
    by_model = memlib.run({"audit": "dossier", "subject": {"model": digest[:20]}}, store=store, quiet=True)
    assert set(by_model.record.cells) == {moons.id}
    with pytest.raises(UserError, match=r"no run in .* is about model 'ffff'"):
        memlib.run({"audit": "dossier", "subject": {"model": "ffff"}}, store=store, quiet=True)


def test_a_dossier_without_a_test_is_descriptive(store: str) -> None:
    run = memlib.run({"audit": "dossier", "subject": {"data": data_of(store, "moons")}}, store=store, quiet=True)
    assert (run.verdict.word, run.verdict.sentence) == (
        "descriptive",
        f"Models that the audits trained on two_moons (data {data_of(store, 'moons')[:12]}): 1 audit described them; none "
        "includes a test.",
    )  # fmt: skip


def test_a_stale_audit_is_never_named_in_the_verdict(store: str) -> None:
    rows = dossier_of(store, most_days=1e-9).tables["audits"].to_pylist()
    assert all(not row["counts"] and "stale" in row["reason"] for row in rows if row["state"] == "run")
    assert dossier_of(store, most_days=1e-9).verdict.word in ("inconclusive", "descriptive")


def test_a_dossier_runs_the_cells_that_its_recipe_names(tmp_path: Path) -> None:
    recipe = {"audit": "dossier", "cells": [{"recipe": MOONS, "set": {"training.seed": seed}} for seed in (0, 1)]}
    run = memlib.run(recipe, store=str(tmp_path / "store"), quiet=True)
    assert len(run.record.cells) == 2
    assert len(memlib.list_runs(store=str(tmp_path / "store"))) == 3
    memlib.run(MOONS, store=str(tmp_path / "other"), changes={"training.seed": 1}, quiet=True)
    after_the_last = memlib.run(recipe, store=str(tmp_path / "other"), quiet=True)
    orders = [[row["run"] for row in one.tables["audits"].to_pylist() if row["run"]] for one in (run, after_the_last)]
    assert orders[0] == orders[1]  # or a dossier whose cells end in another order would be another run


def test_audits_that_failed_belong_to_the_dossier_and_to_a_dossier_of_its_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(tmp_path / "store")
    table = {"kind": "table", "path": str(tmp_path / "nowhere.csv"), "label_column": "y", "standardize": True}
    broken = {**INFLUENCE, "title": "broken", "data": {"source": table}}
    cells = [{"name": "fine", "recipe": MEMBERSHIP}, {"name": "broken", "recipe": broken}]
    with pytest.raises(RunError, match="broken"):
        memlib.run({"audit": "dossier", "cells": cells}, store=place, quiet=True)
    with pytest.raises(RunError, match="other"):
        sweep = {
            "audit": "sweep",
            "title": "two",
            "cells": [{"name": "moons", "recipe": MOONS}, {"name": "other", "recipe": broken}],
        }
        memlib.run(sweep, store=place, quiet=True)
    (tmp_path / "sweep.yaml").write_text(json.dumps(sweep))
    assert main(["plan", str(tmp_path / "sweep.yaml"), "--store", place]) == 2
    assert "cell other cannot run: " in capsys.readouterr().out
    found = {one.audit: one for one in memlib.list_runs(store=place)}
    own = memlib.open(found["dossier"].id, store=place)
    of_sweep = memlib.run({"audit": "dossier", "subject": {"runs": [found["sweep"].id]}}, store=place, quiet=True)
    for run, title in ((own, "broken"), (of_sweep, "two: other")):
        (row,) = [row for row in run.tables["audits"].to_pylist() if row["state"] == "failed"]
        assert row["title"] == title
        assert "nowhere.csv" in row["reason"]
        assert f"Failed, with no result: {title}." in run.verdict.explanation
        assert re.search(rf">{title}</t[dh]>(\s|<[^>]*>)*failed: ", run.report.read_text())
        assert memlib.verify(run).outcome == "unchanged"
    recipe = {"audit": "dossier", "subject": {"runs": [found["sweep"].id]}, "ids": False}
    without_ids = memlib.run(recipe, store=place, quiet=True)
    assert "nowhere.csv" not in without_ids.report.read_text()
    reasons = {row["attack"]: row["reason"] for row in own.tables["audits"].to_pylist() if row["state"] == "not run"}
    assert reasons["influence of single examples (self-influence)"] == "its audit failed (broken)"


def failed_of(place: str, subject: dict[str, Any]) -> list[str]:
    """Return the titles of the audits without a result in a dossier."""
    run = memlib.run({"audit": "dossier", "subject": subject}, store=place, quiet=True)
    assert memlib.verify(run).outcome == "unchanged"
    return sorted(row["title"] for row in run.tables["audits"].to_pylist() if row["state"] == "failed")


def test_a_failed_cell_belongs_to_the_dossiers_of_the_data_that_it_was_about(tmp_path: Path) -> None:
    place = str(tmp_path / "store")
    memlib.run(MEMBERSHIP, store=place, quiet=True)
    wrong = {"name": "wrong", "recipe": {**INFLUENCE, "data": {**CANCER, "image_size": 32}}}  # the default, stated
    elsewhere = {"name": "elsewhere", "recipe": MOONS, "set": {"data.source.num_examples": 4}}
    for kind, title, rate in (("sweep", "four", 1e12), ("sweep", "four", 1e11), ("dossier", "own", 1e12)):
        diverging = {**wrong, "set": {"training.optimizer.learning_rate": rate}}
        with pytest.raises(RunError, match="2 of 3 cells failed"):
            cells = [{"name": "moons", "recipe": MOONS}, diverging, elsewhere]
            memlib.run({"audit": kind, "title": title, "cells": cells}, store=place, quiet=True)
    first, second, own = failed_of(place, {"data": data_of(place, "forests")})
    assert (first, second.partition(" (run ")[0], own) == ("four: wrong", "four: wrong", "own: wrong")
    assert failed_of(place, {"data": data_of(place, "moons")}) == []
    found = {one.audit: one.id for one in memlib.list_runs(store=place) if one.title == "own"}
    assert failed_of(place, {"runs": [found["dossier"]]}) == ["own: elsewhere", "own: wrong"]


def test_runs_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    place = tmp_path / "store"
    sweep = {"audit": "sweep", "title": "two", "recipe": INFLUENCE, "grid": {"training.seed": [0, 1]}}
    first, second = memlib.run(sweep, store=str(place), quiet=True).record.cells.values()
    other, moons = (memlib.run(MOONS, store=str(place), changes={"training.seed": seed}, quiet=True) for seed in (0, 1))
    (place / "runs" / second / "manifest.json").write_text("{")
    manifest = place / "runs" / other.id / "manifest.json"
    manifest.write_text(json.dumps(sealed(json.loads(manifest.read_text()) | {"audit": "fortune"})))
    data = [memlib.open(run, store=str(place)).record.ledger.data for run in (first, moons.id)]
    assert failed_of(str(place), {"data": data[0]}) == [f"run {second}"]
    assert failed_of(str(place), {"data": data[1]}) == sorted([f"run {second}", f"run {other.id}"])
    assert failed_of(str(place), {"runs": [first]}) == []


HERE, THERE = {"source": {"kind": "table", "path": "a.csv"}}, {"source": {"kind": "table", "path": "b.csv"}}
UNNORMALIZED = {"source": {"kind": "table", "path": "x/../a.csv"}}


def stated(data: dict[str, Any], asks: str = "another question") -> Any:
    described = {"source": {key: value for key, value in data["source"].items() if key != "path"}}
    return subject._Stated(asks, data, described)


@pytest.mark.parametrize(
    ("cell", "members", "beside", "expected"),
    [
        (stated(HERE, "q"), [(stated(HERE), "d1")], [], True),
        (stated(THERE, "q"), [(stated(HERE), "d1")], [], True),  # a copy, for all that is known
        (stated(THERE, "q"), [(stated(HERE), "d1")], [(stated(THERE), "d2")], False),
        (stated(UNNORMALIZED, "q"), [(stated(HERE), "d1")], [], True),
        (stated(HERE, "q"), [(stated(HERE, "q"), "d1")], [], False),
        (stated(HERE, "q"), [(stated(HERE, "q"), "d2"), (stated(HERE), "d1")], [], True),  # of other data
        (stated(THERE, "q"), [(stated(THERE, "q"), "d2"), (stated(HERE), "d1")], [], False),
        (stated(THERE, "q"), [(stated(HERE, "q"), "d1")], [], False),
        (stated(THERE, "q"), [(stated(HERE, "q"), "d1"), (stated(HERE), "d2")], [(stated(THERE), "d2")], True),
        (stated({"source": {"kind": "breast_cancer"}}), [(stated(HERE), "d1")], [], False),
        (None, [(stated(HERE), "d1")], [], True),
        (stated(THERE), [(None, "d1")], [], True),
    ],
)
def test_a_failed_cell_belongs_to_a_dossier_unless_its_data_or_an_answer_speak_against_it(
    cell: Any, members: list[Any], beside: list[Any], expected: bool
) -> None:
    assert subject._belongs(cell, members, beside, "d1") is expected


def test_a_failed_cell_that_was_run_alone_since_is_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, write, faults = str(tmp_path / "store"), Score.write, iter([True, False])

    def full(stage: Any, attempt: Any, device: Any) -> None:
        if next(faults):
            raise ZeroDivisionError("in a library")
        write(stage, attempt, device)

    monkeypatch.setattr(Score, "write", full)
    sweep = {
        "audit": "sweep",
        "title": "seeds",
        "recipe": INFLUENCE,
        "grid": {"training.seed": [0, 1]},
        "concurrent_cells": 1,
    }
    with pytest.raises(RunError, match="1 of 2 cells failed .seed=0: ZeroDivisionError: in a library"):
        memlib.run(sweep, store=place, quiet=True)
    monkeypatch.undo()
    about, failed = {"data": data_of(place, "influence")}, []
    for seed in (2, 0):
        memlib.run(INFLUENCE, store=place, changes={"training.seed": seed}, quiet=True)
        failed.append(failed_of(place, about))
    assert failed == [["seeds: seed=0"], []]


def test_the_command_line_writes_the_document_the_list_and_json(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    release = tmp_path / "release.yaml"
    release.write_text("model: forest 1.0\naccess: probabilities\nresidual_risk: <b>small</b>\n")
    digest = data_of(store, "forests")
    assert main(["dossier", "--data", digest, "--store", store, "--release", str(release), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["format"] == 3
    assert document["release"]["model"] == "forest 1.0"
    page = memlib.open(document["run"], store=store).report.read_text()
    assert "queries are answered with probabilities" in page
    assert "&lt;b&gt;small" in page
    assert "not possible" in page  # self-influence is nothing that an outsider can compute
    assert main(["risk", "--data", digest, "--store", store, "--most", "3", "--csv", str(tmp_path / "risk.csv")]) == 0
    assert "named by" in capsys.readouterr().out
    assert len((tmp_path / "risk.csv").read_text().splitlines()) == document["risk"]["rows"] + 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name the subject: --data DIGEST, --model DIGEST, or ids of runs"),
        (["--data", "ffff"], "is about data 'ffff'"),
        (["--release", "nowhere.yaml", "--data", "00"], "cannot read nowhere.yaml"),
        (["--most-days", "0", "--data", "00"], "most_days"),
    ],
)
def test_dossier_refuses_mistakes_in_one_line_each(
    arguments: list[str], said: str, store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dossier", "--store", store, *arguments]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert said in line


def test_a_dossier_leaves_out_a_run_whose_scores_are_gone(tmp_path: Path) -> None:
    place = str(tmp_path / "store")
    kept, lost = (memlib.run(MOONS, store=place, changes={"training.seed": seed}, quiet=True) for seed in (0, 1))
    lost.store.drop(f"artifacts/{lost.record.scores}")
    warnings.simplefilter("always")
    with pytest.warns(UserWarning, match=f"run {lost.id} is left out of the dossier"):
        run = memlib.run({"audit": "dossier", "subject": {"runs": [kept.id, lost.id]}}, store=place, quiet=True)
    assert set(run.record.cells) == {kept.id}


def test_an_erased_example_is_in_no_file_of_a_dossier(tmp_path: Path) -> None:
    place = str(tmp_path / "store")
    memlib.run(INFLUENCE, store=place, quiet=True)
    recipe = {"audit": "dossier", "subject": {"data": data_of(place, "influence")}}
    run = memlib.run(recipe, store=place, quiet=True)
    marker = run.tables["risk"]["id"][0].as_py()
    document = tmp_path / "store" / "runs" / run.id / "dossier.json"
    assert marker in document.read_text()
    assert main(["forget", "--example", marker, "--store", place, "--delete", "--models"]) in (0, 3)
    left = [path for path in (tmp_path / "store").rglob("*") if path.is_file() and marker.encode() in path.read_bytes()]
    assert left == []
    assert not document.exists()
    assert "audits" in run.tables  # aggregates stay
    assert memlib.verify(run.id, store=place).outcome == "unchecked"


def test_the_document_is_printed_to_pdf(store: str, tmp_path: Path) -> None:
    try:
        import weasyprint  # noqa: F401
    except (ImportError, OSError) as error:  # OSError: without pango
        pytest.skip(f"WeasyPrint or pango is missing ({error}); pip install -e '.[pdf]' in memlib's folder")
    place = tmp_path / "dossier.pdf"
    command = ["dossier", "--data", data_of(store, "forests"), "--store", store, "--pdf", str(place)]
    assert main(command) == 0
    content = place.read_bytes()
    assert content.startswith(b"%PDF-")
    assert len(re.findall(rb"/Type\s*/Page\b", content)) >= 2 or b"/ObjStm" in content
    assert place.stat().st_mode & 0o777 == 0o600
    assert main(command) == 2  # an existing file is never overwritten


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    """Return the files of a private key and of its public key."""
    private, public = tmp_path / "key.pem", tmp_path / "key.pub"
    key = Ed25519PrivateKey.generate()
    private.touch(mode=0o600)
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return private, public


@pytest.fixture
def own_store(store: str, tmp_path: Path) -> str:
    """Return a copy of the store for a test that changes it."""
    return str(shutil.copytree(store, tmp_path / "store"))


def test_a_dossier_does_not_read_scores_that_were_replaced(own_store: str, keys: tuple[Path, Path]) -> None:
    """The scores are replaced in a consistent way, as whoever may write to the store can do; the run's pins are not."""
    (member,) = [one.id for one in memlib.list_runs(store=own_store) if one.title == "forests"]
    assert main(["sign", member, "--key", str(keys[0]), "--store", own_store]) == 0
    opened, run = Store(own_store), memlib.open(member, store=own_store).record
    scores = Ref.parse(run.artifacts["scores"])
    manifest = opened.artifacts.manifest(scores)
    file = opened.artifacts.local_path(scores, "summary.parquet")
    table = read_table(file)
    calm = table.set_column(table.schema.get_field_index("p_adjusted"), "p_adjusted", pa.array([1.0] * len(table)))
    write_table(calm, SUMMARY, file)
    files = {name: described.model_dump() for name, described in manifest.files.items()}
    files["summary.parquet"] = {"size": file.stat().st_size, "sha256": file_digest(file)}
    forged = manifest.model_dump() | {"files": files}
    forged.pop("digest")
    opened.publish(f"{scores.folder}/manifest.json", json.dumps(sealed(forged)).encode())
    with pytest.raises(CorruptArtifact, match=f"run {member}: its score.* has been recomputed with different content"):
        dossier_of(own_store)
    assert memlib.verify(member, store=own_store).outcome == "changed"


def test_a_dossier_is_signed_and_verified_with_the_runs_that_it_joins(
    own_store: str, keys: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    joined = dossier_of(own_store)
    members = sorted(run for run in joined.record.cells.values() if run is not None)
    signing = ["--key", str(keys[0]), "--store", own_store]
    assert main(["sign", joined.id, *signing]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"joins {len(members)} runs that this key has not signed; sign first: {', '.join(members)}" in said
    for run in (*members, joined.id):
        assert main(["sign", run, *signing]) == 0
    trusted = memlib.verify(joined.id, store=own_store, trust=keys[1])
    assert (trusted.outcome, trusted.runs) == ("unchanged", len(members) + 1)
    manifest = Path(own_store, "runs", members[0], "manifest.json")
    content = json.loads(manifest.read_text())
    content.pop("digest")
    manifest.write_text(json.dumps(sealed({**content, "title": "another"})))
    found = memlib.verify(joined.id, store=own_store, trust=keys[1])
    assert any(f"run {members[0]}" in one.what and "what was signed" in one.problem for one in found.problems)


def test_no_reader_takes_a_run_that_the_trusted_key_has_not_signed(
    own_store: str,
    keys: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = {one.title: one.id for one in memlib.list_runs(store=own_store) if one.title in ("forests", "influence", "moons")}
    for run in names.values():
        assert main(["sign", run, "--key", str(keys[0]), "--store", own_store]) == 0
    manifest = Path(own_store, "runs", names["forests"], "manifest.json")
    content = json.loads(manifest.read_text())
    content.pop("digest")
    said = {**content["verdict"], "word": "bounded", "sentence": "Nothing is remembered."}
    manifest.write_text(json.dumps(sealed({**content, "verdict": said})))
    policy = tmp_path / "policy.yaml"
    policy.write_text("audits: [{audit: membership, verdicts: [bounded]}, {audit: self-influence, verdicts: [descriptive]}]")
    of_run = ["show", "card", "open", "croissant", "check --fail-on shown", f"diff {names['forests']}"]
    monkeypatch.setattr("webbrowser.open", lambda address: True)
    capsys.readouterr()
    for command in [
        *(f"{one} {names['forests']}" for one in of_run),
        f"dossier {names['forests']}",
        f"risk {names['forests']}",
    ]:
        assert main([*command.split(), "--store", own_store, "--trust", str(keys[1])]) == 2, command
        output = capsys.readouterr()
        assert "what was signed" in " ".join(output.err.split()), command
        assert "Nothing is remembered" not in output.out, command
    assert main(["runs", "--store", own_store, "--trust", str(keys[1])]) == 0
    output = capsys.readouterr()
    assert names["influence"] in output.out
    assert names["forests"] not in output.out
    assert "cannot be read" in output.err
    monkeypatch.setenv("MEMLIB_TRUST", str(keys[1]))
    assert main(["gate", "--policy", str(policy), "--store", own_store]) == 3
    assert main(["show", names["influence"], "--store", own_store]) == 0
    assert memlib.index(store=own_store, folder=tmp_path / "index").runs == 2
    with pytest.raises(Untrusted):
        memlib.open(names["forests"], store=own_store)
    memlib.run({**MOONS, "title": "a new run need not be signed"}, store=own_store, quiet=True)
    assert memlib.verify(store=own_store).outcome == "changed"


def test_a_run_that_was_deleted_is_missed_by_the_run_that_names_it(
    tmp_path: Path, keys: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    store = str(tmp_path / "store")
    runs = [
        memlib.run({**MOONS, "title": title, "split": {"seed": seed}}, store=store, quiet=True)
        for seed, title in enumerate("abc")
    ]
    assert [run.record.ledger.previous for run in runs] == [[], [runs[0].id], [runs[1].id]]
    assert [run.record.ledger.audits for run in runs] == [0, 1, 2]
    assert all(run.record.ledger.earlier == [] for run in runs)
    for run in runs[1:]:
        assert main(["sign", run.id, "--key", str(keys[0]), "--store", store]) == 0
    deleted = runs[0].id
    shutil.rmtree(Path(store, "runs", deleted))
    for folder in Path(store, "results").glob(f"*/*/run={deleted}"):
        shutil.rmtree(folder)
    Path(store, "index/runs.json").unlink()
    found = memlib.verify(store=store)
    assert found.changed == {f"run {deleted}"}
    assert f"run {runs[1].id} names it, and no record says that it was deleted" in found.problems[0].problem
    assert main(["gc", "--lost", deleted, "--delete", "--store", store]) == 0
    assert memlib.verify(store=store).outcome == "unchanged"
    trusted = memlib.verify(store=store, trust=keys[1])  # whoever has no key cannot excuse it
    assert f"run {deleted}" in trusted.changed
    assert "is not signed with the trusted key" in trusted.problems[0].problem
    assert main(["sign", "--records", "--key", str(keys[0]), "--store", store]) == 0
    assert memlib.verify(store=store, trust=keys[1]).outcome == "unchanged"
    capsys.readouterr()


def test_a_store_remembers_the_looks_of_runs_that_it_collected_as_garbage(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    first, second = (memlib.run({**MEMBERSHIP, "split": {"seed": seed}}, store=store, quiet=True) for seed in (0, 1))
    assert (first.record.ledger.number, second.record.ledger.number) == (1, 2)
    for run in (first, second):  # its own models, which no other run needs
        os.utime(Path(store, "runs", run.id, "manifest.json"), (1, 1))
    assert main(["gc", "--keep", second.id, "--days", "0", "--delete", "--store", store]) == 0
    assert [one.id for one in memlib.list_runs(store=store)] == [second.id]
    assert memlib.verify(store=store).outcome == "unchanged"
    third = memlib.run({**MEMBERSHIP, "split": {"seed": 2}}, store=store, quiet=True)
    assert (third.record.ledger.number, third.record.ledger.previous) == (3, [second.id])
    assert subject.further_looks(Store(store), list_runs(Store(store)).entries, [third.record]) == 2


def test_a_run_of_the_store_that_says_otherwise_is_named_first_and_denies_a_bound(store: str, tmp_path: Path) -> None:
    """A bounded audit is chosen by hand, and one of the same data that shows memory stays in the store, or in another one."""
    place, other = str(tmp_path / "store"), str(tmp_path / "other")
    small = {**MEMBERSHIP, "score": {**MEMBERSHIP["score"], "auc_bound": 0.999, "tail_bound": 0.999}}
    bounded = memlib.run({**small, "model": {"kind": "forest", "trees": 5, "max_depth": 1}}, store=place, quiet=True)
    assert bounded.verdict.word == "bounded"
    recipe = {"audit": "dossier", "subject": {"runs": [bounded.id]}}
    assert memlib.run(recipe, store=place, quiet=True).verdict.word == "bounded"
    tree = {**MEMBERSHIP, "title": "a tree", "model": {"kind": "forest", "trees": 1}, "shadows": {"count": 16}}
    assert memlib.run(tree, store=other, quiet=True).verdict.word == "shown"
    elsewhere = memlib.run(recipe, store=place, changes={"subject.beside": [other]}, quiet=True)
    assert elsewhere.verdict.word == "inconclusive"
    assert re.match(r"A tree \(run \w+ in .*\), which is not part of this dossier, shows memory", elsewhere.verdict.sentence)
    memlib.run(tree, store=place, quiet=True)
    here = memlib.run(recipe, store=place, quiet=True)
    assert here.verdict.word == "inconclusive"
    assert here.verdict.sentence.startswith("A tree (run ")
    (row,) = [row for row in here.tables["audits"].to_pylist() if row["state"] == "beside"]
    assert (row["title"], row["word"]) == ("a tree", "shown")
    page = here.report.read_text()
    assert "What other runs say" in page
    assert "</b>, at level 0.05</span>" in page


@pytest.mark.parametrize("word", ["shown", "bounded", "inconclusive", "descriptive"])
@pytest.mark.parametrize("external", [[], ["ab" * 32]])
@pytest.mark.parametrize("released", ["", "ab" * 32, "cd" * 32])
def test_meaning_and_advice_speak_of_what_was_examined(word: str, external: list[str], released: str) -> None:
    """All combinations of what a reader could be told: no claim about a finished model where none was examined."""
    row = dict.fromkeys(AUDITS_TABLE.arrow.names) | {
        "attack": "membership of single records or persons", "state": "run", "run": "r", "audited": "membership", "title": "t",
        "counts": True, "leads": True, "word": word, "sentence": "s", "shown": word == "shown", "metric": "auc", "value": 0.6,
        "n": 100, "examined": "the model m" if external else "models that the audits trained", "subject": "x",
        "external": external, "wholes": external, "digests": external, "data": "d", "item": "", "access": "outputs",
        "possible_by": ["weights"], "advice": "Train again." if word == "shown" else None, "p_dossier": 0.01, "seeds": "",
        "finished": datetime(2026, 1, 1, tzinfo=UTC), "models": 0, "params": "{}", "reason": "",
    }  # fmt: skip
    table = pa.Table.from_pylist([row], schema=AUDITS_TABLE.arrow)
    recipe = Recipe.model_validate({"subject": {"data": "d"}, "release": {"digest": released}})
    said = Findings([diagnostic("audits_shown", {}, 1.0, n=1)], Verdict(word, "s", "e"))  # type: ignore[arg-type]
    content = compose(recipe, table, said, None, {"r": "m"}, "breast_cancer")
    advice, text = content.advice, " ".join([content.meaning, content.advice])
    assert ("Train again." in advice) == (word == "shown")
    assert ("No finished model was examined" in advice) == (word == "shown" and not external)
    assert ("Do not give the model" in advice) == (word == "shown" and bool(external) and released != "cd" * 32)
    assert ("The released model was not examined" in advice) == (word == "shown" and bool(external) and released == "cd" * 32)
    assert ("at most its bound" in text) == (word == "bounded")
    assert ("Nothing was tested" in text) == (word == "descriptive")
    about = content.about["released model"]
    assert ("another model" in about) == (bool(released) and not (external and released == "ab" * 32))
    section = next(one for one in content.sections if one is not None and one.heading == "Regulators' lists")
    states = {cells[0]: cells[1] for cells in section.blocks[1].rows}  # type: ignore[union-attr]
    accuracy = states["OWASP AISVS 1.0, 11.2.5: attack accuracy no better than guessing"]
    assert accuracy == ("met by run r" if word == "bounded" and external else "not met")
    assert states["par. 58: documentation of threat model, measures and tests"] == "not met"


def test_a_table_with_a_row_less_is_the_same_data(tmp_path: Path) -> None:
    """All standardized values change with every row that is left out; the rows as they are in the file do not."""
    rng, place = np.random.default_rng(0), str(tmp_path / "store")
    values = rng.normal(size=(300, 4))
    rows = [",".join([*map(str, row), str(int(row[0] > 0))]) for row in values.tolist()]
    source = {"kind": "table", "path": str(tmp_path / "table.csv"), "label_column": "y"}
    recipe = {**MEMBERSHIP, "data": {"source": source}, "model": {"kind": "forest", "trees": 2}, "shadows": {"count": 4}}
    for first, number in enumerate((1, 2, 3)):
        (tmp_path / "table.csv").write_text("\n".join(["a,b,c,d,y", *rows[first:]]))
        run = memlib.run(recipe, store=place, quiet=True)
        assert run.record.ledger.number == number
    turned = [",".join([*reversed(row.split(",")[:4]), row[-1]]) for row in rows]
    (tmp_path / "table.csv").write_text("\n".join(["d,c,b,a,y", *turned]))
    run = memlib.run(recipe, store=place, quiet=True)
    assert run.record.ledger.number == 4
    assert "Looks in other stores are not known" in run.report.read_text()
    known = run.record.ledger.fingerprints
    assert known is not None
    rows = {
        fingerprint_of(row["digest"]): row["example_id"]
        for path in (tmp_path / "store").rglob("as_read.parquet")
        for row in read_table(path).to_pylist()
    }
    hers = known["smallest"][0]
    assert main(["forget", "--example", rows[hers], "--store", place, "--delete", "--models"]) in (0, 3)
    kept = memlib.open(run.id, store=place).record.ledger.fingerprints
    assert kept is not None
    assert hers not in kept["smallest"]
    assert set(kept["smallest"]) < set(known["smallest"])
    others = [",".join(map(str, [*row, int(row[0] > 0)])) for row in rng.normal(size=(300, 4)).tolist()]
    (tmp_path / "table.csv").write_text("\n".join(["a,b,c,d,y", *others]))
    assert memlib.run(recipe, store=place, quiet=True).record.ledger.number == 1


def test_a_policy_can_limit_the_structure_of_outputs(store: str, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    for limit, status in ((0, 1), (10**6, 0)):
        gate = f"structure[structure=small_cell_rows]={limit}"
        policy.write_text(json.dumps({"audits": [{"audit": "membership", "ceilings": [gate]}]}))
        assert main(["gate", "--policy", str(policy), "--store", store]) == status


def test_no_page_names_its_user_its_store_or_an_index(store: str) -> None:
    for run in (dossier_of(store), *(memlib.open(one.id, store=store) for one in memlib.list_runs(store=store))):
        page = run.report.read_text()
        assert store not in page
        assert f">{who()}<" not in page
        assert "index.html" not in page


def test_who_is_not_shown_to_stand_out_is_not_listed(store: str) -> None:
    run = dossier_of(store)
    risk, page = run.tables["risk"].to_pylist(), run.report.read_text()
    listed = {row["id"] for row in risk if row["p_adjusted"] is not None and row["p_adjusted"] <= 0.05}
    assert {row["id"] for row in risk if f">example {row['id']}<" in page} == listed
    assert "named by" not in page


STATES = ("run", "not run", "not in memlib", "not applicable")


@pytest.mark.parametrize("states", itertools.product((False, True), repeat=len(STATES)))
@pytest.mark.parametrize("counts", [True, False])
def test_each_row_of_regulators_lists_follows_from_the_audits(states: tuple[bool, ...], counts: bool) -> None:
    found = [
        {
            "state": state,
            "title": "t",
            "run": "r",
            "attack": f"attack {state}",
            "reason": f"reason {state}",
            "counts": counts,
            "word": "shown",
            "external": [],
        }
        for state, is_there in zip(STATES, states, strict=True)
        if is_there
    ]
    if not found:
        return
    state, why = _state_of(found)
    there = {row["state"] for row in found}
    if "run" in there and counts:
        assert state == "met by run r"
        assert "t (run r): shown, of models that the audit trained" in why
    elif there & {"run", "not run"}:
        assert state == "not met"
    else:
        assert state == ("not in memlib" if "not in memlib" in there else "cannot apply")
    for name in there & {"not run", "not in memlib"}:
        assert f"reason {name}" in why


def test_a_model_is_recognized_by_one_digest_of_its_files(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("a.safetensors", "config.json", "old.bin"):
        (folder / name).write_text(name)
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "config.json").rename(copy / "other.json")
    digests = []
    for path in (folder, copy, folder / "a.safetensors"):
        assert main(["verify", "--digest", str(path), "--store", store]) == 0
        output = capsys.readouterr().out
        digests.append(output.split()[0])
        assert f"no run in {store} examined this model" in output
        assert ("never read them: old.bin" in output) == path.is_dir()
    assert digests[0] == digests[1]
    assert digests[2] == file_digest(folder / "a.safetensors")
    assert main(["verify", dossier_of(store).id, "--digest", str(folder), "--store", store]) == 2
    assert "examined another model than" in " ".join(capsys.readouterr().err.split())
    assert main(["verify", "--digest", str(tmp_path / "nowhere"), "--store", store]) == 2
