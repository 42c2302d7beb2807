"""One model alone: a difference of differences that finds memory, and shows none where a model is merely better."""

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from flows.cli.app import main
from memlib.audits import AUDITS
from memlib.audits.arrangement import body_of
from memlib.audits.deja_vu.comparison import gains_of
from memlib.audits.deja_vu.findings import summarize
from memlib.audits.deja_vu.recipe import Config
from memlib.audits.deja_vu.scores import Answers, Decoding, score
from memlib.errors import UserError
from memlib.findings import Findings
from memlib.recipes.files import load_recipe, validate
from memlib.running.runners import PlainRunner
from memlib.runs.records import RunRecord
from memlib.store import Store
from tests.assignments import assert_exact, redraw_exactly
from tests.chance import least_of

CONFIG = Config(k=(1,), replicates=200, permutations=199)
CLASSES = 4


def units_of(model: NDArray[np.bool_], known: NDArray[np.bool_], of_a: NDArray[np.bool_], **more: Any) -> pa.Table:
    """Units of models (num_models, num_images) and of a reference (num_images,) that are right or wrong."""
    labels = np.arange(len(of_a)) % CLASSES
    wrong, rng, parts = (labels + 1) % CLASSES, np.random.default_rng(5), []
    confidence = -rng.random(len(of_a))
    for number, right in enumerate(np.atleast_2d(model)):
        for side, mine in (("A", of_a), ("B", ~of_a)):
            answers = Answers(np.where(known, labels, wrong)[mine], confidence[mine])
            names = [f"{place:04d}" for place in np.flatnonzero(mine)]
            votes = np.where(right, labels, wrong)[mine][:, None]
            parts.append(Decoding(side, number, "last", 1, "maximal", names, labels[mine], votes, answers, **more))  # type: ignore[arg-type]
    return score(parts, [f"c{label}" for label in range(CLASSES)], CONFIG)


def rows_of(units: pa.Table, **config: Any) -> Findings:
    return Findings.read(summarize(units, CONFIG.model_copy(update=config), num_classes=CLASSES, reference="network"))


def drawn(rng: np.random.Generator, count: int) -> NDArray[np.bool_]:
    labels, of_a = np.arange(count) % CLASSES, np.zeros(count, dtype=bool)
    for label in range(CLASSES):
        mine = rng.permutation(np.flatnonzero(labels == label))
        of_a[mine[: len(mine) // 2]] = True
    return of_a


def test_share_excess_of_a_single_model_is_a_difference_of_differences_within_class() -> None:
    rng = np.random.default_rng(0)
    of_a = drawn(rng, 82)
    model, known = rng.random(82) < 0.6, rng.random(82) < 0.3
    rows = rows_of(units_of(model, known, of_a))
    gain = model.astype(float) - known
    parts = [(gain[mine & of_a], gain[mine & ~of_a]) for mine in np.arange(CLASSES)[:, None] == np.arange(82) % CLASSES]
    weights = [len(one) * len(other) / (len(one) + len(other)) for one, other in parts]
    within = np.average([one.mean() - other.mean() for one, other in parts], weights=weights)
    assert rows.head.value == pytest.approx(within)
    assert rows.head.params["reference"] == "network"
    for direction, mine in (("A", of_a), ("B", ~of_a)):
        assert rows.first("share_excess", direction=direction).value == pytest.approx(gain[mine].mean())
    labels = np.arange(82) % CLASSES
    classes = rows.tests("classes")
    assert len(classes) == CLASSES
    for row in classes:
        mine = labels == row.params["label"]
        assert row.value == pytest.approx(gain[mine & of_a].mean() - gain[mine & ~of_a].mean())
        assert (row.low or 0) < row.value < (row.high or 0)


def test_the_p_value_of_a_single_model_equals_an_enumeration_of_all_held_out_sets() -> None:
    rng = np.random.default_rng(1)
    of_a = drawn(rng, 24)
    model, known = rng.random(24) < 0.6, rng.random(24) < 0.3
    gain = model.astype(int) - known
    labels, sums = np.arange(24) % CLASSES, [0]
    for label in range(CLASSES):
        mine = gain[labels == label]
        sums = [total + sum(chosen) for total in sums for chosen in itertools.combinations(mine.tolist(), 3)]
    expected = np.mean(np.array(sums) >= gain[of_a].sum())
    assert rows_of(units_of(model, known, of_a)).head.p_value == pytest.approx(expected)


@pytest.mark.usefixtures("without_power")
def test_a_model_that_is_only_better_than_its_reference_is_tested_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of four images of two classes are held out; the images of the other classes are all on one side."""
    redraw_exactly(monkeypatch)
    rng, pairs = np.random.default_rng(2), list(itertools.combinations(range(4), 2))
    labels, ease = np.arange(16) % CLASSES, rng.random(16)
    model, known = rng.random(16) < 0.3 + 0.6 * ease, rng.random(16) < 0.3 * ease
    p_values: dict[str, list[float]] = {"share_excess": [], "deja_vu_score": []}
    for first, second in itertools.product(pairs, repeat=2):
        of_a = labels > 2
        for label, chosen in enumerate((first, second)):
            of_a[np.flatnonzero(labels == label)[list(chosen)]] = True
        rows = rows_of(units_of(model, known, of_a), permutations=35)  # all other draws
        for name, found in p_values.items():
            p = rows.first(name, direction="both").p_value
            assert p is not None
            found.append(p)
    for found in p_values.values():
        assert_exact(found)


@pytest.mark.usefixtures("without_power")
def test_planted_memory_of_a_single_model_is_found_and_covered_by_bound_and_interval() -> None:
    rng = np.random.default_rng(3)
    shown = held = inside = 0
    for _ in range(60):
        of_a = drawn(rng, 240)
        before, known = rng.random(240) < 0.3, rng.random(240) < 0.3
        recalled = of_a & (rng.random(240) < 0.4)
        head = rows_of(units_of(before | recalled, known, of_a)).head
        shown += head.verdict == "shown"
        due = (recalled & ~before).sum() / of_a.sum()
        held += head.upper_bound is None or head.upper_bound >= due - 1e-12
        inside += (head.low or 0) <= 0.4 * 0.7 <= (head.high or 0)
    assert shown >= 54  # nine of ten
    assert min(held, inside) >= least_of(60, 0.95)


def test_single_model_excesses_of_both_models_average_to_the_excess_of_the_pair() -> None:
    """Audits of A alone and of B alone differ from the audit of the pair only in the source of variation."""
    rng = np.random.default_rng(4)
    of_a, known = drawn(rng, 80), rng.random(80) < 0.3
    under_a, under_b = (rng.random(80) < 0.5 for _ in range(2))
    alone = [rows_of(units_of(model, known, side)).head.value for model, side in ((under_a, of_a), (under_b, ~of_a))]
    own, other = np.where(of_a, under_a, under_b), np.where(of_a, under_b, under_a)
    gain = own.astype(float) - other
    assert np.mean(alone) == pytest.approx((gain[of_a].mean() + gain[~of_a].mean()) / 2)


def test_the_interval_over_several_trainings_covers_examples_and_trainings() -> None:
    rng = np.random.default_rng(5)
    of_a = drawn(rng, 80)
    models = np.stack([rng.random(80) < ease for ease in (0.3, 0.5, 0.7)])
    head = rows_of(units_of(models, rng.random(80) < 0.3, of_a)).head
    assert head.interval is not None
    assert head.interval.over == "examples and trainings"
    assert head.params["pairs"] == 3
    gains = gains_of(head, units_of(models, rng.random(80) < 0.3, of_a))
    assert gains.gains.shape == (3, 80)


def test_gains_for_a_comparison_give_the_headline_value() -> None:
    rng = np.random.default_rng(6)
    of_a = drawn(rng, 82)
    units = units_of(rng.random(82) < 0.6, rng.random(82) < 0.3, of_a)
    head = rows_of(units).head
    gains = gains_of(head, units)
    assert gains.design.difference(gains.gains[0]) == pytest.approx(head.value)


# -- from a recipe to a page ----------------------------------------------------------------------------

SETTINGS = [
    "data.source.num_examples=700", "split.train_per_class=8", "split.public_per_class=20", "training.epochs=2",
    "training.batch_size=20", "model.projector=[16, 16]", "decode.k=[10, 5]", "decode.layers=[classifier, backbone]",
    "decode.crops=[maximal, corner]", "reference={kind: network, model: {width: 4, projector: [8]}, epochs: 2, folds: 3}",
]  # fmt: skip


def audited(folder: Path, *settings: str) -> tuple[PlainRunner, RunRecord, pa.Table]:
    spec = validate(AUDITS["deja-vu"].recipe, load_recipe("smoke", [*SETTINGS, *settings])[0])
    runner = PlainRunner(Store(str(folder)))
    run = body_of(AUDITS["deja-vu"])(runner, spec)
    assert run is not None
    return runner, run, pq.ParquetFile(run.results["units"]).read()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, never_power: None) -> tuple[Path, RunRecord]:
    """A store, and the audit of one model in it."""
    store = tmp_path_factory.mktemp("alone") / "store"
    return store, audited(store)[1]


@pytest.fixture
def without_scores(whole: tuple[Path, RunRecord], tmp_path: Path) -> Path:
    """A copy of the store in which nothing was scored."""
    made_of_scores = shutil.ignore_patterns("score*", "report", "runs", "results", "requests")
    shutil.copytree(whole[0], tmp_path / "store", symlinks=True, ignore=made_of_scores)
    return tmp_path / "store"


@pytest.mark.usefixtures("without_power")
def test_one_model_is_trained_and_audited_to_a_page(without_scores: Path) -> None:
    _, run, units = audited(without_scores, "pairs=2")
    assert sorted(name for name in run.artifacts if name.startswith("model")) == ["model A0", "model A1"]
    assert set(units["direction"].to_pylist()) == {"A", "B"}
    by_image: dict[tuple[Any, ...], set[int]] = {}
    for row in units.to_pylist():  # the background's classifier knows neither model, layer nor k
        by_image.setdefault((row["example_id"], row["crop"]), set()).add(row["reference_prediction"])
    assert all(len(found) == 1 for found in by_image.values())
    page = Path(run.report).read_text()
    for text in ("training minus held-out", "from the background alone", "instead of a second model", "held-out images"):
        assert text in page, text
    assert "both directions" not in page
    series = set(pq.ParquetFile(run.results["curves"]).read()["series"].to_pylist())
    assert series == {"target", "reference", "target_held_out", "reference_held_out"}
    metrics = {(row.metric, row.params.get("direction")) for row in Findings.of_run(run)}
    assert ("mcnemar_p", "both") not in metrics
    assert {("accuracy_target", "A"), ("accuracy_target", "B"), ("share_excess", "both")} <= metrics


@pytest.mark.usefixtures("without_power")
def test_findings_do_not_depend_on_scoring_in_parts(
    whole: tuple[Path, RunRecord], without_scores: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memlib.audits.deja_vu.stages.MOST_UNITS", 1)
    _, parts, _ = audited(without_scores)
    assert any(ref.startswith("score_setting/") for ref in parts.computed)
    assert [row.value for row in parts.findings] == pytest.approx([row.value for row in whole[1].findings])
    assert [row.params for row in parts.findings] == [row.params for row in whole[1].findings]


@pytest.mark.usefixtures("without_power")
def test_visual_words_can_serve_as_the_reference_of_a_single_model(without_scores: Path) -> None:
    _, run, _ = audited(without_scores, "reference={kind: visual_words, words: 8, folds: 2}", "decode.crops=[maximal]")
    assert Findings.of_run(run).head.params["reference"] == "visual_words"


@pytest.mark.usefixtures("without_power")
def test_embeddings_of_one_encoder_are_audited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["export", "--recipe", "smoke", "--output", str(tmp_path / "shown"), "--store", str(tmp_path / "store")]
    for setting in SETTINGS:
        command += ["--set", setting]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "from each encoder trained on A and C, with" in said
    assert "encoders: [{a: {kind: embeddings, path: a.parquet}}]" in said
    names = [line.partition(",")[0] for line in (tmp_path / "shown" / "images.csv").read_text().splitlines()[1:]]
    rng = np.random.default_rng(0)
    pq.write_table(pa.table({"id": names, "last": list(rng.normal(size=(len(names), 4)))}), tmp_path / "a.parquet")
    given = json.dumps([{"a": {"kind": "embeddings", "path": str(tmp_path / "a.parquet")}}])
    _, run, units = audited(tmp_path / "store", f"encoders={given}", "training=null", "decode.layers=[last]")
    assert run.findings[0].verdict != "shown"  # noise remembers nothing
    assert pc.sum(pc.equal(units["direction"], "B")).as_py() > 0
    assert "According to its owner, the encoder was trained only on the sets A and C" in Path(run.report).read_text()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["decode.stability={}"], "with reference there is only one"),
        (["reference.folds=90"], "too few for 90 folds"),
        (
            ["reference=null", "training=null", "encoders=[{a: {kind: embeddings, path: a}}]"],
            "encoders\\[0\\] has no second model b",
        ),
        (
            ["training=null", "encoders=[{a: {kind: embeddings, path: a}, b: {kind: embeddings, path: b}}]"],
            "leave b out of encoders",
        ),
    ],
)
def test_recipes_for_a_single_model_refuse_contradictory_settings(tmp_path: Path, settings: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        audited(tmp_path, *settings)


def test_patches_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="patch_size 9 is larger than the side of 8"):
        audited(tmp_path, "reference={kind: visual_words, side: 8, patch_size: 9}")


@pytest.mark.usefixtures("without_power")
def test_a_side_with_more_images_of_an_easy_class_has_a_score_around_zero() -> None:
    """Without memory the score of unequal sets scatters around 0, although one class is named always and a second never."""
    rng, values = np.random.default_rng(0), []
    for _ in range(40):
        labels, of_a = np.arange(160) % CLASSES, np.zeros(160, dtype=bool)
        for label, share in enumerate((0.8, 0.2, 0.5, 0.5)):
            mine = rng.permutation(np.flatnonzero(labels == label))
            of_a[mine[: round(share * len(mine))]] = True
        model = np.where(labels == 0, True, np.where(labels == 1, False, rng.random(160) < 0.3))
        rows = rows_of(units_of(model, rng.random(160) < 0.2, of_a), p=0.5)
        values.append(rows.first("deja_vu_score").value)
    assert abs(np.mean(values)) < 5 * np.std(values) / np.sqrt(40)  # 5 standard errors: 6e-7
