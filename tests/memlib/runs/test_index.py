"""The list of runs is complete, whatever other files lie beside them, and a single file if nothing has changed."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from memlib.errors import RunError
from memlib.recipes.files import load_recipe
from memlib.runs import index
from memlib.runs.index import INDEX, data_name, list_runs, model_name, read_run, run_names
from memlib.runs.run import ListedRun, deciding
from memlib.store import Store
from memlib.store.records import sealed


def manifest(run: str, finished: float = 1.0, **more: Any) -> dict[str, Any]:
    finding = {"metric": "m", "params": "{}", "value": 1.0, "p_value": None, "verdict": None}
    return {"run": run, "audit": "exposure", "title": "t", "findings": [finding, finding], "finished": finished} | more


def put(store: Store, run: str, content: Any) -> None:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    store.publish(f"runs/{run}/manifest.json", data)


def test_list_runs_sorts_newest_first_and_names_unreadable_manifests(store: Store) -> None:
    put(store, "r1", manifest("r1", 1.0, artifacts={"scores": "score/a"}, computed=["score/a", "split/b"]))
    put(store, "r2", manifest("r2", 2.0))
    put(store, "foreign", {"name": "x"})
    put(store, "empty", b"")
    put(store, "copied", manifest("r1"))
    put(store, "deep", b"[" * 100_000)
    store.publish("runs/half/report.html", b"of a run that was killed before its manifest")
    store.publish("runs/notes.txt", b"mine")
    found = list_runs(store)
    assert [run["run"] for run in found.entries] == ["r2", "r1"]
    assert set(found.damaged) == {"foreign", "empty", "copied", "deep"}
    assert "copied and 3 more" in found.warning()
    assert sorted(map(str, index.refs_of(found.entries[1]))) == ["score/a", "split/b"]
    assert list_runs(store) == found
    assert read_run(store, "r1").findings[1].metric == "m"
    with pytest.raises(RunError, match="run empty cannot be read .it is not JSON"):
        read_run(store, "empty")
    with pytest.raises(RunError, match="has no manifest"):
        read_run(store, "half")
    assert {"r1", "r2", "half"} <= set(run_names(store))


def test_a_changed_manifest_is_noticed_by_its_digest(store: Store) -> None:
    put(store, "r1", sealed(manifest("r1")))
    assert [run["run"] for run in list_runs(store).entries] == ["r1"]
    put(store, "r1", sealed(manifest("r1")) | {"title": "another"})
    assert "has been changed since it was written" in list_runs(store).damaged["r1"]


def test_list_runs_reads_only_an_index_as_new_as_the_runs(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "SETTLING_SECONDS", -60.0)
    for number in range(3):
        put(store, f"r{number}", manifest(f"r{number}", number, artifacts={"scores": f"score/{number}"}))
    whole = list_runs(store)
    asked: list[str] = []
    reading = Store.published_together
    monkeypatch.setattr(Store, "published_together", lambda self, paths: asked.extend(paths) or reading(self, paths))
    assert list_runs(store) == whole
    assert asked == []
    put(store, "r1", manifest("r1", 7.5))  # published again
    store.drop("runs/r0")
    assert [(run["run"], run["finished"]) for run in list_runs(store).entries] == [("r1", 7.5), ("r2", 2)]
    assert asked == ["runs/r1/manifest.json"]


@pytest.mark.parametrize(
    "index",
    [
        b"",
        b"{",
        b"[]",
        b"[" * 100_000,
        b'{"format": 1}',
        b'{"format": 1, "refs": [], "entries": {"r1": {"refs": [5]}}}',
        b'{"format": 1, "refs": [], "entries": {"r1": {"mark": [1, 2.0], "problem": ["x"]}}}',
    ],
)
def test_a_damaged_or_missing_index_is_rebuilt(store: Store, index: bytes) -> None:
    put(store, "r1", manifest("r1"))
    whole = list_runs(store)
    store.publish(INDEX, index)
    assert list_runs(store) == whole
    store.drop("index")
    assert list_runs(store) == whole


def test_a_manifest_rewritten_just_before_the_index_is_read_again(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    put(store, "r1", manifest("r1", title="a"))
    list_runs(store)
    path = tmp_path / "runs/r1/manifest.json"
    before = path.stat().st_mtime_ns
    path.write_text(json.dumps(manifest("r1", title="b")))
    os.utime(path, ns=(before, before))  # within one tick of a coarse clock, and of the same size
    assert list_runs(store).entries[0]["title"] == "b"


def test_list_runs_does_not_wait_for_a_pipe_in_place_of_a_manifest(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    put(store, "r1", manifest("r1"))
    (tmp_path / "runs/r2").mkdir()
    os.mkfifo(tmp_path / "runs/r2/manifest.json")
    (tmp_path / "runs/r3").mkdir()
    (tmp_path / "runs/r3/manifest.json").symlink_to("/dev/zero")
    started = time.monotonic()
    assert [run["run"] for run in list_runs(store).entries] == ["r1"]
    with pytest.raises(RunError):
        read_run(store, "r2")
    with pytest.raises(RunError):
        read_run(store, "r3")
    assert time.monotonic() - started < 10


def test_an_index_of_an_earlier_version_is_read_and_completed_only_on_request(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "SETTLING_SECONDS", -60.0)
    for name in ("r1", "r2"):
        put(store, name, manifest(name, recipe={"data": {"source": {"kind": "digits"}}}))
    whole = list_runs(store)
    written = json.loads(store.published(INDEX) or b"")
    old = {
        "run",
        "audit",
        "title",
        "finished",
        "verdict",
        "findings",
        "ledger",
        "cells",
        "scores",
        "asks",
        "memlib",
        "refs",
        "mark",
    }
    entry = {name: value for name, value in written["entries"]["r1"].items() if name in old}
    entry["findings"] = [{name: entry["findings"][0][name] for name in ("metric", "params", "value", "p_value", "verdict")}]
    entry["ledger"] = {name: entry["ledger"][name] for name in ("data", "examples", "look", "planned")}
    written["entries"]["r1"] = entry
    store.publish(INDEX, json.dumps(written).encode())
    asked: list[str] = []
    reading = Store.published_together
    monkeypatch.setattr(Store, "published_together", lambda self, paths: asked.extend(paths) or reading(self, paths))
    found = {run["run"]: run for run in list_runs(store).entries}
    assert asked == []
    assert "subject" not in found["r1"]
    assert found["r2"].get("subject") == {"data": "digits", "model": ""}
    assert list_runs(store, described=True) == whole
    assert asked == ["runs/r1/manifest.json"]
    assert list_runs(store) == whole  # the index is complete now
    assert len(asked) == 1


def test_an_entry_holds_the_first_finding_the_strongest_test_of_each_family_and_the_look(store: Store) -> None:
    first = {"metric": "m", "params": "{}", "value": 1.0, "role": "estimate", "ci_low": 0.5, "ci_high": None}
    tests = [
        {"metric": name, "params": "{}", "role": "test", "family": family, "p_adjusted": p, "alpha": 0.05}
        for name, family, p in (("a", "f", 0.3), ("b", "f", 0.1), ("c", "g", 0.2), ("d", "f", 0.1))
    ]
    earlier = [{"run": "before", "audit": "exposure", "p_value": 0.5}]
    ledger = {"data": "d", "look": "r1", "earlier": earlier}
    put(store, "r1", manifest("r1", findings=[first, *tests], ledger=ledger))
    put(store, "r2", manifest("r2", findings=[first, *tests], cells={"one": "r1"}))
    by_run = {run["run"]: run for run in list_runs(store).entries}
    assert [row["metric"] for row in by_run["r1"]["findings"]] == ["m", "b", "c"]
    assert by_run["r1"]["findings"][0].get("ci_low") == 0.5
    assert (by_run["r1"]["ledger"].get("number"), by_run["r1"]["ledger"].get("is_paid_for")) == (2, False)
    assert deciding(by_run["r1"]) == by_run["r1"]["findings"][0]  # no test has its metric
    rows = [{**test, "metric": "m", "value": n} for n, test in enumerate(tests)]  # of several targets
    rows.append({**rows[0], "family": "classes", "p_adjusted": 1e-5, "value": 9})  # the same metric in another family
    put(store, "r3", manifest("r3", findings=rows))
    listed = ListedRun.of({run["run"]: run for run in list_runs(store).entries}["r3"])
    assert (listed.headline, listed.value) == ("m", 1)
    assert [row["metric"] for row in by_run["r2"]["findings"]] == ["m"]  # a sweep's cells have entries of their own


@pytest.mark.parametrize(
    ("recipe", "data", "model"),
    [
        ("smoke", "scenes", "small_resnet"),
        ("membership_mnist", "torchvision MNIST", "mlp"),
        ("membership_adult", "table adult.data.xz", "boosting"),
        ("exposure_fine_tuning", "topics", "my-model"),
        ("own_model", "image_folder images", "model.safetensors"),
        ("membership_own_model", "image_folder images", "model.safetensors"),
        ("membership_outputs", "table records.csv", "outputs.csv"),
        ("deja_vu_own_model", "image_folder images", "model.safetensors"),
        ("sweep_smoke", "", ""),
    ],
)
def test_shipped_recipes_name_their_data_and_model(recipe: str, data: str, model: str) -> None:
    content, _ = load_recipe(recipe)
    assert (data_name(content), model_name(content)) == (data, model)


def test_a_recipe_with_several_external_models_names_the_first_three() -> None:
    targets = {name: {"trained": {"weights": f"/home/me/{name}.pt"}} for name in "abcd"}
    assert model_name({"targets": targets}) == "a.pt, b.pt, c.pt, ..."


@pytest.mark.parametrize("value", [None, [], "text", 3, {"kind": []}, {"source": {"path": {"a": 1}}}, [[], None]])
def test_damaged_recipes_have_no_names(value: Any) -> None:
    keys = ("data", "model", "trained", "target", "targets", "encoders", "checkpoints")
    recipe = dict.fromkeys(keys, value)
    assert data_name(recipe) == ""
    assert model_name(recipe) == ""


def test_names_hold_no_control_characters() -> None:
    assert data_name({"data": {"source": {"kind": "csv", "path": "a/\u202eb\x1b.csv"}}}) == "csv \ufffdb\ufffd.csv"
