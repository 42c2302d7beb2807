"""Generators are given what they should be, and a small audit goes the whole way from crops to judged pictures."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import memlib
from memlib.audits.arrangement import body_of
from memlib.audits.deja_vu import AUDIT
from memlib.audits.deja_vu.reconstruction.findings import BEYOND_PUBLIC, GAIN
from memlib.audits.deja_vu.reconstruction.judging import CLASS, NAMED, NEAREST, RANK, RANK_PIXELS, Painted
from memlib.audits.deja_vu.reconstruction.measures import PAINT
from memlib.audits.deja_vu.reconstruction.sampling import NEIGHBORS, SAMPLED, another_of_its_class, mean_of
from memlib.findings import Findings
from memlib.recipes import RecipeError
from memlib.recipes.request import AuditRequest

pytestmark = pytest.mark.usefixtures("never_power")

TINY = [
    "data.source.num_examples=400", "split.train_per_class=4", "split.public_per_class=20", "training.epochs=2",
    "training.batch_size=20", "model.projector=[16, 16]", "model.width=8", "decode.k=[6]", "decode.replicates=100",
    "decode.permutations=100", "reconstruct.images=20", "reconstruct.samples=2", "reconstruct.steps=2",
    "reconstruct.generator.training.epochs=2", "reconstruct.generator.training.objective={kind: denoising, ema: 0.5}", "reconstruct.generator.model.channels=[8, 8]",
    "reconstruct.generator.model.input_size=8", "reconstruct.generator.model.attention_side=0",
    "reconstruct.baseline.epochs=1", "reconstruct.judge.epochs=2", "reconstruct.judge.model.width=8",
]  # fmt: skip


def test_mean_of_neighbours_has_the_length_of_a_typical_neighbour() -> None:
    vectors = np.random.default_rng(0).normal(size=(5, 7, 30)).astype(np.float32)
    mean = mean_of(vectors)
    assert np.linalg.norm(mean, axis=1) == pytest.approx(np.linalg.norm(vectors, axis=2).mean(axis=1), rel=1e-5)
    plain = vectors.mean(axis=1)
    for ours, theirs in zip(mean, plain, strict=True):
        assert ours @ theirs == pytest.approx(np.linalg.norm(ours) * np.linalg.norm(theirs), rel=1e-5)


def test_mean_of_one_neighbour_is_that_neighbour() -> None:
    vectors = np.random.default_rng(0).normal(size=(5, 1, 30)).astype(np.float32)
    assert mean_of(vectors) == pytest.approx(vectors[:, 0], rel=1e-5)


def test_shuffled_pictures_come_from_another_person_of_the_same_class() -> None:
    members = pa.table(
        {"example_id": list("abcdef"), "label": [0, 0, 1, 0, 1, 2], "group": ["p", "p", None, None, None, None]}
    )
    ids = pa.table({"example_id": list("abcdef")})
    assert another_of_its_class(ids, members).tolist() == [3, 3, 4, 0, 2, -1]  # f is alone in its class


def test_painted_images_cover_the_crop() -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 6, 6, 3)).astype(np.uint8)
    pictures = Painted(images, np.array([2, 0]), np.array([[0, 0, 0, 0], [1, 2, 4, 6]]))
    whole, part = pictures[np.array([0, 1])]
    assert (whole == images[2]).all()
    assert (part[2:6, 1:4] == np.array(PAINT)).all()
    assert (part[:2] == images[0, :2]).all()


def test_painted_turns_grey_images_into_three_channels() -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, 6, 6, 1)).astype(np.uint8)
    pictures = Painted(images, np.array([0, 1]), np.zeros((2, 4), dtype=np.int64))
    assert pictures.shape == (2, 6, 6, 3)
    assert (pictures[np.array([1])] == images[[1]]).all()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("store")
    return memlib.run("scenes_reconstruction", store=str(folder), changes=TINY, quiet=True)


@pytest.fixture
def copy(run: Any, tmp_path: Path) -> str:
    """A copy of its store, in which its encoders are found."""
    shutil.copytree(run.store.root, tmp_path / "store", symlinks=True)
    return str(tmp_path / "store")


def test_every_picture_of_a_small_audit_is_judged(run: Any) -> None:
    table = run.tables["reconstructions"]
    assert len(pc.unique(table["example_id"])) == 20
    assert set(SAMPLED) < set(table["source"].to_pylist())
    ranks = table.filter(pc.field("measure") == RANK)
    assert pc.min(ranks["value"]).as_py() >= 0
    assert pc.max(ranks["value"]).as_py() <= 1
    measures = set(table["measure"].to_pylist())
    assert {f"{CLASS}{NAMED}", "colour named", "place named", RANK, RANK_PIXELS} <= measures
    by_model = [table.filter((pc.field("model") == model) & (pc.field("source") == NEIGHBORS)) for model in "AB"]
    assert by_model[0]["example_id"].equals(by_model[1]["example_id"])


def test_both_families_of_a_small_audit_are_tested(run: Any) -> None:
    findings = Findings.of_run(run.record)
    asked = {RANK, RANK_PIXELS, f"{CLASS}{NAMED}", "colour named", "place named"}
    for metric in (GAIN, BEYOND_PUBLIC):
        assert {row.params["measure"] for row in findings.all(metric).tests()} == asked
    assert findings.get(GAIN, measure=RANK, source=NEAREST) is not None


def test_the_page_of_a_small_audit_shows_pictures_and_how_they_were_chosen(run: Any) -> None:
    page = run.report.read_text()
    for text in ("Reconstructions: the first images", "Chosen among 20 reconstructed images", "Selected by the very score"):
        assert text in page


def test_pictures_do_not_depend_on_the_blocks_they_are_drawn_in(copy: str, monkeypatch: pytest.MonkeyPatch, run: Any) -> None:
    monkeypatch.setitem(body_of(AUDIT).__globals__, "IMAGES_PER_PART", 7)
    again = memlib.run("scenes_reconstruction", store=copy, changes=TINY, quiet=True)
    assert sum(ref.startswith("reconstruct/") for ref in again.record.computed) > 1
    ours, theirs = (one.tables["reconstructions"].column("value").to_pylist() for one in (run, again))
    assert ours == pytest.approx(theirs, abs=1e-3, nan_ok=True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("reconstruct.neighbors=7", "decode.k searches only 6 neighbours"),
        ("reconstruct.layers=[brain]", "choose from backbone"),
        ("reconstruct.pairs=2", "the recipe has only 1"),
        ("reference={kind: network}", "there is only one"),
        ("reconstruct.steps=30", "must divide the 1000 diffusion steps"),
        ("reconstruct.generator.model.input_size=64", "stored with 16"),
        ("beyond.attributes={class: source}", "none may be named class"),
        ("data.channels=1", "draws colour pictures"),
        ("reconstruct.generator.training.augment={}", "set its training.augment to null"),
        ("reconstruct.generator.training.objective={kind: decoding}", "{kind: denoising}"),
    ],
)
def test_recipes_with_impossible_reconstruction_settings_are_refused(change: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said.replace("{", r"\{")):
        AuditRequest.read("scenes_reconstruction", [*TINY, change])


def test_a_generator_whose_average_holds_its_first_weights_is_warned_about(copy: str) -> None:
    changes = [*TINY, "reconstruct.generator.training.objective={kind: denoising, ema: 0.999}"]
    with pytest.warns(UserWarning, match="after 12 steps, initial weights still make up 99% of the generator's average"):
        memlib.run("scenes_reconstruction", store=copy, changes=changes, quiet=True)


def test_the_baseline_of_reconstructions_is_optional() -> None:
    recipe: Any = AuditRequest.read("scenes_reconstruction", [*TINY, "reconstruct.baseline=null"]).recipe
    assert recipe.reconstruct.baseline is None
