import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from memlib.audits.deja_vu.findings import curves, most_correlated, most_memorized, summarize
from memlib.audits.deja_vu.recipe import Config, Recipe
from memlib.audits.deja_vu.scores import CATEGORIES, Decoding, categorize, score
from memlib.audits.deja_vu.tables import UNITS
from memlib.audits.deja_vu.verdict import Recognition, recognition
from memlib.findings import Finding, Findings
from memlib.tables import CURVES, SUMMARY
from tests.assignments import assert_exact, redraw_exactly
from tests.chance import least_of

FAST = Config(k=(9,), replicates=400, permutations=400)


def decodings(
    *, known: float = 0.0, common: float = 0.0, better: float = 0.0, per_class: int = 30, classes: int = 5, k: int = 9,
    seed: int = 0, pairs: int = 1,
) -> list[Decoding]:  # fmt: skip
    """Votes drawn from a model of memory.

    Args:
        known: share of its own training images whose class the target sees among the neighbours.
        common: share of images that both models know (correlation).
        better: share of all images that the model trained on A knows, whoever trained on them.
    """
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), per_class)
    found = []
    for pair in range(pairs):
        for direction in ("A", "B"):
            shared = rng.random(len(labels)) < common

            def votes(share: float, shared: np.ndarray = shared) -> np.ndarray:
                votes = rng.integers(0, classes, size=(len(labels), k))
                sees = shared | (rng.random(len(labels)) < share)
                return np.where(sees[:, None] & (rng.random(votes.shape) < 0.6), labels[:, None], votes)

            target = votes(known + (better if direction == "A" else 0))
            reference = votes(better if direction == "B" else 0)
            names = [f"{direction}/{i:04d}" for i in range(len(labels))]
            found.append(Decoding(direction, pair, "projector_3", 10, "maximal", names, labels, target, reference))
    return found


def findings(config: Config = FAST, **options: Any) -> dict[tuple[str, str], Finding]:
    units = score(decodings(**options), [f"c{i}" for i in range(options.get("classes", 5))], config)
    table = summarize(units, config, num_classes=options.get("classes", 5))
    assert table.schema.equals(SUMMARY.arrow)
    rows = Findings.read(table).all(**{"class": None})
    return {
        (row.metric + (f"@{row.params['p']:g}" if "p" in row.params else ""), row.params["direction"]): row for row in rows
    }


def p_of(row: Finding) -> float:
    assert row.p_value is not None
    return row.p_value


def covers(row: Finding, value: float) -> bool:
    assert row.low is not None
    assert row.high is not None
    return bool(row.low <= value <= row.high)


def test_units_and_summary_equal_an_example_computed_by_hand() -> None:
    # A: 4 images of classes 0 0 1 1; B: one image, class 1
    a = Decoding(
        "A", 0, "last", 1, "maximal", ["a", "b", "c", "d"], np.array([0, 0, 1, 1]),
        target=np.array([[0, 0, 0], [0, 0, 1], [0, 0, 1], [1, 1, 1]]),
        reference=np.array([[0, 0, 1], [1, 1, 1], [1, 1, 0], [0, 0, 0]]),
    )  # fmt: skip
    b = Decoding("B", 0, "last", 1, "maximal", ["e"], np.array([1]), np.array([[1, 1, 1]]), np.array([[1, 0, 0]]))
    units = score([a, b], ["zero", "one"], Config(k=(3,)))
    assert units.schema.equals(UNITS.arrow)
    assert units["category"].to_pylist() == ["correlated", "memorized", "misrepresented", "memorized", "memorized"]
    assert units["target_prediction"].to_pylist() == [0, 0, 0, 1, 1]
    assert units["target_confidence"][0].as_py() == 0.0
    mixed = np.log(1 / 3) / 3 + 2 * np.log(2 / 3) / 3
    assert units["target_confidence"][1].as_py() == pytest.approx(mixed)
    table = summarize(units, Config(k=(3,), p=0.5, replicates=100, permutations=100), num_classes=2)
    rows = Findings.read(table).all(**{"class": None})
    values = {(row.metric, row.params.get("p"), row.params["direction"]): row.value for row in rows}
    # target on A: right a, b, d; the two surest are a and d. reference on A: surest are b and d, both wrong
    assert values["accuracy_target", 0.5, "A"] == 1.0
    assert values["accuracy_reference", 0.5, "A"] == 0.0
    assert values["accuracy_target", 1.0, "both"] == (0.75 + 1) / 2
    assert values["accuracy_reference", 1.0, "both"] == (0.5 + 0) / 2
    assert values["share_excess", None, "A"] == (2 - 1) / 4
    assert values["share_excess", None, "both"] == pytest.approx(((-1 + 1) / 2 + 1) / 2)  # class 1 alone is on both sides
    assert values["deja_vu_score", 0.5, "A"] == values["deja_vu_score", 0.5, "B"] == 1.0
    assert 0.4 < values["deja_vu_score", 0.5, "both"] < 0.6  # B lacks class 0, which alone would give a positive score


def test_categorize_names_the_four_combinations_of_target_and_reference() -> None:
    right = np.array([True, True, False, False])
    expected = ["correlated", "memorized", "misrepresented", "unassociated"]
    assert [CATEGORIES[number] for number in categorize(right, np.array([True, False, True, False]))] == expected


def test_planted_memory_is_found() -> None:
    found = findings(known=0.3)
    excess, score_ = found["share_excess", "both"], found["deja_vu_score@0.2", "both"]
    assert 0.15 < excess.value < 0.35
    assert excess.verdict == score_.verdict == "shown"
    assert p_of(excess) < 1e-6
    assert score_.p_value == pytest.approx(1 / 401)
    assert (excess.low or 0) > 0
    assert (excess.upper_bound or 0) > excess.value
    reference = found["accuracy_reference@1", "both"]
    assert covers(reference, reference.params["chance"])
    shares = [found[f"share_{name}", "both"].value for name in CATEGORIES]
    assert sum(shares) == pytest.approx(1)
    assert shares[0] - shares[1] == pytest.approx(excess.value)


def test_correlation_without_memory_is_inconclusive() -> None:
    found = findings(common=0.5)
    assert (found["accuracy_reference@1", "both"].low or 0) > 0.2
    assert found["share_excess", "both"].verdict == "inconclusive"
    assert p_of(found["share_excess", "both"]) > 0.01


def test_a_better_model_has_an_excess_in_one_direction_but_not_in_both_together() -> None:
    found = findings(better=0.4, per_class=60, seed=1)
    assert (found["share_excess", "A"].low or 0) > 0 > (found["share_excess", "B"].high or 0)
    assert found["share_excess", "A"].role == "estimate"
    assert found["share_excess", "both"].verdict == "inconclusive"
    assert p_of(found["deja_vu_score@0.2", "both"]) > 0.01


def test_exchanging_target_and_reference_flips_the_sign_of_every_finding() -> None:
    forward = decodings(known=0.3)
    backward = [
        Decoding(d.direction, d.pair, d.layer, d.epoch, d.crop, d.example_ids, d.labels, d.reference, d.target)
        for d in forward
    ]
    names, metrics = [f"c{i}" for i in range(5)], ("share_excess", "deja_vu_score")
    rows, turned = (
        Findings.read(summarize(score(d, names, FAST), FAST, num_classes=5)).all(*metrics) for d in (forward, backward)
    )
    assert rows
    assert [row.params for row in rows] == [row.params for row in turned]
    assert [row.value for row in rows] == pytest.approx([-row.value for row in turned])


def test_summary_and_curves_do_not_depend_on_the_order_of_units() -> None:
    units = score(decodings(known=0.2), [f"c{i}" for i in range(5)], FAST)
    shuffled = units.take(pa.array(np.random.default_rng(0).permutation(units.num_rows)))
    assert summarize(units, FAST, num_classes=5).equals(summarize(shuffled, FAST, num_classes=5))
    assert curves(units).sort_by("x").equals(curves(shuffled).sort_by("x")) or np.allclose(
        sorted(curves(units)["y"].to_pylist()), sorted(curves(shuffled)["y"].to_pylist())
    )


@pytest.mark.usefixtures("without_power")
@pytest.mark.parametrize("per_class", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.long
def test_intervals_cover_with_few_images_per_class(per_class: int) -> None:
    config = Config(k=(9,), replicates=200, permutations=100)
    options = {"per_class": per_class, "classes": 60 // per_class, "common": 0.3}
    covered = 0
    for seed in range(100):
        covered += covers(findings(config, seed=seed, **options)["share_excess", "both"], 0)
    assert covered >= least_of(100, 0.95)


def test_config_drops_repeated_k() -> None:
    assert Config(k=(3, 5, 3)).k == (3, 5)


@pytest.mark.usefixtures("without_power")
@pytest.mark.slow
def test_intervals_cover_planted_memory() -> None:
    config = Config(k=(9,), replicates=200, permutations=100)
    values = [findings(config, seed=s, known=0.3, per_class=400)["share_excess", "both"].value for s in range(5)]
    covered = 0
    for seed in range(60):
        row = findings(config, seed=seed + 100, known=0.3, per_class=20)["share_excess", "both"]
        covered += covers(row, float(np.mean(values)))
    assert covered >= least_of(60, 0.95)


def test_three_pairs_give_intervals_over_examples_and_trainings() -> None:
    one, three = findings(known=0.2), findings(known=0.2, pairs=3)
    before, after = one["share_excess", "both"], three["share_excess", "both"]
    assert [row.interval and row.interval.over for row in (before, after)] == ["examples", "examples and trainings"]
    assert p_of(after) <= p_of(before)
    ends = [row.interval for (name, _), row in three.items() if name.startswith(("acc", "share_m"))]
    assert all(interval is not None and 0 <= interval.low <= (interval.high or 0) <= 1 for interval in ends)
    assert after.n == before.n


def test_several_k_are_scored_from_the_same_neighbours() -> None:
    config = Config(k=(9, 5, 1), replicates=100, permutations=100)
    units = score(decodings(known=0.3), [f"c{i}" for i in range(5)], config)
    assert sorted(set(units["k"].to_pylist())) == [1, 5, 9]
    assert Findings.read(summarize(units, config, num_classes=5)).head.params["k"] == 9
    alone = score(decodings(known=0.3, k=9), [f"c{i}" for i in range(5)], Config(k=(5,)))
    assert units.filter(pa.array([k == 5 for k in units["k"].to_pylist()])).equals(alone)


def test_curves_end_at_the_overall_accuracy() -> None:
    units = score(decodings(known=0.3), [f"c{i}" for i in range(5)], FAST)
    table = curves(units)
    assert table.schema.equals(CURVES.arrow)
    found = findings(known=0.3)
    for side in ("target", "reference"):
        last = max((r for r in table.to_pylist() if r["series"] == side), key=lambda r: r["x"])
        assert last["x"] == 1
        assert last["y"] == pytest.approx(found[f"accuracy_{side}@1", "both"].value)


def test_galleries_show_the_largest_gaps_in_confidence_as_in_the_paper() -> None:
    units = score(decodings(known=0.5, common=0.2), [f"c{i}" for i in range(5)], FAST)
    chosen = most_memorized(units, 5).to_pylist()
    assert all(row["category"] == "memorized" for row in chosen)
    gaps = [row["target_confidence"] - row["reference_confidence"] for row in chosen]
    everyone = [r["target_confidence"] - r["reference_confidence"] for r in units.to_pylist() if r["category"] == "memorized"]
    assert gaps == sorted(everyone, reverse=True)[:5]
    both = most_correlated(units, 3).to_pylist()
    assert all(row["category"] == "correlated" for row in both)
    assert most_memorized(units, 0).num_rows == 0


def test_probe_gaps_are_means_of_the_directions() -> None:
    units = score(decodings(), [f"c{i}" for i in range(5)], FAST)
    probes = pa.Table.from_pylist(
        [
            {"layer": layer, "direction": d, "pair": 0, "n": 10, "train_accuracy": t, "test_accuracy": 0.5}
            | ({"knn_accuracy": t - 0.2, "knn_n": 5} if layer == "backbone" else {"knn_accuracy": None, "knn_n": None})
            for layer in ("backbone", "projector_3")
            for d, t in (("A", 0.9), ("B", 0.7))
        ]
    )
    rows = Findings.read(summarize(units, FAST, num_classes=5, probes=probes))
    named = rows.first("knn_accuracy")
    assert rows.first("probe_gap_backbone").value == pytest.approx(0.3)
    assert rows.first("probe_gap_projector").n == 20
    assert named.value == pytest.approx(0.6)
    assert named.n == 10
    assert named.low == pytest.approx(0.2624, abs=1e-4)  # of 6 of 10, Clopper and Pearson


@pytest.mark.parametrize(
    ("decode", "message"),
    [
        ({"layers": ["projector_9"]}, "projector_9.*choose from backbone, projector_1, projector_2, projector_3"),
        ({"epochs": [3]}, r"decode\.epochs names epoch 3, but training keeps only \[5\]"),
        ({"k": []}, "at least 1 item"),
        ({"k": [0]}, "greater than or equal to 1"),
        ({"layers": []}, "at least one layer"),
        ({"p": 1.5}, "less than or equal to 1"),
    ],
)
def test_recipes_with_unknown_layers_epochs_or_settings_are_refused(decode: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Recipe.model_validate(
            {
                "data": {"source": {"kind": "scenes"}},
                "split": {"train_per_class": 5},
                "training": {"objective": {"kind": "vicreg"}, "epochs": 5},
                "decode": decode,
            }
        )


# -- the design -----------------------------------------------------------------------------------------


def of_images(answers: np.ndarray, sides: np.ndarray, labels: np.ndarray, groups: list[str] | None = None) -> pa.Table:
    """Units from each model's own answers: (num_pairs, 2, num_images) whether the models of A and of B are right."""
    found = []
    for pair, (a, b) in enumerate(answers):
        for direction, mine in (("A", sides), ("B", ~sides)):
            target, reference = (a, b) if direction == "A" else (b, a)
            wrong = (labels[mine] + 1) % 5
            votes = [np.where(right[mine], labels[mine], wrong)[:, None].repeat(9, axis=1) for right in (target, reference)]
            names = [f"{i:04d}" for i in np.flatnonzero(mine)]
            own = None if groups is None else [groups[i] for i in np.flatnonzero(mine)]
            found.append(Decoding(direction, pair, "last", 1, "maximal", names, labels[mine], *votes, groups=own))
    return score(found, [f"c{i}" for i in range(5)], FAST)


def drawn(rng: np.random.Generator, labels: np.ndarray) -> np.ndarray:
    sides = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        mine = rng.permutation(np.flatnonzero(labels == label))
        sides[mine[: len(mine) // 2]] = True
    return sides


def found_in(units: pa.Table, **changes: Any) -> Findings:
    config = FAST.model_copy(update={"replicates": 100, "permutations": 100} | changes)
    return Findings.read(summarize(units, config, num_classes=5))


def twice_2_of_4() -> Iterator[np.ndarray]:
    """Every way to draw two of four images of each of two classes, 36 ways."""
    for first, second in itertools.product(itertools.combinations(range(4), 2), repeat=2):
        yield np.isin(np.arange(8), [*first, *(4 + place for place in second)])


@pytest.mark.usefixtures("without_power")
@pytest.mark.parametrize("better", [0.0, 0.4])
@pytest.mark.parametrize("pairs", [1, 3])
def test_the_tests_are_exact_for_any_two_models_and_every_draw(
    better: float, pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the draw of the sides is random: one model is much better, or several pairs of models agree."""
    redraw_exactly(monkeypatch)
    rng, labels = np.random.default_rng([pairs, 1]), np.repeat([0, 1], 4)
    ease = rng.random(8)
    answers = np.stack([[rng.random(8) < ease * (1 - better), rng.random(8) < ease] for _ in range(pairs)])
    rows = [found_in(of_images(answers, sides, labels), permutations=35) for sides in twice_2_of_4()]  # all other draws
    assert_exact([p_of(row.head) for row in rows])
    scores = [row.first("deja_vu_score", direction="both") for row in rows]
    assert_exact([p_of(row) for row in scores])


@pytest.mark.usefixtures("without_power")
@pytest.mark.parametrize("pairs", [1, 2, 3, 5])
def test_several_pairs_of_models_keep_the_power_of_one(pairs: int) -> None:
    labels, found = np.repeat(np.arange(5), 20), 0
    for seed in range(30):
        rng = np.random.default_rng([seed, 2])
        sides = drawn(rng, labels)
        right = rng.random((pairs, 2, 100)) < 0.2
        right[:, 0] |= sides & (rng.random(100) < 0.2)
        right[:, 1] |= ~sides & (rng.random(100) < 0.2)
        found += found_in(of_images(right, sides, labels)).head.verdict == "shown"
    assert found >= 15


@pytest.mark.usefixtures("without_power")
def test_the_test_is_exact_when_all_images_of_a_person_are_on_the_same_side() -> None:
    """Three of six persons with ten images each were drawn; half of the draws would reject if images were drawn."""
    labels, persons = np.zeros(60, dtype=np.int64), np.repeat(np.arange(6), 10)
    right = np.repeat([[True, True, False, False, False, True], [False, False, True, True, True, False]], 10, axis=1)[None]
    alone, together = [], []
    for first in itertools.combinations(range(6), 3):
        sides = np.isin(persons, first)
        alone.append(p_of(found_in(of_images(right, sides, labels)).head))
        together.append(p_of(found_in(of_images(right, sides, labels, [f"p{i}" for i in persons])).head))
    assert_exact(together)
    assert np.mean(np.array(alone) <= 0.05) == 0.5


def test_verdict_is_inconclusive_with_few_images_or_no_discordant_answers() -> None:
    """With twenty images or no discordant pair, nothing is bounded, and the page explains that nothing could be shown."""
    labels = np.repeat(np.arange(5), 4)
    rng = np.random.default_rng(0)
    same = np.ones((1, 2, 20), dtype=bool)
    found = found_in(of_images(same, drawn(rng, labels), labels), bound=0.1)
    assert found.head.verdict == "inconclusive"
    assert found.head.smallest_p == 1
    # six answers could be due to memory: all of one class (1/6 of its draws) and two of another (2/6); a seventh: 1/36
    assert found.head.upper_bound == pytest.approx(6 / 20)
    assert "too few images" in found.verdict.sentence
    nothing = found_in(of_images(~same, drawn(rng, labels), labels), bound=0.1).head
    assert nothing.upper_bound is None
    assert nothing.verdict == "inconclusive"


def test_with_enough_images_a_bound_fixed_beforehand_gives_the_verdict_bounded() -> None:
    labels, rng = np.repeat(np.arange(5), 400), np.random.default_rng(4)
    sides = drawn(rng, labels)
    right = np.repeat((rng.random(2000) < 0.5)[None], 2, axis=0)[None] ^ (rng.random((1, 2, 2000)) < 0.02)
    assert found_in(of_images(right, sides, labels), bound=0.1).head.verdict == "bounded"
    assert found_in(of_images(right, sides, labels)).head.verdict == "inconclusive"


@pytest.mark.usefixtures("without_power")
@pytest.mark.parametrize("seed", range(3))
def test_the_upper_bound_covers_planted_memory_in_all_but_its_error_of_draws(seed: int) -> None:
    """Answers that are right only because of training on the image; at most one of 36 draws may be missed."""
    rng, labels, missed = np.random.default_rng([seed, 5]), np.repeat([0, 1], 4), 0
    plain, memory = rng.random((2, 8)) < 0.3, rng.random(8) < 0.7
    for sides in twice_2_of_4():
        own = np.stack([sides, ~sides]) & memory
        bound = found_in(of_images((plain | own)[None], sides, labels)).head.upper_bound
        assert bound is not None
        missed += bound < (own & ~plain).sum() / 8 - 1e-12
    assert missed <= 1


def test_settings_and_classes_are_adjusted_together() -> None:
    config = Config(k=(9, 5, 1), replicates=100, permutations=100)
    rows = Findings.read(summarize(score(decodings(), [f"c{i}" for i in range(5)], config), config, num_classes=5))
    tests = rows.tests()
    assert {row.family for row in tests} == {"headline", "settings", "classes"}
    assert len(rows.tests("settings")) == 5
    assert len(rows.tests("classes")) == 5
    assert all((row.p_adjusted or 0) >= p_of(row) for row in tests)
    assert all(row.verdict is None for row in rows if not row.is_test)


def test_an_excess_in_the_opposite_direction_is_inconclusive_and_not_bounded() -> None:
    labels, rng = np.repeat(np.arange(5), 40), np.random.default_rng(0)
    sides = drawn(rng, labels)
    right = np.stack([np.where(sides, rng.random(200) < 0.3, rng.random(200) < 0.7)] * 2)[None]
    right[0, 1] = np.where(sides, rng.random(200) < 0.7, rng.random(200) < 0.3)
    found = found_in(of_images(right, sides, labels), bound=0.01)
    assert found.head.value < -0.2
    assert found.head.upper_bound is None
    assert found.verdict.word == "inconclusive"
    assert "opposite direction to memorization" in found.verdict.sentence


def test_models_that_agree_on_many_images_have_the_verdict_bounded() -> None:
    labels, rng = np.repeat(np.arange(5), 800), np.random.default_rng(0)
    same = np.repeat((rng.random(4000) < 0.5)[None], 2, axis=0)[None]
    found = found_in(of_images(same, drawn(rng, labels), labels), bound=0.1)
    assert found.head.verdict == found.verdict.word == "bounded"


@pytest.mark.parametrize(("named", "word"), [(0.21, "inconclusive"), (0.6, "bounded")])
def test_verdict_is_bounded_only_if_the_attack_recognizes_unseen_images(named: float, word: str) -> None:
    """A model that knows its training images by heart, and nothing of the classes, places unseen images at random."""
    labels, rng = np.repeat(np.arange(5), 800), np.random.default_rng(0)
    same = np.repeat((rng.random(4000) < 0.2)[None], 2, axis=0)[None]
    units = of_images(same, drawn(rng, labels), labels)
    probe = {"layer": "backbone", "pair": 0, "n": 400, "train_accuracy": 1.0, "test_accuracy": named, "knn_n": 400}
    probes = pa.Table.from_pylist([probe | {"direction": side, "knn_accuracy": named} for side in ("A", "B")])
    config = Config(k=(1,), replicates=100, permutations=200, bound=0.1)
    rows = Findings.read(summarize(units, config, num_classes=5, probes=probes))
    assert rows.head.verdict == rows.verdict.word == word
    assert ("cannot see anything in this model" in rows.verdict.sentence) is (word == "inconclusive")
    assert ("would have shown it" in rows.verdict.explanation) is (word == "bounded")
    low = rows.first("knn_accuracy").low
    assert low is not None
    assert recognition(rows) == Recognition(pytest.approx(named), low, 0.2)


def test_intervals_have_a_positive_width_even_if_all_answers_are_equal() -> None:
    labels = np.repeat(np.arange(5), 8)
    right = np.zeros((1, 2, 40), dtype=bool)
    units = of_images(right, drawn(np.random.default_rng(0), labels), labels)
    rows = Findings.read(summarize(units, Config(k=(1,), replicates=100, permutations=100), num_classes=5))
    ends = [row.interval for row in rows if row.interval is not None]
    assert ends
    assert all(interval.high is not None and interval.low < interval.high for interval in ends)
    accuracy = rows.first("accuracy_target", p=1)
    assert accuracy.value == accuracy.low == 0
    assert accuracy.high == pytest.approx(1 - 0.025 ** (1 / 40))


def test_the_explanation_states_the_effective_number_of_persons() -> None:
    labels, persons = np.zeros(60, dtype=np.int64), np.repeat(np.arange(12), [1, 9] * 6)
    rng = np.random.default_rng(0)
    sides = np.isin(persons, rng.permutation(12)[:6])
    found = found_in(of_images(rng.random((1, 2, 60)) < 0.5, sides, labels, [f"p{i}" for i in persons]))
    params, interval = found.head.params, found.head.interval
    assert (params["groups"], params["effective_groups"]) == (12, pytest.approx(60**2 / (6 + 6 * 81), abs=0.05))
    assert "over groups, of which there are 12, as precise as 7 of equal size" in found.verdict.explanation
    assert interval is not None
    assert interval.over == "groups"
