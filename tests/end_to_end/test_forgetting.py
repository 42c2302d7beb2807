"""The forgetting audit through the command line: mixes trained here, external weights and outputs, refusals."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch
from harness import Memlib, newest, published, says_one_thing

from memlib.models.classifiers import build_classifier
from memlib.specs import ClassifierSpec
from memlib.training.augment import prepare

RECIPE = """
audit: forgetting
title: tiny digits
data:
  source:
    kind: joined
    parts:
      plain: {source: {kind: digits}}
      scanner: {source: {kind: digits}, change: {invert: true, blur: 0.4}}
  image_size: 8
  channels: 1
sets:
  query: {part: plain, per_class: 12}
  known: {part: plain, per_class: 12}
  withheld: {part: plain, per_class: 12}
  provider: {part: plain, per_class: 12}
  calibration: {part: scanner, per_class: 12}
model: {architecture: mlp, widths: [64]}
training:
  objective: {kind: supervised}
  epochs: 40
  batch_size: 20
  augment: null
  optimizer: {learning_rate: 0.003, weight_decay: 0, warmup_epochs: 0, schedule: constant, betas: [0.5, 0.999]}
seeds: 2
targets:
  half: {mix: {calibration: 1, known: 1, provider: 0.5, query: 0.5}}
verdict: {models: 4, alpha: 0.05, retained_mix: {calibration: 1, query: 1}}
score: {replicates: 100, resamples: 50, permutations: 999}
report: {gallery: 3}
"""

OWN = """
from torch import nn
from memlib.training.augment import normalize

class Own(nn.Sequential):
    def forward(self, x):
        return super().forward(normalize(x))

def build():
    return Own(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
"""


def wrote(folder: Path, memlib: Memlib, text: str = RECIPE) -> Memlib:
    (folder / "recipe.yaml").write_text(text)
    return replace(memlib, recipe=folder / "recipe.yaml", audit_name="forgetting")


@pytest.fixture(scope="module")
def audited(memlib: Memlib, tmp_path_factory: pytest.TempPathFactory) -> tuple[Memlib, Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("forgetting")
    mine = wrote(folder, memlib)
    return mine, folder / "store", mine.audit(folder / "store")


def test_an_audit_of_mixes_trains_tests_and_publishes(audited: tuple[Memlib, Path, dict[str, Any]]) -> None:
    mine, store, manifest = audited
    says_one_thing(mine, store, manifest)
    tables = published(store, manifest)
    assert tables.keys() == {"summary", "curves", "units", "examples"}
    assert tables["examples"].num_rows == 2 * 360
    assert set(tables["examples"]["role"].to_pylist()) == {"query", "known", "withheld"}
    assert set(tables["units"]["group"].to_pylist()) == {"target", "null", "retained"}
    head = tables["summary"].to_pylist()[0]
    assert head["metric"] == "trace"
    assert json.loads(head["params"])["target"] == "half"
    assert head["sentence"] == manifest["verdict"]["sentence"]
    members = tables["examples"]["member"].to_pylist()
    assert members.count(True) == 2 * (60 + 120)
    page = Path(manifest["report"]).read_text()
    assert "The same test on models with known training data" in page
    assert page.count("<svg") >= 1


def test_supplied_weights_and_outputs_show_a_smaller_trace_after_unlearning(
    audited: tuple[Memlib, Path, dict[str, Any]], tmp_path: Path
) -> None:
    """Supply weights of the query model, trained on D_Q, and outputs of a calibration model, which was not."""
    mine, store, manifest = audited
    states = {}
    for name in ("query", "calibration"):
        file = next(store.glob(f"artifacts/{manifest['artifacts'][f'{name} 0 to 1']}/*/nets.safetensors"))
        states[name] = {key: nets[0].clone() for key, nets in safetensors.torch.load_file(file).items()}
    safetensors.torch.save_file(states["query"], tmp_path / "query.safetensors")
    examples = published(store, manifest)["examples"].to_pylist()[:360]
    index_file = next(store.glob(f"artifacts/{manifest['artifacts']['shard']}/*/index.parquet"))
    index = {row["example_id"]: row["row"] for row in pq.read_table(index_file).to_pylist()}
    images = np.load(index_file.with_name("images.npy"))
    net = build_classifier(ClassifierSpec(architecture="mlp", widths=(64,)), (1, 8, 8), 10, seed=0)
    net.load_state_dict(states["calibration"])
    rows = [index[e["example_id"]] for e in examples]
    with torch.inference_mode():
        scores = torch.softmax(net.eval()(prepare(images[rows], torch.device("cpu"))), dim=1).double().numpy()
    ids = [e["example_id"] for e in examples]
    labels = [e["label"] for e in examples]
    pq.write_table(pa.table({"example_id": ids, "scores": scores.round(4).tolist(), "y": labels}), tmp_path / "after.parquet")
    (tmp_path / "mymodel.py").write_text(OWN)
    before = f"{{trained: {{model: 'mymodel:build', weights: '{tmp_path / 'query.safetensors'}'}}}}"
    after = f"{{outputs: {{path: '{tmp_path / 'after.parquet'}', label_column: y}}}}"
    settings = (f"targets={{before: {before}, after: {after}}}", "compare=[before, after]")
    manifest = mine.audit(store, *settings, PYTHONPATH=str(tmp_path))
    assert not [name for name in manifest["computed"] if name.startswith("train")]
    rows_ = [{**row, "params": json.loads(row["params"])} for row in published(store, manifest)["summary"].to_pylist()]
    traces = {row["params"]["target"]: row for row in rows_ if row["metric"] == "trace"}
    units = published(store, manifest)["units"].to_pylist()
    same = {(u["target"], u["query_model"], u["calibration_model"]): u["rho"] for u in units}
    assert same["before", 0, 0] == pytest.approx(0, abs=0.05)
    assert same["after", 0, 0] == pytest.approx(1)
    assert (traces["before"]["verdict"], traces["before"]["value"] > 0) == ("shown", True)
    assert traces["after"]["verdict"] != "bounded"  # the known examples were not in it: no control
    assert traces["after"]["value"] < traces["before"]["value"] / 2  # a chance finding of .05 would be no error
    assert next(row for row in rows_ if row["metric"] == "rho_change")["ci_low"] > 0
    assert "An owner who knows which examples were withheld can forge them" in manifest["verdict"]["explanation"]
    assert "From before to after" in Path(manifest["report"]).read_text()


ALL = "sets.query.per_class=null"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["sets.calibration.part=plane"], "the parts are plain, scanner"),
        (
            [
                "data.source.parts.scanner.change=null",
                ALL,
                "sets.provider.part=scanner",
                "sets.provider.per_class=1",
                "sets.calibration.per_class=null",
            ],
            "copies of D_Q were removed",
        ),
        (["targets={t: {outputs: {path: nowhere.parquet}}}"], "nowhere.parquet does not exist"),
    ],
)
def test_wrong_sets_and_missing_outputs_end_with_a_short_error(
    audited: tuple[Memlib, Path, dict[str, Any]], tmp_path: Path, settings: list[str], said: str
) -> None:
    mine, _, _ = audited
    assert said in mine.refusal(tmp_path / "store", *settings)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda scores: np.eye(10)[scores.argmax(1)], "decisions, not confidences"),
        (lambda scores: np.full_like(scores, 0.1), "is the same for 360 of 360 examples"),
        (lambda scores: scores[np.random.default_rng(0).permutation(len(scores))], "bear no relation to the examples"),
    ],
)
def test_uninformative_target_outputs_are_refused_with_a_short_error(
    audited: tuple[Memlib, Path, dict[str, Any]], tmp_path: Path, made: Any, said: str
) -> None:
    mine, store, manifest = audited
    examples = published(store, manifest)["examples"].to_pylist()[:360]
    rng = np.random.default_rng(1)
    scores = np.array([np.eye(10)[e["label"]] * e["confidence"] + rng.random(10) * 0.01 for e in examples])
    scores = made(scores / scores.sum(1, keepdims=True))
    ids = [e["example_id"] for e in examples]
    pq.write_table(pa.table({"example_id": ids, "scores": scores.tolist()}), tmp_path / "given.parquet")
    assert said in mine.refusal(store, f"targets={{t: {{outputs: {{path: '{tmp_path / 'given.parquet'}'}}}}}}")


def test_the_newest_run_is_listed(audited: tuple[Memlib, Path, dict[str, Any]]) -> None:
    mine, store, _ = audited
    assert newest(store)["audit"] == "forgetting"
    assert "forgetting" in mine.call("runs", "--store", str(store)).stdout
