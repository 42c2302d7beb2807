"""Fine-tuning: the backbone is reused, arms differ in their tuning data, and the change in memory has an interval."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from memlib.audits import AUDITS
from memlib.audits.arrangement import body_of
from memlib.audits.deja_vu.gains import CHANGE, change_rows
from memlib.audits.deja_vu.recipe import Config
from memlib.audits.deja_vu.scores import Decoding, score
from memlib.data.stages import Split, decode
from memlib.errors import UserError
from memlib.findings import Findings, settle
from memlib.recipes.files import load_recipe, validate
from memlib.running.finished import plan
from memlib.running.runners import PlainRunner
from memlib.runs.records import RunRecord
from memlib.specs import Resources
from memlib.store import Store
from tests.chance import most_of

SETTINGS = [
    "data.source.num_examples=700", "split.train_per_class=8", "split.public_per_class=20", "split.extra_per_class=5",
    "training.start={objective: {kind: vicreg}, epochs: 2, batch_size: 20}", "training.epochs=3", "training.batch_size=20",
    "training.checkpoint_epochs=[0, 1]", "model.projector=[16, 16]", "decode.k=[10]", "decode.layers=[last, backbone]",
    "decode.epochs=[0, 1]",
]  # fmt: skip


def audited(folder: Path, *settings: str) -> tuple[PlainRunner, RunRecord, pa.Table]:
    spec = validate(AUDITS["deja-vu"].recipe, load_recipe("smoke", [*SETTINGS, *settings])[0])
    runner = PlainRunner(Store(str(folder)))
    run = body_of(AUDITS["deja-vu"])(runner, spec)
    assert run is not None
    return runner, run, pq.ParquetFile(run.results["units"]).read()


@pytest.mark.usefixtures("without_power")
@pytest.mark.ray
def test_fine_tuning_arms_share_their_start_and_a_frozen_backbone_stays_unchanged(tmp_path: Path) -> None:
    store = tmp_path / "store"
    _, own, _ = audited(store)
    runner, extra, _ = audited(store, "training.on=[extra]")
    _, head, units = audited(store, "training.head_alone=true")
    runs = {"own": own, "extra": extra, "head": head}
    starts = {name: [run.artifacts[f"start of model {side}0"] for side in "AB"] for name, run in runs.items()}
    assert starts["own"] == starts["extra"] == starts["head"]
    models = [run.artifacts[f"model {side}0"] for run in runs.values() for side in "AB"]
    assert len(set(models)) == 6
    kept = {
        epoch: units.filter((pc.field("layer") == "backbone") & (pc.field("epoch") == epoch)).sort_by("example_id")
        for epoch in (0, 1, 3)
    }
    for side in ("target_prediction", "reference_prediction"):  # a frozen backbone forgets nothing and learns nothing
        assert kept[0][side].equals(kept[3][side])
        assert kept[1][side].equals(kept[3][side])
    changes = Findings.of_run(head).all(CHANGE)
    assert [row.value for row in changes.all(layer="backbone")] == [0, 0]
    assert {(row.params["layer"], row.params["since"], row.params["epoch"]) for row in changes} == {
        (layer, 0, epoch) for layer in ("classifier", "backbone") for epoch in (1, 3)
    }
    page = Path(extra.report).read_text()
    for text in ("What fine-tuning changed", "extra images (E)", "vicreg, 2 epochs", "nothing is tested"):
        assert text in page, text
    assert "the head alone" in Path(head.report).read_text()
    again = validate(AUDITS["deja-vu"].recipe, load_recipe("smoke", [*SETTINGS, "training.start.epochs=1"])[0])
    planned = plan(AUDITS["deja-vu"], again, runner.store.uri, Resources())
    missing = [ref.stage for ref, part in planned.parts.items() if not part.hit]
    assert missing.count("train") == 4  # the start is part of what follows it


def test_a_larger_extra_set_leaves_all_other_sets_unchanged(tmp_path: Path) -> None:
    roles, runner = {}, PlainRunner(Store(str(tmp_path)))
    for count in (2, 5):
        spec = validate(AUDITS["deja-vu"].recipe, load_recipe("smoke", [*SETTINGS, f"split.extra_per_class={count}"])[0])
        splits = runner.run(Split(spec.split, decode(runner, spec.data))).content  # type: ignore[attr-defined]
        roles[count] = dict(zip(splits["example_id"].to_pylist(), splits["role"].to_pylist(), strict=True))
    few, many = roles[2], roles[5]
    assert [list(few.values()).count("extra"), list(many.values()).count("extra")] == [20, 50]
    assert all(many[name] == role for name, role in few.items() if role not in ("left_out",))


def units_of(before: np.ndarray, after: np.ndarray) -> pa.Table:
    """Units of models that were right before and after, each (num_pairs, num_images); the reference is always wrong."""
    pairs, count = before.shape
    labels, side = np.arange(count) % 4, np.arange(count) // 4 % 2 == 0
    found = []
    for epoch, right in ((0, before), (7, after)):
        for pair in range(pairs):
            for direction, mine in (("A", side), ("B", ~side)):
                names = [f"{place:04d}" for place in np.flatnonzero(mine)]
                votes, none = (
                    np.where(hit, labels, labels + 1)[mine][:, None] for hit in (right[pair], np.zeros(count, bool))
                )
                found.append(Decoding(direction, pair, "last", epoch, "maximal", names, labels[mine], votes, none))  # type: ignore[arg-type]
    return score(found, [f"c{label}" for label in range(5)], Config(k=(1,)))


@pytest.mark.usefixtures("without_power")
def test_fading_memory_is_found_and_steady_memory_is_not_called_fading() -> None:
    rng, headline = np.random.default_rng(0), {"crop": "maximal", "k": 1}
    shown = {"fades": 0, "steady": 0}
    for _ in range(40):
        before = rng.random((4, 200)) < 0.4
        fades, steady = before & (rng.random((4, 200)) < 0.5), rng.random((4, 200)) < 0.4
        for name, after in (("fades", fades), ("steady", steady)):
            (row,) = settle(change_rows(units_of(before, after), headline, alone=False, seed=1), alpha=0.05)
            assert row.metric == CHANGE
            shown[name] += row.verdict == "shown"
            if name == "fades":
                assert (row.high or 0) < 0
    assert shown["fades"] >= 36
    assert shown["steady"] <= most_of(40, 0.05)
    one = settle(change_rows(units_of(before[:1], steady[:1]), headline, alone=False, seed=1), alpha=0.05).head
    assert "pairs" in one.params["not_ranked"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["training.start=null", "training.head_alone=true"], "give training.start"),
        (["training.start=null", "training.on=[extra]"], "leaves out the audited images"),
        (["training.objective={kind: vicreg}"], "not vicreg"),
        (["split.extra_per_class=0", "training.on=[extra]"], "split.extra_per_class is 0"),
        (["training.checkpoint_epochs=[1]", "decode.epochs=[1]"], "add 0 to decode.epochs"),
        (["split.extra_per_class=500"], "500 extra images"),
        (["decode.layers=[projector_1]"], "choose from backbone, classifier"),
    ],
)
def test_recipes_for_fine_tuning_refuse_contradictory_settings(tmp_path: Path, settings: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        audited(tmp_path, *settings)
