"""Gains of reconstructions: planted memory is found, none is where there is none, and the nearest public image is a bar."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from memlib.audits.deja_vu.recipe import Config
from memlib.audits.deja_vu.reconstruction.findings import BEYOND_PUBLIC, GAIN, MEAN, reconstruction_rows
from memlib.audits.deja_vu.reconstruction.judging import AVERAGED, CLASS, COPIES, FIRST, NAMED, NEAREST, RANK, RANK_PIXELS
from memlib.audits.deja_vu.reconstruction.sampling import NEIGHBORS, WHOLE
from memlib.audits.deja_vu.reconstruction.section import _said
from memlib.audits.deja_vu.tables import RECONSTRUCTIONS
from memlib.findings import Finding, Findings, settle, tested, untested

QUICK = Config(replicates=200, permutations=400)
IMAGES, CLASSES = 80, 4
CLASS_NAMED = f"{CLASS}{NAMED}"


def splits(*, seed: int = 0, persons: int = 1) -> pa.Table:
    """Return images of which half of the persons of each class is on either side."""
    ids, labels = [f"{n:03d}" for n in range(IMAGES)], np.arange(IMAGES) // persons % CLASSES
    owners, roles = np.arange(IMAGES) // persons, np.empty(IMAGES, dtype=object)
    for label in range(CLASSES):
        own = np.random.default_rng([seed, label]).permutation(np.unique(owners[labels == label]))
        roles[np.isin(owners, own[: len(own) // 2])] = "target"
        roles[np.isin(owners, own[len(own) // 2 :])] = "reference"
    groups = pa.nulls(IMAGES, pa.string()) if persons == 1 else pa.array([f"person {owner}" for owner in owners])
    return pa.table({"example_id": ids, "role": roles.tolist(), "label": labels, "group": groups})


def judged(who: pa.Table, values: Mapping[tuple[str, str, str], np.ndarray], *, pair: int = 0) -> pa.Table:
    """Return judged pictures: values (num_images,) by model, source and measure."""
    ids, roles = who["example_id"].to_pylist(), who["role"].to_pylist()
    rows = [
        {
            "example_id": name, "direction": "A" if role == "target" else "B", "pair": pair, "model": model, "source": source,
            "measure": measure, "value": float(value), "candidates": 9,
        }
        for (model, source, measure), of_images in values.items()
        for name, role, value in zip(ids, roles, of_images, strict=True)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=RECONSTRUCTIONS.arrow)


def ranks(who: pa.Table, *, memory: float, seed: int, source: str = NEIGHBORS) -> dict[tuple[str, str, str], np.ndarray]:
    """Return ranks under both models, which are lower by `memory` for the images that a model was trained on."""
    rng, of_a = np.random.default_rng(seed), np.array(who["role"].to_pylist()) == "target"
    easy = rng.uniform(0.3, 0.7, size=len(of_a))
    noise = rng.normal(0, 0.1, size=(2, len(of_a)))
    return {
        ("A", source, RANK): easy + noise[0] - memory * of_a,
        ("B", source, RANK): easy + noise[1] - memory * ~of_a,
    }


def found(who: pa.Table, *tables: pa.Table, **config: Any) -> Findings:
    return Findings(reconstruction_rows(tables, who, QUICK.model_copy(update=config)))


def test_reconstruction_gain_finds_planted_memory() -> None:
    who = splits()
    rows = found(who, judged(who, ranks(who, memory=0.15, seed=1)))
    gain = rows.first(GAIN, measure=RANK, source=NEIGHBORS)
    assert gain.value == pytest.approx(0.15, abs=0.04)
    assert gain.p_value is not None
    assert gain.p_value < 0.01
    assert gain.low is not None
    assert gain.low > 0


def test_reconstruction_gain_is_the_mean_difference_of_own_and_other_model() -> None:
    who = splits()
    rows = found(who, judged(who, ranks(who, memory=0.1, seed=2)))
    own, other = (rows.first(MEAN, measure=RANK, source=NEIGHBORS, by=by).value for by in ("target", "reference"))
    assert rows.first(GAIN, measure=RANK, source=NEIGHBORS).value == pytest.approx(other - own)


def test_reconstruction_gain_of_a_measure_to_maximize_is_positive() -> None:
    who = splits()
    of_a = np.array(who["role"].to_pylist()) == "target"
    named = {("A", NEIGHBORS, CLASS_NAMED): of_a.astype(float), ("B", NEIGHBORS, CLASS_NAMED): (~of_a).astype(float)}
    assert found(who, judged(who, named)).first(GAIN, measure=CLASS_NAMED).value == pytest.approx(1.0)


def test_reconstruction_gain_changes_its_sign_when_the_models_are_exchanged() -> None:
    who = splits()
    values = ranks(who, memory=0.1, seed=3)
    exchanged = {("B" if model == "A" else "A", *rest): of for (model, *rest), of in values.items()}
    gains = [found(who, judged(who, of)).first(GAIN, measure=RANK).value for of in (values, exchanged)]
    assert gains[0] == pytest.approx(-gains[1])


@pytest.mark.parametrize("persons", [1, 4])
@pytest.mark.usefixtures("without_power")
def test_reconstruction_gain_without_memory_is_rejected_at_its_level(persons: int) -> None:
    values = ranks(splits(), memory=0.0, seed=4)
    for (model, *_), of in values.items():
        of += 0.2 * (model == "A")  # one model is better throughout
        of += np.repeat(np.random.default_rng(5).normal(0, 0.1, size=IMAGES // persons), persons) * (model == "B")
    p_values = []
    for seed in range(100):
        who = splits(seed=seed, persons=persons)
        p_values.append(found(who, judged(who, values), replicates=100, permutations=100).first(GAIN, measure=RANK).p_value)
    assert np.mean(np.array(p_values) <= 0.05) <= 0.13  # a level of .05 gives more than this in 1 of 1,000 cases


def test_pictures_show_something_only_beyond_the_nearest_public_image() -> None:
    who = splits()
    values = ranks(who, memory=0.15, seed=6)

    def beyond(nearest: float, mean: float) -> Finding:
        public = {
            (model, source, measure): of + by
            for (model, _, measure), of in values.items()
            for source, by in ((NEAREST, nearest), (AVERAGED, mean))
        }
        return found(who, judged(who, values | public)).first(BEYOND_PUBLIC, measure=RANK)

    surpassed = beyond(0.1, 0.2)
    assert surpassed.p_value is not None
    assert surpassed.p_value <= 0.01
    assert surpassed.value == pytest.approx(0.1)
    for bars in ((-0.1, 0.1), (0.1, -0.1)):
        assert beyond(*bars).p_value == pytest.approx(1.0, abs=0.01)
        assert beyond(*bars).value == pytest.approx(-0.1)


def test_surpassing_the_nearest_public_image_without_memory_is_not_significant() -> None:
    who = splits()
    values = ranks(who, memory=0.0, seed=7)
    public = {
        (model, source, measure): of + 0.3 for (model, _, measure), of in values.items() for source in (NEAREST, AVERAGED)
    }
    beyond = found(who, judged(who, values | public)).first(BEYOND_PUBLIC, measure=RANK)
    assert beyond.p_value == pytest.approx(found(who, judged(who, values)).first(GAIN, measure=RANK).p_value)
    assert beyond.params[f"p, {NEAREST}"] < 0.01


@pytest.mark.usefixtures("without_power")
def test_rare_names_surpass_public_images_no_more_often_than_the_level() -> None:
    """Four pictures name a rare class more often than one does; therefore single pictures are compared."""
    who, rng, rejected = splits(), np.random.default_rng(12), 0
    for _ in range(100):
        named = rng.random((2, 4, IMAGES)) < 0.05
        values = {(model, NEIGHBORS, CLASS_NAMED): named[number].mean(axis=0) for number, model in enumerate("AB")}
        first = {(model, NEIGHBORS, f"{CLASS_NAMED}{FIRST}"): named[number, 0] for number, model in enumerate("AB")}
        public = {
            (model, source, f"{CLASS_NAMED}{FIRST}"): rng.random(IMAGES) < 0.05
            for model in "AB"
            for source in (NEAREST, AVERAGED)
        }
        row = found(who, judged(who, values | first | public), replicates=100, permutations=100).first(BEYOND_PUBLIC)
        rejected += row.params[f"p, {NEAREST}"] <= 0.05
    assert rejected <= 13


def test_only_pictures_from_neighbours_are_tested() -> None:
    who = splits()
    values = ranks(who, memory=0.1, seed=8) | ranks(who, memory=0.1, seed=9, source=WHOLE)
    values |= {(model, source, RANK_PIXELS): of for (model, source, _), of in values.items()}
    values |= {(model, NEIGHBORS, COPIES): np.zeros(IMAGES) for model in "AB"}
    rows = found(who, judged(who, values))
    tests = [(row.metric, row.params["measure"], row.params["source"]) for row in rows.tests()]
    assert tests == [(GAIN, RANK, NEIGHBORS), (GAIN, RANK_PIXELS, NEIGHBORS)]
    assert not rows.all(GAIN, measure=COPIES)
    copies = rows.first(MEAN, measure=COPIES, by="target")
    assert copies.high is not None
    assert copies.high > 0.02  # none of 80 images does not exclude a few


def test_reconstruction_gain_is_averaged_over_pairs_of_models() -> None:
    who = splits()
    values = [ranks(who, memory=memory, seed=10) for memory in (0.0, 0.2)]
    rows = found(who, *(judged(who, of, pair=pair) for pair, of in enumerate(values)))
    alone = [found(who, judged(who, of)).first(GAIN, measure=RANK).value for of in values]
    assert rows.first(GAIN, measure=RANK).value == pytest.approx(np.mean(alone))


def test_images_without_a_value_are_left_out() -> None:
    who = splits()
    values = ranks(who, memory=0.1, seed=11)
    values["A", NEIGHBORS, RANK][:5] = np.nan
    assert found(who, judged(who, values)).first(GAIN, measure=RANK).n == IMAGES - 5


def test_the_page_makes_no_claim_about_memory_without_a_verdict() -> None:
    who = splits()
    rows = list(reconstruction_rows([judged(who, ranks(who, memory=0.15, seed=1))], who, QUICK))
    for word, said in ((0.001, "which is memory"), (0.9, "Without a verdict, as the headlines of this run show no memory")):
        head = tested("share_excess", {}, 0.1, n=80, p_value=word, family="headline")
        assert said in _said(settle([head, *rows], alpha=0.05, headlines=["headline"]).all(GAIN, MEAN, BEYOND_PUBLIC))
    untested_rows = Findings(map(untested, rows))
    assert _said(untested_rows) == "Nothing was tested, as the images were not assigned to the sets at random."
