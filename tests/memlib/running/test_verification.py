"""A changed run is distinguished from an intact one, each change by name; a signature from one that anybody could write."""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

import memlib
from flows.cli.app import main
from memlib.audits import tables_of
from memlib.audits.outcomes import Outcome
from memlib.audits.sweep.recipe import Recipe, run_of
from memlib.audits.sweep.stages import Report, Score
from memlib.findings import Findings
from memlib.identity import content_key, file_digest
from memlib.running import checks
from memlib.running.checks import check_artifacts, check_run
from memlib.running.runners import PlainRunner
from memlib.running.verification import check_signature, sign
from memlib.runs import index
from memlib.runs.index import INDEX, findings_of, list_runs, publish_rows, read_run, results_path, rows_of
from memlib.runs.pins import pins_of
from memlib.runs.records import RunRecord
from memlib.runs.signatures import public_key, shown_key
from memlib.specs.question import asks_digest, run_name
from memlib.store import Ref, Store
from memlib.store.records import sealed
from memlib.tables import SUMMARY, write_table

SPEC, INPUTS = {"alpha": 0.05}, {"examples": "a" * 64}
SCORES = Ref("score", content_key("score", version=4, spec=SPEC, inputs=INPUTS))
RECIPE = {"audit": "deja_vu", "title": "t", "data": {"source": {"kind": "scenes", "path": "/here"}}, "report": {"gallery": 3}}


OF_PAGE = {"recipe": RECIPE}
REPORT = Ref("report", content_key("report", version=1, spec=OF_PAGE, inputs={"scores": SCORES.key}))


def row(metric: str, value: float) -> dict[str, Any]:
    names = {column.name: None for column in SUMMARY.columns}
    return names | {
        "metric": metric, "params": "{}", "value": value, "role": "test", "family": "headline", "n": 10, "verdict": "shown",
        "p_value": 0.01, "p_adjusted": 0.01, "conclusion": "shown", "sentence": "It was shown.", "explanation": "",
    }  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with one whole run, made as publish makes it."""
    found = Store(str(tmp_path / "store"))
    summary = pa.Table.from_pylist([row("share_excess", 0.2), row("share_memorized", float("nan"))], schema=SUMMARY.arrow)
    with found.artifacts.write(SCORES, spec=SPEC, inputs=INPUTS, provenance={"version": 4}) as attempt:
        for name, schema in tables_of("deja_vu").items():
            write_table(summary if name == "summary" else schema.arrow.empty_table(), schema, attempt.path(f"{name}.parquet"))
    page = {"version": 1, "reads": {}}
    with found.artifacts.write(REPORT, spec=OF_PAGE, inputs={"scores": SCORES.key}, provenance=page) as attempt:
        attempt.path("report.html").write_text("<p>a page</p>")
    run = run_name(RECIPE, SCORES.key)
    published, results = {}, {}
    files = [(results_path(name, "deja_vu", run), SCORES, f"{name}.parquet") for name in tables_of("deja_vu")]
    for path, ref, name in [*files, (f"runs/{run}/report.html", REPORT, "report.html")]:
        results[name.partition(".")[0]] = found.publish(path, found.artifacts.local_path(ref, name))
        published[path] = file_digest(found.artifacts.local_path(ref, name))
    rows = summary.to_pylist()
    manifest = {
        "run": run, "audit": "deja_vu", "title": "t", "recipe": RECIPE, "finished": 1.0, "findings": findings_of(rows),
        "verdict": asdict(Findings.read(summary).verdict), "results": {"summary": results["summary"]}, "report": results["report"], "artifacts": {"scores": str(SCORES), "report": str(REPORT)},
        "scores": str(SCORES), "asks": asks_digest(RECIPE), "pins": {ref: pin.model_dump() for ref, pin in pins_of(found, [SCORES, REPORT]).items()}, "published": published,
    }  # fmt: skip
    found.publish(f"runs/{run}/manifest.json", json.dumps(sealed(manifest)).encode())
    write_row(found)
    return found


SWEEP_RECIPE = {"audit": "sweep", "title": "s", "recipe": "base", "cells": [{"name": "one"}, {"name": "two"}]}


@pytest.fixture
def swept(store: Store, tmp_path: Path) -> Store:
    """A store with a sweep of two cells, one of which failed, made as publish makes it."""
    cell = only_run(store)
    recipe = Recipe.model_validate(SWEEP_RECIPE)
    ended = {"one": cell, "two": "it failed"}
    outcomes = [Outcome("one", "deja_vu", {}, cell), Outcome("two", "exposure", {}, None, "it failed")]
    runner = PlainRunner(store)
    scores = runner.run(Score(outcomes, store))
    runner.publish(recipe, scores, runner.run(Report(recipe, run_of(recipe), scores, outcomes)), {}, cells=ended)
    return store


def sweep_of(store: Store) -> RunRecord:
    return next(run for run in (read_run(store, entry["run"]) for entry in list_runs(store).entries) if run.audit == "sweep")


def reseal_sweep(store: Store, replaced: Mapping[str, bytes] = MappingProxyType({}), **changes: Any) -> None:
    run = sweep_of(store)
    for path, content in replaced.items():
        store.publish(path, content)
    published = run.published | {path: hashlib.sha256(content).hexdigest() for path, content in replaced.items()}
    content = run.model_dump() | {"published": published} | changes
    store.publish(f"runs/{run.run}/manifest.json", json.dumps(sealed(content)).encode())


def test_verify_checks_a_sweep_against_its_cells(
    swept: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["verify", "--store", swept.uri]) == 0, capsys.readouterr()
    run = sweep_of(swept)
    page, table = f"runs/{run.run}/report.html", results_path("sweep", "sweep", run.run)
    cell = next(one for one in run.cells.values() if one is not None)
    manifest = swept.published(f"runs/{cell}/manifest.json") or b""
    other = pq.read_table(pa.BufferReader(swept.published(table) or b"")).slice(1)
    written = pa.BufferOutputStream()
    pq.write_table(other, written)
    calm = (swept.published(page) or b"").replace(b"it failed", b"it was fine")
    findings = [finding.model_dump() for finding in run.findings]
    says = run.verdict.model_dump() if run.verdict is not None else {}
    attacks: dict[str, tuple[dict[str, bytes], dict[str, Any]]] = {
        "its verdict differs from its scores": ({}, {"verdict": says | {"word": "bounded"}}),
        "its findings differ from its scores": ({}, {"findings": [findings[0] | {"value": 2.0}, *findings[1:]]}),
        f"{table} differs from its scores": ({table: written.getvalue().to_pybytes()}, {}),
        f"{page} differs from its report": ({page: calm}, {}),
        "its cells do not match its recipe and scores": ({}, {"cells": {"one": cell, "three": None}}),
        "has been published again since": ({}, {"cell_digests": {cell: "0" * 64}}),
        "among its published files": ({}, {"published": {table: run.published[table]}}),
        "names no scores or no report": ({}, {"artifacts": {}}),
        "cannot be checked": ({}, {"scores": None}),
    }
    for expected, (replaced, changes) in attacks.items():
        before = {path: swept.published(path) or b"" for path in (*replaced, f"runs/{run.run}/manifest.json")}
        reseal_sweep(swept, replaced, **changes)
        write_row(swept)
        assert main(["verify", run.run, "--store", swept.uri]) == (3 if expected == "cannot be checked" else 2), expected
        captured = capsys.readouterr()
        assert expected in captured.out + captured.err
        for path, content in before.items():
            swept.publish(path, content)
        write_row(swept)
    assert main(["verify", run.run, "--store", swept.uri]) == 0
    swept.publish(f"runs/{cell}/manifest.json", json.dumps(sealed(json.loads(manifest) | {"seconds": 9.0})).encode())
    assert main(["verify", run.run, "--store", swept.uri]) == 2
    assert "its cell one" in capsys.readouterr().out


def test_sweep_scores_read_the_scores_of_cells_and_not_their_manifests(store: Store) -> None:
    cell = only_run(store)
    false = [cell.findings[0].model_copy(update={"value": 0.9}), *cell.findings[1:]]
    forged = cell.model_copy(update={"findings": false})
    runner = PlainRunner(store)
    scores = runner.run(Score([Outcome("one", "deja_vu", {}, forged)], store))
    assert scores.content["sweep"]["value"].to_pylist()[0] == 0.2


def test_a_sweep_without_the_manifest_of_a_cell_is_still_shown_and_its_page_checked(
    swept: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    run = sweep_of(swept)
    page = f"runs/{run.run}/report.html"
    reseal_sweep(swept, {page: (swept.published(page) or b"").replace(b"it failed", b"it was fine")})
    (cell,) = filter(None, run.cells.values())
    swept.drop(f"runs/{cell}/manifest.json")
    assert main(["verify", run.run, "--store", swept.uri]) == 2
    said = capsys.readouterr().out
    assert f"{page} differs from its report" in said
    assert "(cell one)" in said
    assert main(["show", run.run, "--store", swept.uri]) == 0


def test_check_run_reports_missing_scores_except_for_a_sweep(store: Store) -> None:
    run = only_run(store)
    unscored = run.model_copy(update={"scores": None})
    assert "names no scores" in [problem.problem for problem in check_run(store, unscored, {})]


def write_row(store: Store) -> None:
    found = list_runs(store)
    assert not found.damaged, found.damaged
    publish_rows(store, found.entries)


def only_run(store: Store) -> RunRecord:
    (entry,) = list_runs(store).entries
    return read_run(store, entry["run"])


def problems(store: Store) -> str:
    run = only_run(store)
    found = [*check_artifacts(store, [SCORES, REPORT]), *check_run(store, run, rows_of(list_runs(store).entries))]
    return "; ".join(f"{problem.what}: {problem.problem}" for problem in found)


def reseal(store: Store, **changes: Any) -> None:
    """As somebody does who knows how digests are made."""
    run = only_run(store)
    store.publish(f"runs/{run.run}/manifest.json", json.dumps(sealed(run.model_dump() | changes)).encode())


def test_an_intact_run_has_no_problems(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert problems(store) == ""
    assert main(["verify", "--store", store.uri]) == 0
    assert "2 artifacts and 1 run in" in capsys.readouterr().out


def test_verify_names_every_change_of_a_run(store: Store) -> None:
    run = only_run(store)
    page, table = f"runs/{run.run}/report.html", results_path("summary", "deja_vu", run.run)
    content = store.published(page)
    assert content is not None
    store.publish(page, b"<p>innocent</p>")
    assert f"{page}: has been changed since it was published" in problems(store)
    store.drop(page)
    assert f"{page}: is missing" in problems(store)
    store.publish(page, content)

    said = pq.read_table(pa.BufferReader(store.published(table)))
    kinder = said.set_column(said.column_names.index("value"), "value", pa.array([0.0, 0.0]))
    write_table(kinder, SUMMARY, Path(store.uri).parent / "kinder.parquet")
    store.publish(table, Path(store.uri).parent / "kinder.parquet")
    assert f"{table}: has been changed" in problems(store)
    reseal(store, published={**run.published, table: file_digest(Path(store.uri).parent / "kinder.parquet")})
    assert f"{table} differs from its scores" in problems(store)
    reseal(store, published=run.published)
    write_table(said, SUMMARY, Path(store.uri).parent / "kinder.parquet", metadata={"x": "y"})

    whole = run.model_dump()
    findings = [finding | {"value": 0.0, "p_value": 0.9} for finding in whole["findings"]]
    reseal(store, findings=findings)
    assert "its findings differ from its scores" in problems(store)
    reseal(store, findings=whole["findings"], verdict=whole["verdict"] | {"sentence": "All is well."})
    assert "its verdict differs from its scores" in problems(store)
    reseal(store, verdict=whole["verdict"], recipe=RECIPE | {"pairs": 7})
    assert "its recipe differs from the recipe with which it was published" in problems(store)
    reseal(store, recipe=RECIPE | {"pairs": 7}, asks=asks_digest(RECIPE | {"pairs": 7}))
    assert "its name does not match its recipe" in problems(store)
    reseal(store, recipe=RECIPE | {"title": "another"}, asks=run.asks)
    assert "its title differs from its recipe's" in problems(store)
    reseal(store, recipe=RECIPE | {"title": "another"}, title="another", asks=run.asks)
    assert "its recipe differs from that of its report" in problems(store)
    reseal(store, recipe=RECIPE, title="t", report="/tmp/kinder.html")
    assert f"it names /tmp/kinder.html in place of {page}" in problems(store)
    reseal(store, report=run.report, results={"summary": "s3://elsewhere/part-0.parquet"})
    assert f"it names s3://elsewhere/part-0.parquet in place of {table}" in problems(store)


def test_verify_names_every_change_of_a_row_of_the_table_of_runs(store: Store) -> None:
    run = only_run(store)
    path, file = results_path("runs", "deja_vu", run.run), Path(store.uri).parent / "row.parquet"
    said = pq.read_table(pa.BufferReader(store.published(path)))
    for name, other in {
        "verdict": "bounded",
        "sentence": "All is well.",
        "current": False,
        "title": "x",
        "scores": "x/y",
    }.items():
        pq.write_table(said.set_column(said.column_names.index(name), name, pa.array([other])), file)
        store.publish(path, file)
        assert f"{path}: does not match run {run.run}" in problems(store), name
    pq.write_table(said.drop_columns(["sentence"]), file)
    store.publish(path, file)
    assert f"{path}: does not match run" in problems(store)
    store.publish(path, b"PAR1")
    assert f"{path}: is not a readable Parquet file" in problems(store)
    store.drop(path)
    assert "so the tables of its run are not counted" in problems(store)
    write_row(store)
    assert problems(store) == ""


def test_verify_names_a_changed_index_and_does_not_trust_it(
    store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "SETTLING_SECONDS", -60.0)
    run = only_run(store)
    changed = json.loads(store.published(INDEX) or b"")
    changed["entries"][run.run]["verdict"]["sentence"] = "All is well."
    store.publish(INDEX, json.dumps(changed).encode())
    assert list_runs(store).entries[0]["verdict"]["sentence"] == "All is well."
    write_row(store)  # as it says there
    assert main(["verify", run.run, "--store", store.uri]) == 2
    said = capsys.readouterr().out
    assert f"{INDEX}: does not match the runs" in said
    assert f"part-0.parquet: does not match run {run.run}" in said


def test_verify_reports_a_manifest_changed_by_hand(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    run = only_run(store)
    text = (store.published(f"runs/{run.run}/manifest.json") or b"").replace(b'"value": 0.2', b'"value": 0.0')
    store.publish(f"runs/{run.run}/manifest.json", text)
    assert main(["verify", "--store", store.uri]) == 2
    assert "has been changed since it was written" in capsys.readouterr().out


def test_verify_reports_missing_recomputed_and_mismatched_artifacts(store: Store, tmp_path: Path) -> None:
    manifest = Path(store.uri) / "artifacts" / str(SCORES) / "manifest.json"
    said = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(sealed(said | {"spec": {"alpha": 0.9}})))
    assert "do not match its key" in problems(store)
    manifest.write_text(json.dumps(said))
    assert problems(store) == ""
    summary = store.artifacts.local_path(SCORES, "summary.parquet").read_bytes()
    store.artifacts.discard(SCORES)
    assert f"{SCORES}: no longer exists" in problems(store)
    with store.artifacts.write(SCORES, spec=SPEC, inputs=INPUTS, provenance={"version": 4}) as attempt:
        attempt.path("summary.parquet").write_bytes(summary)
        attempt.path("more.txt").write_text("another file")
    assert "recomputed with different content" in problems(store)
    with pytest.raises(ValueError, match="substring"):
        problems(store).index("findings")  # its numbers are the same


def test_verify_names_an_artifact_that_was_computed_from_another_attempt(store: Store) -> None:
    report = Ref("report", content_key("report", version=1, spec=OF_PAGE, inputs={"scores": SCORES.key}))
    for content, said in ((store.artifacts.manifest(SCORES).content, ""), ("c" * 32, "was computed from another score than")):
        store.artifacts.discard(report)
        made = {"version": 1, "reads": {SCORES.key: content}}
        with store.artifacts.write(report, spec=OF_PAGE, inputs={"scores": SCORES.key}, provenance=made) as attempt:
            attempt.path("report.html").write_text("<p>a page</p>")
        reseal(store, pins={name: pin.model_dump() for name, pin in pins_of(store, [SCORES, report]).items()})
        assert said in problems(store)
        assert bool(problems(store)) == bool(said)


def test_verify_names_facts_of_an_artifact_changed_after_the_run(store: Store) -> None:
    path = f"artifacts/{SCORES}/manifest.json"
    manifest = json.loads(store.published(path) or b"")
    changed = {name: value for name, value in manifest.items() if name != "digest"} | {"facts": {"steps_per_epoch": 1}}
    store.publish(path, json.dumps(sealed(changed) if "digest" in manifest else changed).encode())
    assert f"{SCORES}: has a manifest that has been changed since run" in problems(store)
    changed["facts"] = {**manifest["facts"], "worker": "another machine"}
    store.publish(path, json.dumps(sealed(changed) if "digest" in manifest else changed).encode())
    assert f"{SCORES}: has a manifest that has been changed since run" in problems(store)
    with_older_pins(store)  # which did not cover all of a manifest
    assert problems(store) == ""


@pytest.mark.parametrize(
    "change",
    [
        {"metrics": {"seconds": 1.0, "cpu_seconds": 1e9}}, {"finished": 1.0}, {"log": "logs/other.log"}, {"host": "elsewhere"},
        {"rounded": "0" * 32}, {"unknown": "field"}, {"sources": "0" * 32}, {"source": {"commit": "c", "dirty": False}},
        {"software": {"torch": "0"}}, {"units": 3},
    ],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
def test_verify_names_every_change_of_an_artifacts_manifest(store: Store, change: dict[str, Any]) -> None:
    path = f"artifacts/{SCORES}/manifest.json"
    manifest = json.loads(store.published(path) or b"")
    manifest.pop("digest")
    store.publish(path, json.dumps(sealed(manifest | change)).encode())
    assert f"{SCORES}: has a manifest that has been changed since run" in problems(store)


def with_older_pins(store: Store) -> None:
    """Publish the only run with pins of an earlier version, which do not cover whole manifests."""
    pins = only_run(store).pins.items()
    reseal(store, pins={ref: pin.model_dump(exclude={"sealed"}) for ref, pin in pins})


def test_verify_fails_for_empty_and_missing_stores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--store", str(tmp_path / "none")]) == 2
    assert "there is no store" in capsys.readouterr().err
    Store(str(tmp_path / "empty")).check_writable()
    assert main(["verify", "--store", str(tmp_path / "empty")]) == 2
    assert "is empty" in capsys.readouterr().err


def test_verify_reports_a_manifest_without_pins_or_digest(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    run = only_run(store)
    older = {key: run.model_dump()[key] for key in ("run", "audit", "title", "recipe", "finished", "findings", "artifacts")}
    store.publish(f"runs/{run.run}/manifest.json", json.dumps(older).encode())
    assert main(["verify", "--store", store.uri]) == 2
    assert "without pins or digest, so nothing of it can be checked" in capsys.readouterr().out
    forged = run.model_dump() | {"verdict": {"word": "bounded", "sentence": "All is well.", "explanation": ""}, "pins": {}}
    forged.pop("digest")
    store.publish(f"runs/{run.run}/manifest.json", json.dumps(forged).encode())
    assert main(["verify", "--store", store.uri]) == 2


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, Path]:
    found = {}
    for name in ("mine", "other"):
        private = Ed25519PrivateKey.generate()
        found[name], found[f"{name}.pub"] = tmp_path / f"{name}.pem", tmp_path / f"{name}.pub"
        found[name].write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        found[name].chmod(0o600)
        found[f"{name}.pub"].write_bytes(private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return found


def test_a_signature_holds_for_one_run_and_one_key(
    store: Store, keys: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trusted = ["verify", "--store", store.uri, "--trust", str(keys["mine.pub"])]
    assert main(trusted) == 2
    assert "is not signed" in capsys.readouterr().out
    run = only_run(store).run
    assert main(["sign", run, "--key", str(keys["mine"]), "--store", store.uri]) == 0
    assert main(trusted) == 0
    assert "signed with the key" in capsys.readouterr().out
    there = tmp_path / "another machine"
    shutil.copytree(store.uri, there)
    assert main(["verify", run, "--store", str(there), "--trust", str(keys["mine.pub"])]) == 0
    assert main([*trusted[:-1], str(keys["other.pub"])]) == 2
    assert "signed with another key" in capsys.readouterr().out
    reseal(store, title="another")  # whoever may write there can make all agree, but for the signature
    assert main(trusted) == 2
    assert "differs from what was signed" in capsys.readouterr().out
    store.publish(f"runs/{run}/signature.json", b"{}")
    problem, other = check_signature(store, only_run(store), keys["mine.pub"])
    assert "has a signature that cannot be read" in problem.problem
    assert (other.what, other.problem.split(",")[0]) == (f"runs/{run}/attestation.json", "does not match the run")


def test_unusable_keys_and_keys_readable_by_others_are_refused(store: Store, keys: dict[str, Path], tmp_path: Path) -> None:
    record = only_run(store)
    run = record.run
    wrong = tmp_path / "wrong.pem"
    wrong.write_bytes(
        ec.generate_private_key(ec.SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    wrong.chmod(0o600)
    with pytest.raises(ValueError, match="a private key that is not Ed25519"):
        sign(store, run, wrong)
    with pytest.raises(ValueError, match="no private key"):
        wrong.write_bytes(b"x")
        sign(store, run, wrong)
    with pytest.raises(ValueError, match="cannot read"):
        sign(store, run, tmp_path / "none.pem")
    keys["mine"].chmod(0o644)
    with pytest.raises(ValueError, match="others can read the key"):
        sign(store, run, keys["mine"])
    for path in (tmp_path / "none.pub", wrong):
        with pytest.raises(ValueError, match="public key"):
            list(check_signature(store, record, path))


def test_a_damaged_run_is_not_signed(store: Store, keys: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    run = only_run(store)
    store.publish(f"runs/{run.run}/report.html", b"<p>innocent</p>")
    assert main(["sign", run.run, "--key", str(keys["mine"]), "--store", store.uri]) == 2
    assert "nothing was signed" in capsys.readouterr().err
    assert store.published(f"runs/{run.run}/signature.json") is None


def said_by(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    assert main(list(command)) == 2
    caught = capsys.readouterr()
    return caught.out + caught.err


def test_verify_and_sign_refuse_manifests_with_missing_pages_or_pins(
    store: Store, keys: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run = only_run(store)
    pins = {name: pin.model_dump() for name, pin in run.pins.items()}
    page = f"runs/{run.run}/report.html"
    reseal(store, published={})
    store.publish(page, b"<p>innocent</p>")
    assert "does not name" in problems(store)
    signing = ("sign", run.run, "--key", str(keys["mine"]), "--store", store.uri)
    assert "nothing was signed" in said_by(capsys, *signing)
    reseal(store, published={**run.published, page: hashlib.sha256(b"<p>innocent</p>").hexdigest()})
    assert f"{page} differs from its report" in problems(store)
    assert "nothing was signed" in said_by(capsys, *signing)
    store.publish(page, b"<p>a page</p>")
    reseal(store, published=run.published, pins={str(SCORES): pins[str(SCORES)]})
    assert f"does not pin {REPORT}" in problems(store)
    reseal(store, pins={str(REPORT): pins[str(REPORT)]})
    assert f"does not pin {SCORES}" in problems(store)
    reseal(store, pins=pins)
    assert problems(store) == ""


@pytest.mark.parametrize("recorded", ["as an input", "as read"])
def test_verify_and_sign_refuse_runs_with_missing_or_unpinned_inputs(
    store: Store, keys: dict[str, Path], recorded: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = only_run(store)
    shard = Ref("decode", content_key("decode", version=1, spec={}, inputs={"source": "b" * 32}))
    with store.artifacts.write(shard, spec={}, inputs={"source": "b" * 32}, provenance={"version": 1}) as attempt:
        attempt.path("x").write_bytes(b"x")
    content = store.artifacts.manifest(shard).content
    inputs, reads = (
        ({"scores": [{"of": SCORES.key}, shard.key]}, {}) if recorded == "as an input" else ({}, {shard.key: content})
    )
    report = Ref("report", content_key("report", version=1, spec=OF_PAGE, inputs=inputs))
    with store.artifacts.write(report, spec=OF_PAGE, inputs=inputs, provenance={"version": 1, "reads": reads}) as attempt:
        attempt.path("report.html").write_text("<p>a page</p>")
    pins = {name: pin.model_dump() for name, pin in pins_of(store, [SCORES, report, shard]).items()}
    named = {"scores": str(SCORES), "report": str(report), "shard": str(shard)}
    reseal(store, pins=pins, artifacts=named)
    assert problems(store) == ""
    unpinned = {name: pin for name, pin in pins.items() if name != str(shard)}
    without = {name: ref for name, ref in named.items() if name != "shard"}
    reseal(store, pins=unpinned, artifacts=without)
    assert f"does not pin {shard}" in problems(store)
    store.artifacts.discard(shard)
    shutil.rmtree(Path(store.root) / shard.folder, ignore_errors=True)
    assert f"rests on artifact {shard.key}, which {report} read and which no longer exists" in problems(store)
    signing = ("sign", run.run, "--key", str(keys["mine"]), "--store", store.uri)
    assert "nothing was signed" in said_by(capsys, *signing)


def test_a_signature_covers_the_provenance_of_artifacts(
    store: Store, keys: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    with_older_pins(store)
    run = only_run(store).run
    assert main(["sign", run, "--key", str(keys["mine"]), "--store", store.uri]) == 0
    path = f"artifacts/{SCORES}/manifest.json"
    manifest = json.loads(store.published(path) or b"")
    manifest.pop("digest", None)
    store.publish(path, json.dumps(sealed(manifest | {"source": {"commit": "of somebody else", "dirty": False}})).encode())
    assert main(["verify", "--store", store.uri]) == 0
    trusted = ("verify", "--store", store.uri, "--trust", str(keys["mine.pub"]))
    assert f"{SCORES}: records code, commit, software, spec or reads that differ" in said_by(capsys, *trusted)


def test_a_signed_run_that_is_rolled_back_whole_still_verifies(
    store: Store, keys: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """docs/security.md states this limit: a signature has no date that would reveal an earlier state of the store."""
    run = only_run(store).run
    signing = ["sign", run, "--key", str(keys["mine"]), "--store", store.uri]
    trusted = ["verify", "--store", store.uri, "--trust", str(keys["mine.pub"])]
    assert main(signing) == 0
    shutil.copytree(store.root, tmp_path / "earlier")
    store.artifacts.discard(REPORT)
    with store.artifacts.write(REPORT, spec=OF_PAGE, inputs={"scores": SCORES.key}, provenance={"version": 1}) as attempt:
        attempt.path("report.html").write_text("<p>a later page</p>")
    page = f"runs/{run}/report.html"
    store.publish(page, b"<p>a later page</p>")
    pins = {ref: pin.model_dump() for ref, pin in pins_of(store, [SCORES, REPORT]).items()}
    published = only_run(store).published | {page: hashlib.sha256(b"<p>a later page</p>").hexdigest()}
    reseal(store, pins=pins, published=published)
    assert main(trusted) == 2
    assert main(signing) == 0, capsys.readouterr()
    assert main(trusted) == 0
    shutil.rmtree(store.root)
    shutil.copytree(tmp_path / "earlier", store.root)
    assert main(trusted) == 0


def test_a_key_inside_the_store_is_not_trusted(
    store: Store, keys: dict[str, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = only_run(store).run
    assert main(["sign", run, "--key", str(keys["mine"]), "--store", store.uri]) == 0
    inside = Path(store.uri) / "public.pem"
    shutil.copy(keys["mine.pub"], inside)
    assert "lies in the store" in said_by(capsys, "verify", "--store", store.uri, "--trust", str(inside))
    shutil.rmtree(Path(store.uri) / "runs")
    trusted = ("verify", "--store", store.uri, "--trust", str(keys["mine.pub"]))
    assert "no finished run" in said_by(capsys, *trusted)


@pytest.mark.parametrize("place", ["results/manifest.json", "runs/{run}/extra/manifest.json", "{table}/manifest.json"])
def test_verify_reports_a_manifest_in_an_unexpected_place(
    store: Store, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = only_run(store).run
    table = results_path("summary", "deja_vu", run, 1)
    path = place.format(run=run, table=table)
    store.publish(path, store.published(results_path("summary", "deja_vu", run)) or b"")
    assert main(["verify", "--store", store.uri]) == 2
    assert f"{path}: belongs to no run" in capsys.readouterr().out


@pytest.mark.parametrize("folder", ["requests", "status", "logs", "resume"])
def test_verify_names_links_in_each_folder(
    store: Store, folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "elsewhere").mkdir()
    place = Path(store.root, folder)
    if place.exists():
        shutil.move(place, tmp_path / "elsewhere" / folder)
    place.symlink_to(tmp_path / "elsewhere")
    assert main(["verify", "--store", store.uri]) == 2
    assert f"{folder}: is a link" in capsys.readouterr().out


def test_verify_reports_a_recipe_that_has_no_canonical_json(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    run = only_run(store)
    content = json.dumps(sealed(run.model_dump() | {"recipe": RECIPE | {"pairs": float("inf")}}))
    store.publish(f"runs/{run.run}/manifest.json", content.encode())
    assert main(["verify", "--store", store.uri]) == 2
    assert "its recipe cannot be read" in capsys.readouterr().out


def test_verify_names_files_that_belong_to_no_run(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    """Readers of the tables would count every part file."""
    run = only_run(store)
    table = results_path("summary", "deja_vu", run.run)
    more = (
        results_path("summary", "deja_vu", run.run, 1),
        results_path("summary", "deja_vu", "0" * 12),
        f"runs/{run.run}/x.html",
    )
    for path in more:
        store.publish(path, store.published(table) or b"")
        assert f"{path}: belongs to no run" in said_by(capsys, "verify", "--store", store.uri)
        store.drop(path)
    assert main(["verify", "--store", store.uri]) == 0
    shutil.rmtree(Path(store.uri) / "runs")
    assert f"{table}: belongs to no run" in said_by(capsys, "verify", "--store", store.uri)


@pytest.mark.parametrize(
    "what", ["artifacts", "runs", "results", "runs/RUN", "runs/RUN/manifest.json", f"artifacts/{SCORES}"]
)
def test_links_in_a_store_are_reported_and_stop_gc(
    store: Store, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """verify names the link, and gc deletes nothing."""
    path = what.replace("RUN", only_run(store).run)
    place, away = Path(store.uri) / path, tmp_path / "away"
    place.rename(away)
    place.symlink_to(away)
    assert f"{path}: is a link" in said_by(capsys, "verify", "--store", store.uri)
    before = sorted(file for file in tmp_path.rglob("*") if file.is_file())
    assert "is a link" in said_by(capsys, "gc", "--days", "0", "--delete", "--store", store.uri)
    assert sorted(file for file in tmp_path.rglob("*") if file.is_file()) == before


def test_gc_deletes_a_run_without_a_manifest_only_on_request(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    run = only_run(store).run
    store.drop(f"runs/{run}/manifest.json")
    collecting = ("gc", "--days", "0", "--delete", "--store", store.uri)
    assert f"give it up with memlib gc --lost {run}" in said_by(capsys, *collecting)
    assert store.published(results_path("summary", "deja_vu", run)) is not None
    assert main([*collecting, "--lost", run]) == 0
    assert store.published(results_path("summary", "deja_vu", run)) is None


def test_verify_reports_a_manifest_that_names_a_key_twice(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    run = only_run(store)
    path = f"runs/{run.run}/manifest.json"
    text = (store.published(path) or b"").decode()
    store.publish(path, ('{"verdict": {"word": "bounded", "sentence": "All is well."}, ' + text[1:]).encode())
    assert "it names a key twice" in said_by(capsys, "verify", "--store", store.uri)


def test_verify_names_a_folder_in_place_of_a_file(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    place = Path(store.uri) / f"artifacts/{SCORES}"
    (file,) = place.glob("*/summary.parquet")
    file.unlink()
    file.mkdir()
    assert "file summary.parquet is a folder" in said_by(capsys, "verify", "--store", store.uri)


def test_a_page_that_was_changed_is_not_opened(
    store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda uri: opened.append(uri) or True)
    run = only_run(store).run
    assert main(["open", run, "--store", store.uri]) == 0
    store.publish(f"runs/{run}/report.html", b"<p>innocent</p>")
    assert "has been changed since it was published" in said_by(capsys, "open", run, "--store", store.uri)
    assert len(opened) == 1


def test_a_page_with_a_script_is_not_opened_even_if_it_was_sealed(
    store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webbrowser.open", lambda address: pytest.fail("opened"))
    run, page = only_run(store), b"<p>a page</p><script>alert(1)</script>"
    path = f"runs/{run.run}/report.html"
    store.publish(path, page)
    reseal(store, published=run.published | {path: hashlib.sha256(page).hexdigest()})
    assert main(["open", run.run, "--store", store.uri]) == 2
    assert "holds <script>, as no page of memlib does, and is not opened" in " ".join(capsys.readouterr().err.split())


def test_gc_of_a_lost_run_deletes_its_figures(store: Store) -> None:
    run = only_run(store).run
    store.publish(f"runs/{run}/figures/a.svg", b"<svg/>")
    assert main(["gc", "--days", "0", "--delete", "--keep", run, "--store", store.uri]) == 0
    assert store.published(f"runs/{run}/figures/a.svg") is not None
    store.drop(f"runs/{run}/manifest.json")
    assert main(["gc", "--days", "0", "--delete", "--lost", run, "--store", store.uri]) == 0
    assert store.published(f"runs/{run}/figures/a.svg") is None


def test_the_address_of_a_store_with_a_secret_is_refused_and_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("runs", "verify", "gc"):
        said = said_by(capsys, command, "--store", "s3://AKIAKEY:hush-hush@bucket/prefix")
        assert "contains credentials" in said
        assert "hush" not in said


def forge_erasure(store: Store, *, record: dict[str, Any] | None) -> str:
    """Delete scores and page of the only run as an erasure would, with a record of it or without; return the run's id."""
    run = only_run(store)
    page = f"runs/{run.run}/report.html"
    said = {"run": run.run, "when": 1.0, "artifacts": [str(SCORES)], "files": [page]}
    store.publish(f"runs/{run.run}/erased.json", json.dumps(sealed(said)).encode())
    if record is not None:
        forged = {"when": 1.0, "subject": "0" * 64, "artifacts": [str(SCORES)], "paths": [page], "complete": True}
        store.publish("erased/0123456789ab.json", json.dumps(sealed(forged | record)).encode())
    store.artifacts.discard(SCORES)
    store.drop(page)
    return run.run


@pytest.mark.parametrize(
    ("record", "said", "outcome"),
    [
        (None, "was erased, which no record in erased/ confirms", "changed"),
        ({"mac": "0" * 64}, "was not written by this store, or has been changed", "changed"),
        ({"artifacts": [], "paths": []}, "was erased, which no record in erased/ confirms", "changed"),
        ({}, "is of an earlier memlib, which did not vouch for such records", "unchecked"),
    ],
    ids=["no record", "another store's", "of something else", "as an earlier memlib wrote it"],
)
def test_a_forged_erasure_excuses_nothing(
    store: Store, keys: dict[str, Path], record: dict[str, Any] | None, said: str, outcome: str
) -> None:
    run = only_run(store).run
    sign(store, run, keys["mine"])
    forge_erasure(store, record=record)
    assert memlib.verify(store=store.uri).outcome == outcome
    assert said in problems_of(store)
    assert "no longer exists" in problems_of(store, trust=keys["mine.pub"])  # an absence that is excused by nobody
    assert f"runs/{run}/report.html: is missing" in problems_of(store, trust=keys["mine.pub"])


def problems_of(store: Store, **options: Any) -> str:
    return "\n".join(f"{one.what}: {one.problem}" for one in memlib.verify(store=store.uri, **options).problems)


@pytest.mark.parametrize("content", [b"not JSON", b"{}", b""])
def test_a_damaged_record_is_a_finding_and_does_not_end_the_verification(store: Store, content: bytes) -> None:
    run = only_run(store).run
    store.publish("erased/0123456789ab.json", content)
    store.publish("deleted/0123456789ab.json", content)
    store.publish(f"runs/{run}/erased.json", content)
    store.publish(f"runs/{run}/report.html", b"<p>another</p>")
    found = problems_of(store)
    for path in ("erased/0123456789ab.json", "deleted/0123456789ab.json", f"runs/{run}/erased.json"):
        assert f"{path}: cannot be read" in found
    assert f"runs/{run}/report.html: has been changed since it was published" in found


def test_an_empty_erasure_is_named_and_all_else_is_checked(store: Store) -> None:
    run = only_run(store).run
    store.publish(f"runs/{run}/erased.json", json.dumps(sealed({"run": run, "when": 1.0})).encode())
    assert "says that a part of the run was erased, but all of it is there" in problems_of(store)
    reseal(store, verdict={"word": "bounded", "sentence": "It was not.", "explanation": ""})
    assert "its verdict differs from its scores" in problems_of(store)


def test_a_folder_in_place_of_a_manifest_is_named(store: Store) -> None:
    for ref in (SCORES, REPORT):
        manifest = Path(store.root, ref.folder, "manifest.json")
        content = manifest.read_bytes()
        manifest.unlink()
        manifest.mkdir()
        assert f"{ref}: the manifest of artifact {ref} is damaged" in problems_of(store)
        manifest.rmdir()
        manifest.write_bytes(content)
        assert problems_of(store) == ""


def test_the_row_of_a_run_is_compared_byte_by_byte(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers such as DuckDB filter by the statistics in a file's footer, which its values do not show."""
    run = only_run(store).run
    path = results_path("runs", "deja_vu", run)
    content = store.published(path) or b""
    asks = only_run(store).asks.encode()
    place = content.rindex(asks)  # the largest value of the column, in the footer
    forged = content[:place] + b"0" * len(asks) + content[place + len(asks) :]
    assert pq.read_table(pa.BufferReader(forged)).equals(pq.read_table(pa.BufferReader(content)))
    store.publish(path, forged)
    assert f"{path}: has the values of run {run}, but other bytes" in problems_of(store)
    other = pq.ParquetFile(pa.BufferReader(content)).read()
    written = pa.BufferOutputStream()
    pq.write_table(other, written, compression="gzip")  # as another version of Arrow might
    store.publish(path, written.getvalue().to_pybytes())
    assert f"{path}: has the values of run {run}, but other bytes" in problems_of(store)
    own = checks.row_bytes
    monkeypatch.setattr(
        checks, "row_bytes", lambda row: own(row).replace(b"parquet-cpp-arrow version", b"parquet-cpp-arrow_version")
    )
    assert problems_of(store) == ""
    store.publish(path, forged)
    assert f"{path}: has the values of run {run}, but statistics of others" in problems_of(store)


def test_parts_are_compared_by_their_bytes_before_they_are_decoded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    run = only_run(store).run
    part = results_path("summary", "deja_vu", run)
    monkeypatch.setattr(checks, "read_bytes", lambda content: pytest.fail("decoded"))
    for path in (part, results_path("units", "deja_vu", run)):
        store.publish(path, many_rows())
        assert f"{path}: has been changed since it was published" in problems_of(store)
    row = results_path("runs", "deja_vu", run)
    store.publish(row, many_rows())
    assert f"{row}: does not match run {run}" in problems_of(store)


def many_rows() -> bytes:
    """Return a small Parquet file with many rows."""
    written = pa.BufferOutputStream()
    pq.write_table(pa.table({"run": pa.array(["x" * 1000] * 10_000)}), written, compression="zstd")
    content = bytes(written.getvalue().to_pybytes())
    assert len(content) < 10_000
    return content


@pytest.mark.parametrize(
    "path",
    [
        f"artifacts/{SCORES}/manifest.json", "runs/RUN/manifest.json", "runs/RUN/report.html", "runs/RUN/signature.json",
        "runs/RUN/erased.json", "results/table=summary/audit=deja_vu/run=RUN/part-0.parquet",
        "results/table=runs/audit=deja_vu/run=RUN/part-0.parquet", "index/runs.json", "erased/0123456789ab.json", "pipe",
        f"artifacts/{SCORES}/ATTEMPT/summary.parquet", "requests/0123456789ab.json",
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_verify_names_anything_but_a_regular_file_and_never_waits_for_it(store: Store, path: str, kind: str) -> None:
    attempt = store.artifacts.manifest(SCORES).attempt
    place = Path(store.root, path.replace("RUN", only_run(store).run).replace("ATTEMPT", attempt))
    place.parent.mkdir(exist_ok=True)
    place.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "link":
        place.symlink_to("/dev/zero")
    else:
        place.mkdir()
        (place / "inner").touch()
    assert memlib.verify(store=store.uri).outcome != "unchanged"
    (place / "inner").unlink() if kind == "folder" else None


@pytest.mark.parametrize(
    "path",
    [
        "report.html", "index/other.html", "plans/p.json", "settings.json", "requests/x.txt", "resume/x/y", "tmp/x", "logs/x.log",
        "artifacts/note.txt", f"artifacts/{SCORES}/note.txt", f"artifacts/{SCORES}/ATTEMPT/more.parquet",
        f"artifacts/{SCORES}/former.json", "runs/RUN/more.html", "results/table=summary/more.parquet", "erased/note",
    ],
)  # fmt: skip
def test_files_that_memlib_did_not_write_are_named(store: Store, path: str) -> None:
    path = path.replace("RUN", only_run(store).run).replace("ATTEMPT", store.artifacts.manifest(SCORES).attempt)
    place = Path(store.root, path)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("more")
    what = [one.what for one in memlib.verify(store=store.uri).problems]
    assert any(path == one or path.startswith(f"{one}/") for one in what), what


def test_other_fields_of_a_signature_are_checked(store: Store, keys: dict[str, Path]) -> None:
    run = only_run(store).run
    sign(store, run, keys["mine"])
    path = f"runs/{run}/signature.json"
    content = json.loads(store.published(path) or b"")
    assert problems_of(store, trust=keys["mine.pub"]) == ""
    for change in ({"algorithm": "none"}, {"run": "0" * 12}, {"manifest": "0" * 64}, {"by": "somebody"}):
        store.publish(path, json.dumps(content | change).encode())
        assert "has a signature whose other fields were changed" in problems_of(store, trust=keys["mine.pub"])


def test_the_reference_libraries_of_dsse_and_in_toto_read_and_check_a_signed_run(store: Store, keys: dict[str, Path]) -> None:
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from google.protobuf import json_format
    from in_toto_attestation.v1.statement import Statement
    from in_toto_attestation.v1.statement_pb2 import Statement as Message
    from securesystemslib.dsse import Envelope
    from securesystemslib.exceptions import VerificationError
    from securesystemslib.signer import SSlibKey

    run = only_run(store)
    sign(store, run.run, keys["mine"])
    mine, theirs = (
        SSlibKey.from_crypto(load_pem_public_key(keys[name].read_bytes()), keyid=shown_key(public_key(keys["mine.pub"])))
        for name in ("mine.pub", "other.pub")
    )
    content = json.loads(store.published(f"runs/{run.run}/attestation.json") or b"")
    envelope = Envelope.from_dict(json.loads(json.dumps(content)))
    assert list(envelope.verify([mine], 1)) == [mine.keyid]
    with pytest.raises(VerificationError):
        envelope.verify([theirs], 1)
    envelope.payload = envelope.payload.replace(b'"sha256":"', b'"sha256":"0')
    with pytest.raises(VerificationError):
        envelope.verify([mine], 1)
    statement = Statement.copy_from_pb(json_format.ParseDict(json.loads(Envelope.from_dict(content).payload), Message()))
    statement.validate()
    for subject in statement.pb.subject:
        assert file_digest(Path(store.root, subject.name)) == subject.digest["sha256"]
    assert {subject.name for subject in statement.pb.subject} == {f"runs/{run.run}/manifest.json", *run.published}
    assert statement.pb.predicate["run"] == run.run


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"payload": "e30="}, "has fields that were changed"),
        ({"payloadType": "text/plain"}, "has fields that were changed"),
        ({"more": 1}, "has fields that were changed"),
        ({"signatures": [{"keyid": "", "sig": "AAAA"}]}, "does not match the run"),
        ({"signatures": []}, "cannot be read"),
        ({"signatures": {"sig": 1}}, "cannot be read"),
    ],
)
def test_a_changed_envelope_is_named(store: Store, keys: dict[str, Path], change: dict[str, Any], said: str) -> None:
    run = only_run(store).run
    sign(store, run, keys["mine"])
    path = f"runs/{run}/attestation.json"
    store.publish(path, json.dumps(json.loads(store.published(path) or b"") | change).encode())
    assert f"{path}: {said}" in problems_of(store, trust=keys["mine.pub"])


def test_a_run_of_an_audit_of_a_later_memlib_is_named_and_not_read(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    reseal(store, audit="deja_later")
    run = list_runs(store).entries[0]["run"]
    assert "is of an audit that this memlib does not have (deja_later)" in problems_of(store)
    for command in (["show", run], ["check", run, "--fail-on", "shown"], ["card", run]):
        assert main([*command, "--store", store.uri]) == 2
        assert "memlib: this memlib has no audit 'deja-later'; a later memlib may have it" in capsys.readouterr().err


@pytest.mark.parametrize("data", [{}, {"source": {}}, {"source": []}, {"source": None}, []])
def test_a_recipe_without_its_source_is_a_finding(store: Store, data: Any) -> None:
    reseal(store, recipe={**only_run(store).recipe, "data": data})
    assert "its recipe cannot be read: its data are not described as in a recipe" in problems_of(store)
