"""The linear probe at every checkpoint: its numbers, its change since the first one, and what the page says of them."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from memlib.audits import AUDITS
from memlib.audits.arrangement import body_of
from memlib.audits.deja_vu.findings import GAP_CHANGE, probe_rows, rows_through_training
from memlib.audits.deja_vu.gains import CHANGE
from memlib.audits.deja_vu.report import _followed, _tested_by
from memlib.audits.deja_vu.verdict import recognition
from memlib.errors import UserError
from memlib.findings import Finding, Findings, Interval, diagnostic, estimate, settle, tested
from memlib.recipes.files import load_recipe, validate
from memlib.running.finished import plan
from memlib.running.runners import PlainRunner
from memlib.runs.records import RunRecord
from memlib.specs import Resources
from memlib.stats.probe import Rows, probe_accuracies
from memlib.store import Store

SETTINGS = [
    "data.source.num_examples=700", "split.train_per_class=8", "split.public_per_class=20", "training.epochs=3",
    "training.batch_size=20", "training.checkpoint_epochs=[1, 2]", "decode.epochs=[1, 2]", "model.projector=[16, 16]",
    "decode.k=[10]", "decode.replicates=100", "decode.permutations=100",
]  # fmt: skip
ALL = "decode.probe_epochs=all"


def audited(folder: Path, *settings: str) -> RunRecord:
    spec = validate(AUDITS["deja-vu"].recipe, load_recipe("smoke", [*SETTINGS, *settings])[0])
    run = body_of(AUDITS["deja-vu"])(PlainRunner(Store(str(folder))), spec)
    assert run is not None
    return run


def probes(train: float, test: float, *, count: int = 100, knn: float = 0.5) -> pa.Table:
    """Probes of one pair of models, with equal accuracies in both directions."""
    row = {"layer": "backbone", "pair": 0, "n": count, "train_accuracy": train, "test_accuracy": test}
    return pa.Table.from_pylist([row | {"direction": side, "knn_accuracy": knn, "knn_n": count} for side in ("A", "B")])


def test_change_of_the_gap_and_its_interval_equal_those_computed_by_hand() -> None:
    *rows, changed = rows_through_training({50: probes(0.9, 0.5), 100: probes(0.8, 0.6)}, probes(0.7, 0.6), last=200)
    assert [(row.metric, row.params["epoch"]) for row in rows] == [
        ("probe_gap_backbone", 50), ("knn_accuracy", 50), ("probe_gap_backbone", 100), ("knn_accuracy", 100),
    ]  # fmt: skip
    assert changed.metric == GAP_CHANGE
    assert changed.params == {"probe_layer": "backbone", "epoch": 200, "since": 50}
    assert changed.value == pytest.approx(0.1 - 0.4)
    variance = (0.9 * 0.1 + 0.5 * 0.5 + 0.7 * 0.3 + 0.6 * 0.4) / 200
    assert (changed.high or 0) - changed.value == pytest.approx(1.959964 * variance**0.5, rel=1e-5)
    assert changed.role == "diagnostic"


@pytest.mark.parametrize(("grows", "said"), [(False, False), (True, True)])
def test_a_gap_that_grows_in_the_embeddings_is_found_and_a_steady_one_is_not(grows: bool, said: bool) -> None:
    """Plant: late embeddings of the training images alone carry the class in addition to what all images carry."""
    rng = np.random.default_rng(0)
    labels = np.tile(np.arange(4), 200)
    train = np.arange(len(labels)) % 8 < 4
    weak = rng.normal(size=(len(labels), 12)).astype(np.float32) + 0.7 * np.eye(12, dtype=np.float32)[labels]
    late = weak + (4 * np.eye(12, dtype=np.float32)[labels + 6] * train[:, None] if grows else 0)
    found = [
        probe_accuracies(Rows([x], labels, train), Rows([x], labels, ~train), num_classes=4, weight_decay=0.1)
        for x in (weak, late.astype(np.float32))
    ]
    early, last = (probes(*accuracies, count=int((~train).sum())) for accuracies in found)
    changed = list(rows_through_training({1: early}, last, last=9))[-1]
    assert ((changed.low or 0) > 0) is said


def test_unchanged_accuracies_have_a_change_of_the_gap_within_its_interval() -> None:
    rng, inside = np.random.default_rng(0), 0
    for _ in range(200):
        ends = [probes(*rng.binomial(200, (0.9, 0.6)) / 200, count=100) for _ in range(2)]
        changed = list(rows_through_training({1: ends[0]}, ends[1], last=9))[-1]
        assert changed.interval is not None
        inside += (changed.low or 0) <= 0 <= (changed.high or 0)
    assert inside >= 180


def test_recognition_that_decides_the_verdict_ignores_earlier_checkpoints() -> None:
    answers = estimate("accuracy_target", {"chance": 0.1, "layer": "backbone"}, 0.2, n=9)
    rows = [answers, *probe_rows(probes(0.9, 0.5, knn=0.1)), *probe_rows(probes(0.9, 0.5, knn=0.9), epoch=1)]
    found = recognition(Findings(rows))
    assert found is not None
    assert found.share == pytest.approx(0.1)


def change(low: float, high: float, p: float | None = None) -> Finding:
    params, value, interval = {"layer": "last"}, (low + high) / 2, Interval(low, high, "examples")
    if p is None:
        return estimate(CHANGE, params, value, n=9, interval=interval)
    row = tested(CHANGE, params, value, n=9, interval=interval, p_value=p, family="changes", either_direction=True)
    return settle([row], alpha=0.05).head


@pytest.mark.parametrize(
    ("memory", "gap", "said"),
    [
        (change(0.1, 0.2), (-0.1, 0.1), "No rise of memory"),  # not tested
        (
            change(0.1, 0.2, p=0.01),
            (-0.1, 0.1),
            "gap of the linear probe is not shown to rise (-10.0 points to 10.0 points).",
        ),
        (change(0.1, 0.2, p=0.01), (-0.2, -0.1), "is not shown to rise (-20.0 points to -10.0 points)."),
        (change(0.1, 0.2, p=0.01), (0.1, 0.2), "rises with it"),
        (change(0.1, 0.2, p=0.5), (-0.1, 0.1), "No rise of memory"),
        (change(-0.2, -0.1, p=0.01), (-0.1, 0.1), "No rise of memory"),
        (change(-0.1, 0.2), (-0.1, 0.1), "No rise of memory"),
    ],
)
def test_the_page_says_whether_the_gap_follows_memory(memory: Finding, gap: tuple[float, float], said: str) -> None:
    found = _followed(memory, diagnostic(GAP_CHANGE, {}, sum(gap) / 2, n=9, interval=Interval(*gap, "examples")))
    assert said in found
    assert "reveal" not in found


def test_the_page_states_what_the_interval_of_a_change_covers_with_or_without_a_verdict() -> None:
    over = Interval(0.1, 0.2, "examples and trainings")
    row = tested(CHANGE, {}, 0.15, n=9, interval=over, p_value=0.01, family="changes", either_direction=True)
    assert _tested_by(row) == " over images and training runs"  # a run that shows no memory gives no verdict
    assert _tested_by(settle([row], alpha=0.05).head).startswith(" over images and training runs; ")
    assert _tested_by(change(0.1, 0.2)) == " over images"


@pytest.mark.usefixtures("without_power")
@pytest.mark.long
def test_probing_every_checkpoint_adds_stages_and_changes_no_key(tmp_path: Path) -> None:
    spec = validate(AUDITS["deja-vu"].recipe, load_recipe("smoke", SETTINGS)[0])
    last = audited(tmp_path)
    every = audited(tmp_path, ALL)
    added = sorted(name.split("/")[0] for name in every.computed)
    assert added == sorted(["embed"] * 4 + ["probe"] * 4 + ["score", "report"])
    planned = plan(AUDITS["deja-vu"], spec, str(tmp_path), Resources())
    assert all(part.hit for part in planned.parts.values())
    before, after = Findings.of_run(last), Findings.of_run(every)
    assert [(row.metric, row.params, row.value) for row in before] == [
        (row.metric, row.params, row.value)
        for row in after
        if row.metric not in (CHANGE, GAP_CHANGE) and not ("probe_layer" in row.params and "epoch" in row.params)
    ]
    gaps = after.all("probe_gap_backbone")
    assert [row.params.get("epoch") for row in gaps] == [None, 1, 2]
    assert all(row.interval for row in gaps)
    assert [(row.params["epoch"], row.params["since"]) for row in after.all(CHANGE)] == [(2, 1), (3, 1)]
    page = Path(every.report).read_text()
    assert "Memory and the linear probe through training" in page
    assert "<h2>Through training</h2>" not in page
    assert "What fine-tuning changed" not in page
    assert re.search(r"From epoch 1 to epoch 3, the share of images named beyond chance changed by", page)
    assert "Memory and the linear probe" not in Path(last.report).read_text()
    in_brief, head = AUDITS["deja-vu"].in_brief, after.head
    brief = [row for row in after if in_brief(row.params, head.params)]
    assert {row.params.get("epoch") for row in brief if row.metric == "probe_gap_projector"} == {None, 1, 2}


@pytest.mark.parametrize(
    "settings",
    [
        ["decode.epochs=[]", ALL],
        ["training.checkpoint_epochs=[]", "decode.epochs=[]", ALL],
        ["decode.epochs=[3]", ALL],  # the last one
    ],
)
def test_probing_by_epoch_is_refused_if_only_the_last_checkpoint_is_decoded(settings: list[Any], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"only the last checkpoint is decoded: name earlier ones in decode\.epochs"):
        audited(tmp_path, *settings)
