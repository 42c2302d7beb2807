"""Whole audits of tiny image-text models, in this process."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
from pydantic import ValidationError

import memlib
from memlib.audits import AUDITS
from memlib.audits.captions.recipe import Recipe
from memlib.errors import UserError
from memlib.findings import Findings
from memlib.pipeline.stage import Artifact
from memlib.specs import changed_content
from memlib.training.fit import Train

pytestmark = pytest.mark.page

TINY: dict[str, Any] = {
    "audit": "captions", "title": "tiny",
    "data": {"source": {"kind": "captioned_scenes", "num_examples": 220, "size": 16}, "image_size": 16},
    "split": {"train_per_class": 40, "public_per_class": 100, "extra_per_class": 20},
    "model": {
        "image": {"backbone": "small_vit", "patch_size": 8, "width": 4, "input_size": 16, "projector": [16]},
        "text": {"width": 16},
    },
    "training": {"epochs": 4, "batch_size": 20, "optimizer": {"warmup_epochs": 0}},
    "score": {"replicates": 100, "permutations": 199},
}  # fmt: skip


def tiny(**changes: Any) -> dict[str, Any]:
    return changed_content(TINY, changes)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two pairs of models with doses, at two checkpoints and two k."""
    recipe = tiny(**{
        "dose.copies": [2, 5], "dose.pairs": 10, "pairs": 2, "score.k": [5, 10], "score.epochs": [2],
        "training.checkpoint_epochs": [2], "report.gallery": 3,
    })  # fmt: skip
    return memlib.run(recipe, store=str(tmp_path_factory.mktemp("captions") / "store"), quiet=True)


def test_units_count_objects_of_each_pair_at_each_setting(run: Any) -> None:
    units = run.units
    assert units.num_rows == (40 + 40 + 20) * 2 * 2 * 2
    assert {(row["values"], row["counts"]) for row in pc.value_counts(units["direction"]).to_pylist()} == {
        ("A", 320), ("B", 320), ("H", 160)
    }  # fmt: skip
    assert (pc.unique(units["num_named"]).to_pylist(), pc.unique(units["num_unnamed"]).to_pylist()) == ([1], [3])
    assert pc.max(pc.add(units["a_recovered"], units["a_wrong"])).as_py() <= 3
    once = units.filter((pc.field("pair") == 0) & (pc.field("epoch") == 4) & (pc.field("k") == 5))
    copies = {row["values"]: row["counts"] for row in pc.value_counts(once["copies"]).to_pylist()}
    assert copies == {1: 80, 2: 10, 5: 10}
    held_out = once.filter(pc.field("direction") == "H")
    assert pc.unique(held_out["copies"]).to_pylist() == [1]


def test_findings_cover_settings_and_doses(run: Any) -> None:
    findings = run.findings
    excess = [row for row in findings if row.metric == "recall_excess"]
    assert [row.family for row in excess] == ["headline", "doses", "doses", "doses", None, None, None]
    assert findings[0].detectable is not None


def test_values_by_training_average_to_the_headline(run: Any) -> None:
    audit, findings = AUDITS["captions"], Findings.of_run(run.record)
    found = audit.trainings(run, findings.head)  # type: ignore[misc]
    assert found is not None
    assert (len(found.values), found.setting) == (2, {"k": 5, "objects": 3})
    assert found.values.mean() == pytest.approx(findings.head.value)
    assert audit.trainings(run, findings.first("recall_excess", copies=2)) is None  # type: ignore[misc]
    utility = audit.utility(findings)
    assert utility is not None
    assert utility.value == findings.first("named_recall", by="reference").value


def test_the_page_shows_pairs_that_were_not_chosen_by_what_was_found(run: Any) -> None:
    page = Path(run.report).read_text(encoding="utf-8")
    assert "The first 3 audited pairs by a hash of their ids" in page
    assert "By number of copies" in page
    assert "with a" in page  # captions
    assert "background crop" not in page


def test_models_without_a_reference_are_compared_on_unseen_pairs(tmp_path: Path) -> None:
    run = memlib.run(tiny(reference=False, **{"split.extra_per_class": 0}), store=str(tmp_path / "store"), quiet=True)
    page = Path(run.report).read_text(encoding="utf-8")
    assert "the same, pairs that were not trained on" in page
    assert "model not trained on it" not in page
    units = run.units
    assert units["b_recovered"].null_count == units.num_rows
    assert [name for name in run.record.artifacts if name.startswith("model")] == ["model A0"]
    share = {name: units.filter(pc.field("direction") == name)["a_recovered"].to_numpy().mean() / 3 for name in "AB"}
    assert run.findings[0].value == pytest.approx(share["A"] - share["B"])


def test_untrained_models_name_as_many_objects_as_chance(tmp_path: Path) -> None:
    run = memlib.run(tiny(**{"training.epochs": 0}), store=str(tmp_path / "store"), quiet=True)
    head, target = run.findings[0], next(row for row in run.findings if row.metric == "recall_target")
    assert run.verdict.word == "inconclusive"
    assert abs(head.value) < 0.1
    assert target.value == pytest.approx(1 / 3, abs=0.1)


def test_repeated_pairs_are_trained_on_as_often_as_asked(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sets = {}
    monkeypatch.setattr(Train, "write", lambda job, *_: sets.update({job.name: job.training_set()}))
    content = run.record.recipe
    recipe = Recipe.model_validate(content)
    from memlib.audits.captions.retrieval import TrainPairs
    from memlib.data.images.caption_stages import Captions, SplitPairs
    from memlib.data.stages import Decode
    from memlib.store import Ref

    store = run.store
    opened = {
        name: Artifact(store, Ref.parse(run.record.artifacts[name]), kind)
        for name, kind in (("shard", Decode), ("splits", SplitPairs), ("captions", Captions))
    }
    counts = []
    for role in ("target", "reference"):
        job = TrainPairs(
            name=role, model=recipe.model, training=recipe.training, roles=(role,), dose=recipe.dose, dose_seed=0, **opened
        )
        rows = job.training_set().rows
        _, times = np.unique(rows, return_counts=True)
        counts.append(np.bincount(times, minlength=6))
        assert len(np.unique(rows)) == 40
    assert (counts[0] + counts[1])[[1, 2, 5]].tolist() == [60, 10, 10]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"score.epochs": [3]}, "score.epochs names epoch 3, which training.checkpoint_epochs does not keep"),
        ({"dose.copies": [4], "dose.pairs": 81}, "dose asks for 81 pairs, but A and B have 80 together"),
        ({"model.image.projector": []}, "image.projector needs at least one layer"),
        ({"training.patience": 2}, "patience needs validation pairs"),
        ({"split.sets": "sets.csv", "split.train_per_class": None, "split.public_per_class": None,
          "split.extra_per_class": 0}, "split.sets and encoders go together"),
    ],
)  # fmt: skip
def test_recipes_that_cannot_be_run_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Recipe.model_validate(tiny(**changes))


def test_more_neighbours_than_public_pairs_are_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"score.k is 101, but there are only 100 public pairs"):
        memlib.run(tiny(**{"score.k": [101]}), store=str(tmp_path / "store"), quiet=True)


def test_a_dose_for_more_pairs_than_whole_groups_leave_is_refused(tmp_path: Path) -> None:
    """Persons of three pairs: A and B together have 78 pairs at most, where the recipe's budgets allow 80."""
    recipe = tiny(**{"split.group": {"path": "persons.csv"}, "dose.copies": [2], "dose.pairs": 80})
    recipe["split"]["group"]["path"] = str(tmp_path / "persons.csv")
    rows = [f"pair-{number:07d},{number // 3}" for number in range(220)]
    (tmp_path / "persons.csv").write_text("\n".join(["example_id,group", *rows, ""]))
    with pytest.raises(UserError, match=r"dose asks for 80 pairs, but A and B have 7\d together; lower dose.pairs"):
        memlib.run(recipe, store=str(tmp_path / "store"), quiet=True)


def test_too_few_pairs_for_a_test_give_a_warning(tmp_path: Path) -> None:
    recipe = tiny(**{"split.train_per_class": 2, "training.batch_size": 2, "training.epochs": 1, "split.extra_per_class": 0})
    with pytest.warns(UserWarning, match=r"with 2 pairs in each of A and B, no test can be significant"):
        memlib.run(recipe, store=str(tmp_path / "store"))
