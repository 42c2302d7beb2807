"""A finished audit is published again, and an audit is planned, without Prefect, PyTorch or a server."""

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fsspec
import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from harness import INFLUENCE

from flows.cli.app import main
from memlib.audits import AUDITS
from memlib.audits.arrangement import body_of
from memlib.pipeline.stage import CellRequest
from memlib.recipes.files import load_recipe, validate
from memlib.running.cells import finished_cells
from memlib.running.finished import finished, has_server
from memlib.running.runners import PlainRunner
from memlib.runs.index import list_runs, read_run
from memlib.runs.records import RunRecord
from memlib.specs import Resources
from memlib.store import Store
from memlib.store.local import Local
from memlib.store.records import sealed

LOADED = """
import contextlib, io, json, sys
from flows.cli.app import main
for arguments in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        status = main(arguments)
    heavy = {"torch", "prefect", "ray", "scipy.stats", "matplotlib", "faiss", "sklearn"} & set(sys.modules)
    print(json.dumps([status, sorted(heavy), printed.getvalue()]))
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A recipe, and a store in which it has run."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "moons.yaml").write_text(yaml.safe_dump(INFLUENCE))
    audit = AUDITS["self-influence"]
    spec = validate(audit.recipe, load_recipe(str(folder / "moons.yaml"))[0])
    body_of(audit)(PlainRunner(Store(str(folder / "store"))), spec)
    return folder / "moons.yaml", folder / "store"


@pytest.fixture
def again(ran: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Store]:
    """The same, to be spoilt."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ran[1], tmp_path / "store", symlinks=True)
    return ran[0], Store(str(tmp_path / "store"))


def publish_again(recipe: Path, store: Store, *settings: str) -> RunRecord | None:
    audit = AUDITS["self-influence"]
    spec = validate(audit.recipe, load_recipe(str(recipe), settings)[0])
    return finished(audit, spec, store, Resources(), say=lambda line: None)


def in_a_process(*commands: Sequence[str], folder: Path) -> list[tuple[int, set[str], str]]:
    """Carry out commands in one new process; return of each its exit status, the heavy libraries loaded so far, and its output."""
    called = [sys.executable, "-c", LOADED, json.dumps(commands)]
    done = subprocess.run(called, capture_output=True, text=True, cwd=folder, check=True)
    return [(status, set(heavy), printed) for status, heavy, printed in map(json.loads, done.stdout.splitlines())]


def test_requesting_a_finished_run_again_leaves_signed_files_unchanged(again: tuple[Path, Store]) -> None:
    recipe, store = again
    run = list_runs(store).entries[0]["run"]
    path = f"runs/{run}/manifest.json"
    older = json.loads(store.published(path) or b"")
    older["pins"] = {name: {**pin, "made": None} for name, pin in older["pins"].items()}  # as of an earlier version
    store.publish(path, json.dumps(sealed({key: value for key, value in older.items() if key != "digest"})).encode())
    before = store.published(path)
    lengths = [
        len(found.history) for found in (publish_again(recipe, store), publish_again(recipe, store)) if found is not None
    ]
    assert lengths[1] == lengths[0] + 1
    assert store.published(path) == before


def test_a_signed_run_remains_signed_when_requested_again(again: tuple[Path, Store], tmp_path: Path) -> None:
    recipe, store = again
    run = list_runs(store).entries[0]["run"]
    key, public = tmp_path / "key.pem", tmp_path / "public.pem"
    private = Ed25519PrivateKey.generate()
    key.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    key.chmod(0o600)
    public.write_bytes(private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    assert main(["sign", run, "--key", str(key), "--store", store.uri]) == 0
    assert publish_again(recipe, store) is not None
    assert store.published(f"runs/{run}/history.json")
    assert main(["verify", "--trust", str(public), "--store", store.uri]) == 0


def test_the_manifest_names_the_model(again: tuple[Path, Store]) -> None:
    run = read_run(again[1], list_runs(again[1]).entries[0]["run"])
    assert {name: ref.split("/")[0] for name, ref in run.artifacts.items()} == {
        "shard": "decode", "splits": "hold_out", "model": "train", "scores": "self_influence", "report": "report",
    }  # fmt: skip


def test_publishing_a_finished_run_again_computes_nothing_and_extends_its_history(again: tuple[Path, Store]) -> None:
    recipe, store = again
    before = list_runs(store).entries[0]["run"]
    found = publish_again(recipe, store)
    assert found is not None
    assert (found.run, found.computed, len(found.history)) == (before, [], 2)
    assert len(found.reused) == len(set(found.reused)) > 4
    assert not list(Path(store.root).glob("requests/*"))
    assert not list(Path(store.root).glob("status/*"))


def test_publishing_again_keeps_intact_files_and_restores_spoilt_ones(again: tuple[Path, Store]) -> None:
    recipe, store = again
    run = list_runs(store).entries[0]["run"]
    page, results = Path(store.root, "runs", run, "report.html"), Path(store.root, "results")
    files = {path: path.stat().st_mtime_ns for path in results.rglob("part-*.parquet") if "table=runs" not in str(path)}
    found = publish_again(recipe, store)
    assert found is not None
    assert {path: path.stat().st_mtime_ns for path in files} == files
    for spoil in (lambda: page.write_text("something else"), page.unlink, next(iter(files)).unlink):
        spoil()
        mended = publish_again(recipe, store)
        assert mended is not None
        assert hashlib.sha256(page.read_bytes()).hexdigest() == mended.published[f"runs/{run}/report.html"]
        assert all(path.exists() for path in files)


def test_publishing_again_writes_the_row_of_a_run_that_was_killed_before_it(again: tuple[Path, Store]) -> None:
    recipe, store = again
    (row,) = Path(store.root).glob("results/table=runs/**/part-0.parquet")
    written = row.read_bytes()
    for spoil in (row.unlink, lambda: row.write_bytes(written[:-9]), lambda: row.write_bytes(b"")):
        spoil()
        assert publish_again(recipe, store) is not None
        assert row.read_bytes() == written


def test_publishing_again_removes_figures_of_an_earlier_page_but_no_signature(again: tuple[Path, Store]) -> None:
    recipe, store = again
    run = list_runs(store).entries[0]["run"]
    folder = Path(store.root, "runs", run)
    (folder / "report.html").unlink()  # so that it is published in full
    (folder / "figures/earlier.svg").write_text("<svg/>")
    (folder / "signature.json").write_text("{}")
    mended = publish_again(recipe, store)
    assert mended is not None
    left = {path.relative_to(store.root).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert left == {*mended.published, f"runs/{run}/manifest.json", f"runs/{run}/signature.json"} - {
        path for path in mended.published if path.startswith("results/")
    }


def test_publishing_a_finished_run_again_on_a_remote_store_takes_a_few_requests(
    ran: tuple[Path, Path], tmp_path: Path
) -> None:
    """For each artifact, fetch its manifest, a list of its files and only the content from which keys are made."""
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    memory.put(str(ran[1]) + "/", "/far/store", recursive=True)
    store = Store("memory://far/store", cache=str(tmp_path / "cache"))
    asked: list[tuple[str, str]] = []
    real = store.file_system

    class Counting:
        def __getattr__(self, name: str) -> Any:
            def call(*arguments: Any, **options: Any) -> Any:
                paths = arguments[0] if isinstance(arguments[0], list) else arguments[:1]
                asked.extend((name, str(path)) for path in paths)
                return getattr(real, name)(*arguments, **options)

            return call if name in ("cat_file", "cat", "get_file", "find", "info", "ls") else getattr(real, name)

    store.backend.file_system = Counting()  # type: ignore[attr-defined]
    found = publish_again(ran[0], store)
    assert found is not None
    artifacts = {path.split("/artifacts/")[1].split("/")[1] for _, path in asked if "/artifacts/" in path}
    assert len(artifacts) >= len(found.reused)
    of_artifacts = [entry for entry in asked if "/artifacts/" in entry[1]]
    fetched = {path.rpartition("/")[2] for name, path in of_artifacts if name == "get_file"}
    assert fetched <= {"splits.parquet", "history.parquet"}
    assert len(of_artifacts) <= 3 * len(found.reused)


def test_a_run_with_a_changed_title_is_not_published_without_a_new_page(again: tuple[Path, Store]) -> None:
    recipe, store = again
    assert publish_again(recipe, store, "title=another") is None  # the page has to be drawn


@pytest.mark.parametrize("settings", [("training.epochs=3",), ("data.source.num_examples=41",)])
def test_a_recipe_with_changed_settings_is_not_published_from_an_earlier_run(
    again: tuple[Path, Store], settings: tuple[str, ...]
) -> None:
    assert publish_again(*again, *settings) is None


@pytest.mark.parametrize("stage", ["decode", "hold_out", "train", "report"])
@pytest.mark.parametrize("fault", ["gone", "broken"])
def test_publish_again_declines_if_an_artifact_is_missing_or_damaged(
    again: tuple[Path, Store], stage: str, fault: str
) -> None:
    recipe, store = again
    manifest = next(Path(store.root, "artifacts").glob(f"**/{stage}/*/manifest.json"))
    manifest.unlink() if fault == "gone" else manifest.write_text("{")
    assert publish_again(recipe, store) is None
    assert not list(Path(store.root).glob("requests/*"))


def test_publish_again_declines_if_an_input_has_other_content(again: tuple[Path, Store]) -> None:
    recipe, store = again
    manifest = next(Path(store.root, "artifacts").glob("**/hold_out/*/manifest.json"))
    told: dict[str, Any] = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(told | {"content": "0" * 32}))
    assert publish_again(recipe, store) is None


def as_a_cell(recipe: Path, store: Store, *settings: str) -> RunRecord | None:
    audit = AUDITS["self-influence"]
    spec = validate(audit.recipe, load_recipe(str(recipe), settings)[0])
    other = spec.model_copy(update={"title": "never run", "seed": 7})
    cells = {"other": CellRequest(audit.name, other, {}), "mine": CellRequest(audit.name, spec, {})}
    return finished_cells(cells, store, Resources(), say=lambda line: None).get("mine")


def test_a_finished_cell_is_read_without_writing_to_the_store(
    again: tuple[Path, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, store = again
    files = {path: path.stat().st_mtime_ns for path in Path(store.root).rglob("*") if path.is_file()}
    opened: list[str] = []
    local = Local.local
    monkeypatch.setattr(Local, "local", lambda self, path, expected: opened.append(path) or local(self, path, expected))
    found = as_a_cell(recipe, store)
    assert found is not None
    assert {path.rpartition("/")[2] for path in opened} <= {
        "splits.parquet",
        "index.parquet",
        "history.parquet",
    }  # which a plan reads
    assert found.run == list_runs(store).entries[0]["run"]
    assert found.computed == []
    assert len(found.reused) > 4
    there = {path: path.stat().st_mtime_ns for path in Path(store.root).rglob("*") if path.is_file()}
    index = Path(store.root, "index", "runs.json")
    assert {**there, index: 0} == {**files, index: 0}


@pytest.mark.parametrize("stage", ["decode", "train", "report"])
@pytest.mark.parametrize("fault", ["gone", "broken", "changed"])
def test_a_cell_with_a_missing_broken_or_changed_artifact_is_run(again: tuple[Path, Store], stage: str, fault: str) -> None:
    recipe, store = again
    manifest = next(Path(store.root, "artifacts").glob(f"**/{stage}/*/manifest.json"))
    if fault == "gone":
        manifest.unlink()
    else:
        told: dict[str, Any] = json.loads(manifest.read_text())
        manifest.write_text("{" if fault == "broken" else json.dumps(sealed(told | {"content": "0" * 32})))
    expected_whole = fault == "changed" and stage == "report"  # nothing is made from it
    assert (as_a_cell(recipe, store) is not None) == expected_whole


def test_a_cell_without_its_page_is_run(again: tuple[Path, Store]) -> None:
    recipe, store = again
    next(Path(store.root, "runs").glob("*/report.html")).unlink()
    assert as_a_cell(recipe, store) is None
    assert as_a_cell(recipe, store, "title=another") is None


def test_plan_and_run_of_a_finished_audit_load_no_heavy_library_and_a_price_neither_prefect_nor_ray(
    again: tuple[Path, Store], tmp_path: Path
) -> None:
    recipe, store = again
    known = ("self-influence", "--recipe", str(recipe), "--store", str(store.root), "--json")
    new = [
        (
            "plan",
            str(load_recipe(name)[0]["audit"]).replace("_", "-"),
            "--recipe",
            name,
            "--store",
            str(tmp_path / f"new-{name}"),
        )
        for name in ("smoke", "exposure_smoke", "forgetting_smoke", "two_moons")
    ]
    planned, done, *others = in_a_process(("plan", *known), ("run", *known), *new, folder=tmp_path)
    assert planned[:2] == done[:2] == (0, set())
    assert all(part["hit"] for part in json.loads(planned[2])["parts"])
    assert json.loads(done[2])["computed"] == []
    assert len(others) == len(new)
    for command, (status, heavy, _) in zip(new, others, strict=True):
        assert status == 0, command
        assert not heavy & {"prefect", "ray"}, command  # a price counts operations of PyTorch


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("none", "", False),
        ("profiles.toml", 'active = "ephemeral"\n[profiles.ephemeral]\nPREFECT_SERVER_ALLOW_EPHEMERAL_MODE = "true"', False),
        ("profiles.toml", '[profiles.other]\nPREFECT_API_URL = "http://127.0.0.1:4200/api"', False),
        ("profiles.toml", 'active = "other"\n[profiles.other]\nPREFECT_API_URL = "http://127.0.0.1:4200/api"', True),
        ("profiles.toml", 'active = "local"', True),
        ("profiles.toml", "= broken", True),
        ("prefect.toml", '[api]\nurl = "http://127.0.0.1:4200/api"', True),
        (".env", "PREFECT_API_URL=http://127.0.0.1:4200/api", True),
        ("pyproject.toml", '[tool.prefect.api]\nurl = "http://127.0.0.1:4200/api"', True),
        ("pyproject.toml", "[project]", False),
    ],
)
def test_a_configured_server_shows_every_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, content: str, expected: bool
) -> None:
    for name in ("PREFECT_API_URL", "PREFECT_PROFILE", "PREFECT_PROFILES_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / file).write_text(content)
    assert has_server() is expected
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:4200/api")
    assert has_server()
