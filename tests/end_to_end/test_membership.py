"""The membership audit through the command line, on nets and estimators so small that each takes milliseconds."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness import Memlib, end_session, published, says_one_thing, wait_for

NETS = """
audit: membership
title: tiny digits
data: {source: {kind: digits}, image_size: 8, channels: 1}
split: {train_per_class: 25, held_out_per_class: 5}
model: {architecture: mlp, widths: [16]}
training:
  objective: {kind: supervised}
  epochs: 40
  batch_size: 25
  augment: null
  optimizer: {learning_rate: 0.005, weight_decay: 0, warmup_epochs: 0, schedule: constant}
shadows: {count: 20, chunk: 5}
score: {redraws: 999}
privacy: {epsilon: 8}
report: {gallery: 4}
"""
FORESTS = """
audit: membership
title: tiny forests
data: {source: {kind: breast_cancer}}
model: {kind: forest, trees: 10}
shadows: {count: 12, chunk: 4}
score: {redraws: 999}
"""
LARGE = NETS.replace("{architecture: mlp, widths: [16]}", "{architecture: four_block}").replace(
    "image_size: 8", "image_size: 128"
)


def wrote(folder: Path, text: str, memlib_: Memlib) -> Memlib:
    (folder / "recipe.yaml").write_text(text)
    return replace(memlib_, recipe=folder / "recipe.yaml", audit_name="membership")


@pytest.fixture(scope="module")
def nets(memlib: Memlib, tmp_path_factory: pytest.TempPathFactory) -> tuple[Memlib, Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("nets")
    tiny = wrote(folder, NETS, memlib)
    return tiny, folder / "store", tiny.audit(folder / "store")


def test_members_are_found_and_everything_is_published(nets: tuple[Memlib, Path, dict[str, Any]]) -> None:
    tiny, store, manifest = nets
    says_one_thing(tiny, store, manifest)
    head = manifest["findings"][0]
    assert (head["metric"], head["verdict"], head["conclusion"]) == ("auc", "shown", "shown")
    tables = published(store, manifest)
    assert tables["units"].num_rows == tables["examples"].num_rows == 250
    assert tables["models"].num_rows == 21
    page = Path(manifest["report"]).read_text()
    for heading in (
        "Attacks",
        "The examples with the highest scores",
        "Differential privacy",
        "Memorized examples",
        "The target among",
    ):
        assert heading in page
    assert oct(Path(manifest["report"]).stat().st_mode)[-3:] == "600"


@pytest.mark.slow
def test_more_shadows_reuse_the_trained_ones(nets: tuple[Memlib, Path, dict[str, Any]]) -> None:
    tiny, store, manifest = nets
    assert tiny.audit(store)["computed"] == []
    more = tiny.audit(store, "shadows.count=30")
    computed = [str(ref).partition("/")[0] for ref in more["computed"]]
    assert computed.count("train_subsets") == 2
    assert more["run"] != manifest["run"]


@pytest.mark.slow
def test_a_killed_run_keeps_its_finished_chunks(memlib: Memlib, tmp_path: Path) -> None:
    tiny = wrote(tmp_path, NETS, memlib)
    process = tiny.start(tmp_path / "store", "training.epochs=1500")
    try:
        finished = wait_for(lambda: list(tmp_path.glob("store/artifacts/train_subsets/*/manifest.json")), process=process)
        os.kill(process.pid, signal.SIGKILL)
    finally:
        end_session(process.pid)
    kept = {path: path.stat().st_mtime_ns for path in finished}
    tiny.audit_on_ray(tmp_path / "store", "training.epochs=1500")
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


@pytest.mark.slow
def test_audits_of_forests_and_large_nets_are_published(memlib: Memlib, tmp_path: Path) -> None:
    forests = wrote(tmp_path, FORESTS, memlib).audit(tmp_path / "store")
    assert forests["findings"][0]["metric"] == "auc"
    large = wrote(tmp_path, LARGE, memlib).audit(
        tmp_path / "store", "training.epochs=1", "shadows.count=4", "split.train_per_class=4", "training.batch_size=10"
    )
    assert sum(str(ref).startswith("train_subset/") for ref in large["computed"]) == 5
