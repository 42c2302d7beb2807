"""A person is erased from a table, from images and from texts: afterwards no file of the store holds a trace of her."""

import base64
import csv
import io
import json
import random
import re
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from harness import INFLUENCE
from PIL import Image

import memlib
from flows.cli.app import main
from memlib.errors import RunError, UserError
from memlib.running import erasing
from memlib.running.erasing import Asked, erase, survey
from memlib.running.verification import verified
from memlib.runs.erasures import erased_part, erasures
from memlib.runs.index import list_runs, read_run
from memlib.store import Ref, Store
from memlib.store.permissions import user_folder
from memlib.tables import INDEX, write_table
from tests.memlib.audits.membership.small_tables import COLUMNS, rows_of

HER = "zoe-quill-7319"
PICTURE = (250, 3, 177)  # colour of her picture; all others are grey
PERSON = Asked(HER, is_person=True)
TRAINING = {"objective": {"kind": "supervised"}, "epochs": 1, "batch_size": 10, "augment": None}


def table_recipe(folder: Path) -> dict[str, Any]:
    """Membership in a table with two rows per person."""
    with (folder / "rows.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["person", "id", *COLUMNS])
        for number, row in enumerate(rows_of(40)):
            writer.writerow([HER if number // 2 == 4 else f"p{number // 2}", f"visit{number}", *row])
    source = {"kind": "table", "path": str(folder / "rows.csv"), "label_column": "y", "columns": ["a", "b"]}
    return {
        "audit": "membership", "title": "table", "data": {"source": source | {"id_column": "id", "person_column": "person"}},
        "split": {"group": {"pattern": "^(.+)/"}}, "model": {"architecture": "mlp", "widths": [4]}, "training": TRAINING,
        "shadows": {"count": 4}, "score": {"redraws": 999, "attacks": ["loss"], "headline": "loss"},
    }  # fmt: skip


def image_recipe(folder: Path) -> dict[str, Any]:
    """Self-influence of pictures, one of which has a colour of its own; the page shows pictures."""
    for number in range(12):
        name = f"{HER}_1" if number == 3 else f"q{number}_1"
        path = folder / "pictures" / ("even" if number % 2 == 0 else "odd") / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), PICTURE if number == 3 else (20 * number, 20 * number, 20 * number)).save(path)
    return {
        "audit": "self_influence", "title": "pictures", "split": {"group": {"pattern": "([^/]+)_1"}},
        "data": {"source": {"kind": "image_folder", "path": str(folder / "pictures")}, "image_size": 8},
        "model": {"architecture": "mlp", "widths": [4]}, "training": TRAINING, "influence": {"checkpoints": 1},
        "report": {"gallery": 12},
    }  # fmt: skip


def text_recipe(folder: Path) -> dict[str, Any]:
    """Membership of documents, one of which holds her name."""
    draw = random.Random(0)
    lines = ["".join(draw.choices("abcdefgh ", k=30)) for _ in range(24)]
    lines[7] = f"from {HER} about nothing"
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    return {
        "audit": "membership", "title": "texts", "data": {"source": {"kind": "jsonl", "path": str(folder / "texts.jsonl")}, "window": 16},
        "model": {"architecture": "gru", "width": 4, "layers": 1, "embedding": 4}, "shadows": {"count": 0},
        "training": TRAINING | {"objective": {"kind": "language"}},
        "score": {"attacks": ["loss"], "headline": "loss", "redraws": 999},
    }  # fmt: skip


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A folder with sources and a store in which four audits have run, and the ids of the runs."""
    folder = tmp_path_factory.mktemp("erasing")
    recipes = {
        "table": table_recipe(folder),
        "images": image_recipe(folder),
        "texts": text_recipe(folder),
        "other": INFLUENCE,
    }
    runs = {name: memlib.run(recipe, store=str(folder / "store"), quiet=True).id for name, recipe in recipes.items()}
    return folder, runs


@pytest.fixture
def again(ran: tuple[Path, dict[str, str]], tmp_path: Path) -> tuple[Store, dict[str, str]]:
    """A copy of the store, and the ids of its runs."""
    shutil.copytree(ran[0] / "store", tmp_path / "store")
    return Store(str(tmp_path / "store")), ran[1]


pytestmark = pytest.mark.filterwarnings("ignore")  # of recipes that are too small to show anything


def is_hers(picture: np.ndarray) -> bool:
    """Return whether a quarter of the pixels of a picture, or of one of several pictures, has the colour of hers."""
    if picture.ndim < 3 or picture.shape[-1] != 3:
        return False
    close = (np.abs(picture.astype(int) - np.array(PICTURE)) <= 8).all(axis=-1)
    return bool((close.reshape(-1, *close.shape[-2:]).mean(axis=(1, 2)) > 0.25).any())


def traces(folder: Path) -> list[str]:
    """Return the files below a folder that hold her name or her picture, in any form in which memlib stores them."""
    return sorted({str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and any(_found(path))})


def _found(path: Path) -> Iterator[bool]:
    content = path.read_bytes()
    yield HER.encode() in content
    if path.suffix == ".parquet":
        yield HER in repr(pq.ParquetFile(path).read().to_pylist()) or HER in repr(pq.ParquetFile(path).schema_arrow.metadata)
    if path.suffix == ".npy":
        array = np.load(path)
        yield HER in repr(array.tolist()) or is_hers(array)
        if (path.parent / "vocabulary.json").exists() and array.dtype.kind in "iu":
            symbols = json.loads((path.parent / "vocabulary.json").read_text())
            yield HER in "".join(symbols[number] for number in array.reshape(-1).tolist() if 0 <= number < len(symbols))
    if path.suffix == ".npz":
        yield any(HER in repr(values.tolist()) for values in np.load(path).values())
    if path.suffix == ".json":
        yield HER in json.dumps(json.loads(content), ensure_ascii=False)
    if path.suffix == ".png":
        yield is_hers(np.asarray(Image.open(path).convert("RGB")))
    if path.suffix in (".html", ".svg"):
        for encoded in re.findall(rb"data:image/(?:png|jpeg|webp);base64,([A-Za-z0-9+/=]+)", content):
            yield is_hers(np.asarray(Image.open(io.BytesIO(base64.b64decode(encoded))).convert("RGB")))


def kinds(found: erasing.Survey) -> set[str]:
    return {item.kind for item in found.items}


def test_erasing_a_person_leaves_no_trace_of_her_in_the_store(again: tuple[Store, dict[str, str]]) -> None:
    store, runs = again
    before = traces(Path(store.root))
    for place in (
        "artifacts/decode",
        "artifacts/documents",
        "artifacts/hold_out",
        "results/table=units",
        f"runs/{runs['images']}/report",
    ):
        assert any(path.startswith(place) for path in before), place  # so that the search can find something
    log = f"logs/decode/{'a' * 32}/{'b' * 12}.log"
    store.publish(log, f"read {HER}".encode())
    store.publish("requests/0123456789ab.json", json.dumps({"recipe": {"title": HER}}).encode())
    store.publish("status/0123456789ab.json", json.dumps({"run": "0123456789ab", "state": "failed", "updated": 1.0}).encode())
    listed = survey(store, PERSON)
    assert traces(Path(store.root)) == sorted([*before, log, "requests/0123456789ab.json"])  # a list changes nothing
    assert {run.run for run in listed.runs} == set(runs.values()) - {runs["other"]}
    assert kinds(listed) >= {"rows", "computed", "model", "page", "table", "log", "request", "index"}
    assert not listed.unknown
    assert erase(store, PERSON, models=True).items == listed.items
    assert traces(Path(store.root)) == []
    assert not [ref for ref in store.listing("artifacts") if ref.split("/")[1] in ("documents", "train_subsets")]
    assert verified(store, runs["other"]).outcome == "unchanged"
    for name in ("table", "images", "texts"):
        found = verified(store, runs[name])
        assert (found.outcome, [problem.what for problem in found.problems]) == ("unchecked", [f"run {runs[name]}"])
        assert found.problems[0].problem.startswith("erased in part on 20")
        assert memlib.open(runs[name], store=store.uri).tables["summary"].num_rows > 0


def test_models_are_deleted_only_on_request_and_are_named_later(again: tuple[Store, dict[str, str]]) -> None:
    store, _ = again
    listed = survey(store, PERSON)
    models = {item.path for item in listed.items if item.kind == "model"}
    erase(store, PERSON, models=False)
    kept = {
        path.rpartition("/")[0].rpartition("/")[0] for path in store.listing("artifacts") if path.endswith(".safetensors")
    }
    assert models <= kept
    later = survey(store, PERSON)  # her rows are gone, but the record names what was computed from them
    assert {item.path for item in later.items if item.kind == "model"} == models
    erase(store, PERSON, models=True)
    assert not any(store.listing(path) for path in models)
    assert survey(store, PERSON).items == []


def test_an_unknown_id_is_a_mistake_and_ids_are_compared_as_a_whole(again: tuple[Store, dict[str, str]]) -> None:
    store, runs = again
    for name in ("zoe-qui", "zoe-quill-73", "visit", "p"):
        with pytest.raises(UserError, match="nothing in"):
            survey(store, Asked(name, is_person=True))
    with pytest.raises(UserError, match="concerns the example 'p1'"):
        survey(store, Asked("p1", is_person=False))  # a person, not an example
    assert survey(store, Asked("p1", is_person=True)).examples == {"p1/visit2", "p1/visit3"}
    assert survey(store, Asked("p1/visit2", is_person=True)).examples == {"p1/visit2", "p1/visit3"}
    alone = survey(store, Asked("p1/visit2", is_person=False))
    assert alone.examples == {"p1/visit2"}
    assert [run.run for run in alone.runs] == [runs["table"]]


class Killed(BaseException):
    """The end of a process."""


@pytest.mark.parametrize("steps", [0, 4, 14])
def test_an_interrupted_erasure_is_reported_and_completed(
    again: tuple[Store, dict[str, str]], steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, runs = again
    whole, done = erasing._delete, 0

    def delete(*arguments: Any) -> None:
        nonlocal done
        if done == steps:
            raise Killed
        done += 1
        whole(*arguments)

    monkeypatch.setattr(erasing, "_delete", delete)
    with pytest.raises(Killed):
        erase(store, PERSON, models=True)
    monkeypatch.setattr(erasing, "_delete", whole)
    assert {verified(store, runs[name]).outcome for name in ("table", "images", "texts")} == {"unchecked"}
    assert any("interrupted" in problem.problem for problem in verified(store).problems)
    erase(store, PERSON, models=True)
    assert traces(Path(store.root)) == []
    assert not any("interrupted" in problem.problem for problem in verified(store).problems)
    assert verified(store, runs["other"]).outcome == "unchanged"


def test_a_changed_file_of_an_erased_run_is_still_reported_as_changed(again: tuple[Store, dict[str, str]]) -> None:
    store, runs = again
    erase(store, PERSON, models=False)
    path = next(path for path in store.listing("results/table=curves") if runs["images"] in path)
    store.publish(path, b"something else")
    found = verified(store, runs["images"])
    assert found.outcome == "changed"
    assert found.changed == {path}


def test_manifests_that_name_her_are_replaced_and_lose_their_signature(
    again: tuple[Store, dict[str, str]], tmp_path: Path
) -> None:
    store, _ = again
    recipe = INFLUENCE | {"title": f"about {HER}"}
    run = memlib.run(recipe, store=store.uri, quiet=True).id
    store.publish(f"runs/{run}/signature.json", b"{}")
    erase(store, PERSON, models=True)
    assert traces(Path(store.root)) == []
    found = read_run(store, run)
    assert (found.title, found.recipe["title"]) == ("about [erased]", "about [erased]")
    assert [entry["title"] for entry in list_runs(store).entries if entry["run"] == run] == ["about [erased]"]
    assert store.published(f"runs/{run}/signature.json") is None
    assert verified(store, run).outcome == "unchecked"
    assert main(["resume", run, "--store", store.uri]) == 2


def test_nothing_is_erased_while_a_run_is_under_way(again: tuple[Store, dict[str, str]]) -> None:
    store, _ = again
    note = {"run": "0123456789ab", "audit": "membership", "title": "t", "started": 1.0, "host": "elsewhere", "recipe": {}}
    store.publish("requests/0123456789ab.json", json.dumps(note).encode())
    before = store.listing("artifacts")
    with pytest.raises(RunError, match="run 0123456789ab is under way"):
        erase(store, PERSON, models=True)
    assert store.listing("artifacts") == before
    assert not erasures(store)


def test_unsearchable_artifacts_are_listed_as_unknown(again: tuple[Store, dict[str, str]]) -> None:
    store, runs = again
    lost, foreign, child = Ref("decode", "a" * 32), Ref("decode", "b" * 32), Ref("split", "c" * 32)
    for ref, name, inputs in ((lost, "index.json", {}), (foreign, "index.xyz", {}), (child, "fit.json", {"shard": "d" * 32})):
        with store.artifacts.write(ref, inputs=inputs) as attempt:
            attempt.path(name).write_text("{}")
    store.publish(f"artifacts/{lost}/manifest.json", b"{")
    found = survey(store, PERSON)
    assert {item.path: item.note for item in found.unknown} == {
        f"artifacts/{lost}": "its manifest cannot be read",
        f"artifacts/{foreign}": "file index.xyz is in a format that is not searched",
        f"artifacts/{child}": f"it was computed from artifact {'d' * 32}, which no longer exists",
    }
    erase(store, PERSON, models=True)
    assert store.artifacts.has(foreign)
    assert verified(store, runs["other"]).outcome == "unchanged"


def test_a_run_again_remakes_what_is_missing_and_warns_while_the_source_holds_her(
    again: tuple[Store, dict[str, str]], tmp_path: Path
) -> None:
    store, runs = again
    recipe = image_recipe(tmp_path)
    erase(store, PERSON, models=True)
    with pytest.warns(UserWarning, match="still holds examples that memlib forget has erased"):
        assert memlib.run(recipe, store=store.uri, quiet=True).id == runs["images"]
    assert erased_part(store, runs["images"]) is None
    assert verified(store, runs["images"]).outcome == "unchanged"
    erase(store, PERSON, models=True)
    (tmp_path / "pictures" / "odd" / f"{HER}_1.png").unlink()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*still holds")
        without = memlib.run(recipe, store=store.uri, quiet=True)
    assert without.id != runs["images"]
    assert verified(store, without.id).outcome == "unchanged"
    assert traces(Path(store.root)) == []


def test_on_a_remote_store_copies_in_the_cache_are_deleted_too(tmp_path: Path) -> None:
    fsspec.filesystem("memory").store.clear()
    fsspec.filesystem("memory").pseudo_dirs[:] = [""]
    cache, store = tmp_path / "cache", Store("memory://bucket/store", cache=str(tmp_path / "cache"))
    empty = {column.name: [] if column.name in ("boxes", "content") else None for column in INDEX.columns}
    index = pa.Table.from_pylist([empty | {"example_id": f"{HER}/1", "row": 0, "label": 0}], schema=INDEX.arrow)
    shard, model, other = Ref("decode", "a" * 32), Ref("train", "b" * 32), Ref("train", "c" * 32)
    with store.artifacts.write(shard, spec={"source": {"person_column": "person"}}, inputs={"source": "0" * 64}) as attempt:
        write_table(index, INDEX, attempt.path("index.parquet"))
    for ref, inputs in ((model, {"data": {"shard": shard.key}}), (other, {})):
        with store.artifacts.write(ref, inputs=inputs) as attempt:
            attempt.path("epoch-00001.safetensors").write_bytes(bytes(8) + ref.key.encode())
    page = user_folder("cache") / "defects" / "1.log"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(f"unreadable: {HER}/1.png")
    copies = {
        store.artifacts.local_path(ref, name).name for ref in (shard, model) for name in store.artifacts.manifest(ref).files
    }
    assert copies <= {path.name for path in cache.iterdir()}
    found = erase(store, PERSON, models=True)
    assert {(item.kind, item.path) for item in found.items} == {
        ("rows", shard.folder), ("model", model.folder), ("copy", str(page)),
    }  # fmt: skip
    assert copies.isdisjoint(path.name for path in cache.iterdir())
    assert (store.artifacts.has(shard), store.artifacts.has(model), store.artifacts.has(other)) == (False, False, True)
    assert not page.exists()


def test_an_erased_class_that_is_offered_again_with_one_picture_more_is_noticed(tmp_path: Path) -> None:
    recipe, store = image_recipe(tmp_path), str(tmp_path / "store")
    memlib.run(recipe, store=store, quiet=True)
    found = memlib.forget(person="odd", store=store, delete=True, models=True)
    assert {name.split("/")[0] for name in found.examples} == {"odd"}
    Image.new("RGB", (8, 8), (9, 9, 9)).save(tmp_path / "pictures/odd/q99_1.png")
    with pytest.warns(UserWarning, match="still holds examples that memlib forget has erased"):
        memlib.run(recipe, store=store, quiet=True)


def test_a_person_whose_id_is_stored_in_another_form_is_erased(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = table_recipe(tmp_path)
    rows = tmp_path / "rows.csv"
    rows.write_text(rows.read_text().replace(HER, "Zoe\u0308 Quill ").replace("p3,", "zoe-quill,"))
    store = str(tmp_path / "store")
    memlib.run(recipe, store=store, quiet=True)
    assert main(["forget", "--person", "ZOË QUILL", "--store", store]) == 0
    assert "written nearly the same, and not meant unless you name them: zoe-quill" in capsys.readouterr().out
    with pytest.raises(
        ValueError, match=r"nothing in .* concerns the person 'zoe.quill'; did you mean 'Zo.+ or 'zoe-quill'\?"
    ):
        memlib.forget(person="zoe.quill", store=store)
    found = memlib.forget(person="zoë quill", store=store, delete=True, models=True)
    assert sorted(found.examples) == ["Zoe\u0308 Quill/visit8", "Zoe\u0308 Quill/visit9"]
    assert not [path for path in Path(store).rglob("*") if path.is_file() and b"Zoe\xcc\x88 Quill" in path.read_bytes()]
    with pytest.warns(UserWarning, match="still holds examples that memlib forget has erased"):
        memlib.run(recipe, store=store, quiet=True)
