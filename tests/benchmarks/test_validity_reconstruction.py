"""Sides are redrawn within classes and turned against memory, and p-values are those of the pictures that are asked for."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.validity import reconstruction
from benchmarks.validity.reconstruction import (
    CONFIG,
    EXCHANGED,
    KINDS,
    OWN,
    PARTS,
    UNRELATED,
    Audited,
    judge_null,
    p_values,
    redrawn,
    sides_of,
    turned_against,
    with_sides,
)
from memlib.audits.deja_vu.reconstruction.findings import BEYOND_PUBLIC, GAIN
from memlib.audits.deja_vu.reconstruction.judging import AVERAGED, NEAREST, RANK
from memlib.audits.deja_vu.reconstruction.sampling import SHUFFLED
from memlib.audits.deja_vu.tables import NEIGHBORS, RECONSTRUCTIONS

IMAGES, CLASSES, PUBLIC = 80, 4, 5


def splits() -> pa.Table:
    """Return audited images of which every other one of a class is on side A, and public ones among them."""
    count = IMAGES + PUBLIC
    roles = np.where(np.arange(count) // CLASSES % 2 == 0, "target", "reference").astype(object)
    roles[::17] = "public"
    ids, labels = [f"{n:03d}" for n in range(count)], np.arange(count) % CLASSES
    return pa.table({"example_id": ids, "role": roles.tolist(), "label": labels, "group": pa.nulls(count, pa.string())})


def audited(memory: float, *, source: str = NEIGHBORS) -> Audited:
    """Return ranks that are lower under the model of an image's own side, by `memory`, for pictures of one source."""
    who, rng = splits(), np.random.default_rng(0)
    images = who.filter(pa.compute.not_equal(who["role"], "public"))
    of_a = sides_of(who)
    rows: list[dict[str, Any]] = []
    for model, own in (("A", of_a), ("B", ~of_a)):
        for name in (NEIGHBORS, SHUFFLED, NEAREST, AVERAGED):
            ranks = 0.5 + rng.normal(0, 0.1, size=len(of_a)) - memory * own * (name == source)
            rows += [
                {
                    "example_id": image, "direction": "A", "pair": 0, "model": model, "source": name, "measure": RANK,
                    "value": float(rank), "candidates": 9,
                }
                for image, rank in zip(images["example_id"].to_pylist(), ranks, strict=True)
            ]  # fmt: skip
    return Audited(pa.Table.from_pylist(rows, schema=RECONSTRUCTIONS.arrow), who)


def test_redrawn_sides_keep_classes_and_public_images() -> None:
    who, rng = splits(), np.random.default_rng(0)
    draws = np.array([redrawn(rng, who) for _ in range(200)])
    labels = who["label"].to_numpy()[np.array(who["role"].to_pylist()) != "public"]
    for label in range(CLASSES):
        assert set(draws[:, labels == label].sum(axis=1)) == {sides_of(who)[labels == label].sum()}
    assert np.abs(draws.mean(axis=0) - 0.5).max() < 0.15
    again = with_sides(who, draws[0])
    assert (sides_of(again) == draws[0]).all()
    assert again.filter(pa.compute.equal(again["role"], "public")).num_rows == PUBLIC


def test_turned_against_puts_at_most_half_of_the_images_on_their_side() -> None:
    trained, rng = sides_of(splits()), np.random.default_rng(1)
    draws = [turned_against(trained, rng.permutation(trained)) for _ in range(50)]
    assert all((draw == trained).mean() <= 0.5 for draw in draws)
    assert (turned_against(trained, trained) == ~trained).all()
    assert (turned_against(trained, ~trained) == ~trained).all()


def test_p_values_use_the_requested_source_of_pictures_and_the_given_sides() -> None:
    remembered = audited(0.15, source=SHUFFLED)
    tests = p_values(remembered.judged, remembered.splits, source=SHUFFLED)
    assert list(tests) == [f"{GAIN}, {RANK}", f"{BEYOND_PUBLIC}, {RANK}"]
    least = 1 / (1 + CONFIG.permutations)
    assert tests[f"{GAIN}, {RANK}"] == pytest.approx(least)
    assert p_values(remembered.judged, remembered.splits)[f"{GAIN}, {RANK}"] > least
    exchanged = with_sides(remembered.splits, ~sides_of(remembered.splits))
    assert p_values(remembered.judged, exchanged, source=SHUFFLED)[f"{GAIN}, {RANK}"] > 0.95


@pytest.mark.parametrize("kind", KINDS)
def test_null_reports_redraws_and_the_actual_sides_of_each_kind(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconstruction, "REDRAWS", 3)
    monkeypatch.setattr(reconstruction, "audited", lambda kind, number: audited(0.15 if kind == OWN else 0.0))
    row = judge_null(f"{kind}/0")
    assert list(row["p"]) == ([EXCHANGED, UNRELATED] if kind == OWN else [kind])
    assert all(len(values) == 3 for tests in row["p"].values() for values in tests.values())
    if kind == OWN:
        assert row["once"][OWN][f"{GAIN}, {RANK}"] <= 0.05
        assert row["once"][EXCHANGED][f"{GAIN}, {RANK}"] > 0.95
    part = PARTS[0]
    text = "\n".join(part.report([row | {"unit": f"{kind}/0", "seconds": 1.0}] * 2))
    assert f"{GAIN}: null, measure" in text
    assert f"{BEYOND_PUBLIC}: null, measure" in text
    assert "the first image of each run | 2 |" in text


def test_plant_report_counts_gains_only_where_memory_is_shown() -> None:
    found = [0.1, 0.05, 0.15, 0.001]
    missed = [0.01, -0.05, 0.05, 0.4]
    rows = [
        {"unit": str(n), "seconds": 1.0, "word": word, "tests": {"share_excess": found, f"{GAIN}, {RANK}": gain}}
        for n, (word, gain) in enumerate([("shown", found), ("shown", missed), ("inconclusive", found)])
    ]
    text = "\n".join(PARTS[1].report(rows))
    assert "Memory is shown in 2 of 3 splits, of objects in 2." in text
    assert "where memory is shown:\n1 of 2" in text
    assert f"{GAIN}, {RANK} | 0.070" in text
    assert "2 of 3" in text
