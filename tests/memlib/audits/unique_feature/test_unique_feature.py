"""M scores by hand, the null and the plant of the audit, and its refusals."""

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import scipy.stats
from pydantic import ValidationError

from memlib.audits.unique_feature.analysis import unit_means, unit_weights
from memlib.audits.unique_feature.calibrated_maxima import ByLabel, exchanged_maxima, maxima, ranks
from memlib.audits.unique_feature.curves import canary_curves, draw_curves, epoch_curves, removal_curves, strongest
from memlib.audits.unique_feature.external import check_nulls, own_units, summarize_external
from memlib.audits.unique_feature.findings import _detectable_share, summarize
from memlib.audits.unique_feature.formulas import divergence, m_kl, m_of_label, m_of_labels, m_w
from memlib.audits.unique_feature.recipe import Config, Recipe
from memlib.audits.unique_feature.report.tables import correlation_table
from memlib.audits.unique_feature.scoring import Net, Pull, Shown, calibrate, nets_of, score, score_by_label
from memlib.audits.unique_feature.tables import UNITS, with_column
from memlib.errors import UserError
from memlib.findings import Findings
from memlib.specs import NetsSpec
from memlib.stats.inference import exceedance_p, exchanges, mean_interval
from memlib.tables import SUMMARY
from tests.chance import least_of, most_of

CONFIG = Config(replicates=200, permutations=400)
LOG = np.log


def logits(*probabilities: Any) -> np.ndarray:
    return LOG(np.asarray(probabilities, dtype=np.float64))


def test_m_is_the_mean_difference_of_the_labels_probability() -> None:
    clean = logits([[0.5, 0.5], [0.2, 0.8], [0.4, 0.6]])
    featured = logits([[0.4, 0.6], [0.1, 0.9], [0.1, 0.9]])
    value, p = m_of_label(clean, featured, 1, "probability")
    np.testing.assert_allclose(value, [(0.1 + 0.1 + 0.3) / 3])
    expected = scipy.stats.ttest_rel([0.6, 0.9, 0.9], [0.5, 0.8, 0.6], alternative="greater")
    np.testing.assert_allclose(p, [expected.pvalue])
    on_logits, _ = m_of_label(np.zeros((1, 2, 2)), np.array([[[0.0, 1], [0, 3]]]), 1, "logit")
    np.testing.assert_allclose(on_logits, [2.0])


def test_scores_are_zero_if_the_feature_changes_no_output() -> None:
    same = np.random.default_rng(0).normal(size=(3, 10, 4))
    for value, p in (m_of_label(same, same, 2, "probability"), m_of_labels(same, same, "logit"), m_w(same, same, 1)):
        assert (value == 0).all()
        assert (p == 1).all()


def test_black_box_m_on_probabilities_is_never_below_zero() -> None:
    rng = np.random.default_rng(0)
    clean, featured = rng.normal(size=(2, 50, 20, 5))
    values, _ = m_of_labels(clean, featured, "probability")
    np.testing.assert_allclose(values.sum(axis=1), 0, atol=1e-12)  # so that the highest cannot be negative
    assert (values.max(axis=1) >= 0).all()


def test_scores_of_2022_equal_values_computed_by_hand() -> None:
    clean, featured, random = logits([[0.5, 0.5]] * 2), logits([[0.25, 0.75]] * 2), logits([[0.4, 0.6]] * 2)
    np.testing.assert_allclose(m_w(featured, random, 1)[0], [LOG(0.75) - LOG(0.6)])
    kl_u, kl_r = 0.5 * LOG(0.5 / 0.25) + 0.5 * LOG(0.5 / 0.75), 0.5 * LOG(0.5 / 0.4) + 0.5 * LOG(0.5 / 0.6)
    np.testing.assert_allclose(divergence(clean, featured)[0], [kl_u] * 2)
    np.testing.assert_allclose(m_kl(clean, featured, random)[0], [kl_u - kl_r])


def shown(nets: int, effect: np.ndarray, *, classes: int = 3, seed: int = 0) -> Shown:
    """Class scores in which the feature adds `effect` (nets,) to class 1."""
    rng = np.random.default_rng(seed)

    def pair(count: int) -> tuple[np.ndarray, np.ndarray]:
        clean = rng.normal(size=(nets, count, classes))
        featured = clean + rng.normal(0, 0.05, size=clean.shape)
        featured[..., 1] += effect[:, None]
        return clean, featured

    by_label = {label: pair(30) for label in range(classes)}
    return Shown([1], by_label, pair(40), {1: [rng.normal(size=(nets, 30, classes))]}, [rng.normal(size=(nets, 40, classes))])


def test_grey_and_black_box_scores_find_the_label_by_themselves() -> None:
    nets = [Net(0, 0, False, 5, 1)]
    seen = shown(1, np.array([2.0]))
    white = {(r["metric"], r["output"]): r for r in score(nets, seen, CONFIG).to_pylist()}
    rows = {(r["metric"], r["output"]): r for r in maxima(ByLabel(nets, score_by_label(seen, CONFIG)), CONFIG).to_pylist()}
    assert rows["m_grey", "probability"]["label"] == rows["m_black", "logit"]["label"] == 1
    assert rows["m_grey", "logit"]["value"] == pytest.approx(white["m_white", "logit"]["value"])  # no controls, no centre
    assert rows["m_grey", "logit"]["corrected_p"] == min(1.0, 3 * rows["m_grey", "logit"]["published_p"])
    assert rows["m_black", "logit"]["corrected_p"] is None
    assert rows["m_black", "logit"]["n"] == 40
    assert white["m_white", "probability"]["with_feature"] > white["m_white", "probability"]["without_feature"]


def test_a_label_raised_in_all_nets_does_not_hide_the_label_of_the_canary() -> None:
    """In all nets the feature raises label 0 by 2; in canary nets it also raises label 1 by .5."""
    nets = [Net(i, 0, control, i, 1) for control in (False, True) for i in range(10)]
    scores = np.zeros((20, 4, 3, 4))
    scores[:, :, 0, 0] = 2 + np.random.default_rng(0).normal(0, 0.1, (20, 1))
    scores[:10, :, 1, 0] = 0.5
    assert (scores[..., 0].argmax(axis=2) == 0).all()  # the published maximum
    rows = [r for r in maxima(ByLabel(nets, scores), CONFIG).to_pylist() if not r["control"]]
    assert {r["label"] for r in rows} == {1}
    assert all(r["value"] == pytest.approx(r["with_feature"] - r["without_feature"] - r["centre"]) for r in rows)


def test_labels_without_examples_have_no_score() -> None:
    seen = shown(2, np.array([2.0, 0.0]), classes=4)
    seen = Shown(seen.labels, {label: seen.by_label[label] for label in (1, 2)}, seen.other, {}, [])
    nets = [Net(0, 0, False, 5, 1), Net(0, 0, True, 5, 1)]
    rows = maxima(ByLabel(nets, score_by_label(seen, CONFIG)), CONFIG).to_pylist()
    assert {r["label"] for r in rows if r["metric"] == "m_grey"} <= {1, 2}
    assert rows[0]["corrected_p"] == min(1.0, 2 * rows[0]["published_p"])


Cells = dict[tuple[str, int], ByLabel]


def scored(
    effects: np.ndarray, null: np.ndarray, *, seed: int = 0, draw: int = 0, variant: str = ""
) -> tuple[pa.Table, Cells]:
    """Units of canary nets with these effects and of as many controls, paired by seed."""
    nets = [Net(i, 0, False, 100 + i, 1) for i in range(len(effects))] + [
        Net(i, 0, True, 100 + i, 1) for i in range(len(null))
    ]
    seen = shown(len(nets), np.concatenate([effects, null]), seed=seed)
    by_label = ByLabel(nets, score_by_label(seen, CONFIG))
    table = pa.concat_tables([calibrate(score(nets, seen, CONFIG)), maxima(by_label, CONFIG)])
    for name, value in (("variant", variant), ("data_seed", draw), ("example_id", "x"), ("epoch", 1)):
        table = with_column(table, name, [value] * table.num_rows)
    return table, {(variant, draw): by_label}


def found_in(units: pa.Table, cells: Cells, config: Config = CONFIG, **more: Any) -> Findings:
    return Findings.read(summarize(units, cells, config, **more))


def test_a_planted_effect_is_shown_and_exchanged_nets_are_inconclusive() -> None:
    rng = np.random.default_rng(1)
    wobble = rng.normal(0, 0.3, 40)  # every net reacts to the feature somehow
    planted = found_in(*scored(wobble + 2, wobble))
    head = planted.head
    assert head.params["group"] == "canary - control"
    assert (head.verdict, planted.verdict.word, head.family) == ("shown", "shown", "headline")
    assert head.p_value is not None
    assert head.p_value < 0.01
    assert head.detectable is not None
    assert head.detectable < head.value
    calibrated = planted.all(metric="m_white", output="probability", criterion="calibrated")
    assert [(row.metric, row.value, row.verdict) for row in calibrated] == [("proportion_memorized", 1, "shown")]
    assert calibrated.head.null_value == pytest.approx(2 / 41)
    others = planted.tests("scores")
    assert {row.params["metric"] for row in others} == {"m_white", "m_grey", "m_black", "m_w", "m_kl"}
    assert len(others) == 7
    assert "remember the feature" in planted.verdict.sentence
    nothing = found_in(*scored(rng.permutation(wobble), wobble, seed=4))
    assert nothing.head.verdict == "inconclusive"
    assert nothing.verdict.word == "inconclusive"
    assert "power of 80 %" in nothing.verdict.explanation


def test_only_findings_that_are_tests_have_a_null_and_a_verdict() -> None:
    for row in found_in(*scored(np.full(40, 5.0), np.zeros(40))):
        of_tests = (row.verdict is not None, row.null_value is not None, row.p_adjusted is not None)
        assert of_tests == (row.is_test,) * 3
        assert row.is_test <= (row.has(group="canary - control") or row.metric == "proportion_memorized")


def test_a_bound_in_the_recipe_allows_the_verdict_bounded() -> None:
    rng = np.random.default_rng(2)
    wobble = rng.normal(0, 0.02, 40)
    units = scored(rng.permutation(wobble), wobble)
    bounded = found_in(*units, CONFIG.model_copy(update={"bound": 0.5}))
    assert bounded.head.verdict == bounded.verdict.word == "bounded"
    assert bounded.head.upper_bound is not None
    assert bounded.head.upper_bound < 0.5
    tight = found_in(*units, CONFIG.model_copy(update={"bound": 1e-6}))
    assert tight.head.verdict == "inconclusive"
    assert "bound" not in CONFIG.model_dump(mode="json")  # keys of runs without a bound stay


def test_verdict_explains_that_too_few_seeds_cannot_reject() -> None:
    found = found_in(*scored(np.array([2.0, 2.1, 2.2, 1.9]), np.zeros(4)))
    assert found.head.smallest_p == 1 / 16
    assert found.head.detectable is None
    assert found.verdict.word == "inconclusive"
    assert "too small" in found.verdict.sentence
    assert "0.062" in found.verdict.explanation


def test_detectable_effect_does_not_depend_on_the_observed_effect() -> None:
    rng = np.random.default_rng(1)
    wobble = rng.normal(0, 0.3, 40)
    noise = rng.normal(0, 0.3, 40)
    logit = CONFIG.model_copy(update={"outputs": ("logit",)})
    found = []
    for effect in (0.0, 3.0):
        units, cells = scored(wobble + noise + effect, wobble)
        keep = pa.array([row["output"] != "probability" for row in units.to_pylist()])
        cells = {key: ByLabel(cell.nets, cell.scores[:, 2:]) for key, cell in cells.items()}
        found.append(found_in(units.filter(keep), cells, logit).head)
    assert found[0].value + 2.9 < found[1].value
    assert found[0].detectable == pytest.approx(found[1].detectable, rel=0.25)


def test_the_verdict_of_variants_is_adjusted_for_their_number() -> None:
    """Each of two variants has 5 pairs: p = 1/32, which Holm doubles."""
    parts = [scored(np.full(5, 2.0), np.zeros(5), variant=name) for name in ("a", "b")]
    cells = parts[0][1] | parts[1][1]
    found = found_in(pa.concat_tables([units for units, _ in parts]), cells)
    assert [row.p_adjusted for row in found[:2]] == [1 / 16, 1 / 16]
    assert found.verdict.word == "inconclusive"


# -- nulls --------------------------------------------------------------------------------------------


def correlated(rng: np.random.Generator, pairs: int, labels: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """(2, pairs, 6) and (2, pairs, labels): scores of nets that share a seed, all eight correlated; side 1 is the control."""
    common = rng.normal(size=(1, pairs, 1)) + 0.7 * rng.standard_t(4, size=(2, pairs, 1))
    plain = common + 0.5 * rng.normal(size=(2, pairs, 6))
    pushed = np.linspace(0, 3, labels)  # some labels are pushed by any feature
    return plain, common + pushed + rng.normal(size=(2, pairs, labels))


@pytest.mark.parametrize("pairs", [6, 20])
def test_the_headline_and_max_t_hold_their_level(pairs: int) -> None:
    from memlib.stats.multiplicity import max_t_p

    rng, weights, tries = np.random.default_rng(pairs), np.full(pairs, 1 / pairs), 500
    single, joint, naive = 0, 0, 0
    for seed in range(tries):
        plain, labelled = correlated(rng, pairs)
        signs = exchanges(pairs, 199, seed=seed)
        gains = plain[0] - plain[1]
        sides = (labelled[0], labelled[1], labelled[:, :0].reshape(0, 4))
        observed = [*gains.mean(axis=0), exchanged_maxima(*sides, np.ones((1, pairs), np.int8), weights)[0]]
        null = np.column_stack([signs @ gains / pairs, exchanged_maxima(*sides, signs, weights)])
        p = (1 + (null >= np.array(observed) - 1e-12).sum(axis=0)) / (1 + len(signs))
        single, naive = single + (p[0] <= 0.05), naive + (p.min() <= 0.05)
        joint += max_t_p(np.array(observed), null).min() <= 0.05
    limit = 0.05 * tries + 4 * np.sqrt(tries * 0.05 * 0.95)
    assert single < limit
    assert joint < limit
    assert naive > limit or pairs == 6


def test_exchanged_maxima_equal_a_plain_loop() -> None:
    rng = np.random.default_rng(0)
    canary, control, further = rng.normal(size=(5, 3)), rng.normal(size=(5, 3)), rng.normal(size=(2, 3))
    signs = exchanges(5, 99, seed=0)
    for sign, found in zip(signs, exchanged_maxima(canary, control, further, signs, np.full(5, 0.2)), strict=True):
        seen = np.where(sign[:, None] == 1, canary, control)
        clean = np.where(sign[:, None] == 1, control, canary)
        total = 0.0
        for i in range(5):
            centre = np.vstack([np.delete(clean, i, axis=0), further]).mean(axis=0)
            total += ((seen[i] - centre).max() - (clean[i] - centre).max()) / 5
        assert found == pytest.approx(total)


def slow_ranks(values: np.ndarray, nets: list[Net]) -> list[float | None]:
    """Compare each net with every control of another seed, label by label."""
    p_values: list[float | None] = []
    for own, net in zip(values, nets, strict=True):
        others = np.array([v for v, n in zip(values, nets, strict=True) if n.control and n.seed != net.seed])
        if len(others) < 19:
            p_values.append(None)
            continue
        centre = (others.sum(axis=0) + own) / (len(others) + 1)
        reached = sum((other - centre).max() >= (own - centre).max() - 1e-12 for other in others)
        p_values.append((1 + reached) / (1 + len(others)))
    return p_values


@pytest.mark.parametrize("kind", ["continuous", "rounded", "mostly equal", "far apart"])
def test_ranks_by_sorting_equal_a_plain_comparison_of_all_nets(kind: str) -> None:
    rng, ranked = np.random.default_rng(0), 0
    for _ in range(15):
        count, labels = int(rng.integers(2, 90)), int(rng.integers(1, 9))
        seeds = rng.integers(0, rng.integers(1, count + 1), count)
        nets = [Net(i, 0, bool(rng.random() < 0.7), int(seeds[i]), 1) for i in range(count)]
        values = rng.normal(size=(count, labels)) * {"far apart": 1e3}.get(kind, 1e-3)
        if kind == "rounded":
            values = np.round(values, 3)
        elif kind == "mostly equal":
            values[rng.random(count) < 0.7] = 0.0
        found = ranks(values, nets)
        assert found == slow_ranks(values, nets)
        ranked += sum(p is not None for p in found)
    assert ranked > 100


@pytest.mark.parametrize("level", [0.05, 0.01, 1e-6])
def test_the_detectable_share_of_single_nets_equals_a_search_from_one_hit_on(level: float) -> None:
    needed = [h for h in range(1, 61) if exceedance_p(h, 60, rank=3, num_controls=60) <= level]
    share = _detectable_share(60, 3, 60, level)
    assert share == pytest.approx(scipy.stats.beta.ppf(0.8, needed[0], 61 - needed[0]))
    assert _detectable_share(2, 3, 60, 1e-6) is None


def test_ranks_of_centred_maxima_hold_their_level() -> None:
    rng = np.random.default_rng(0)
    nets = [Net(i, 0, i > 0, i, 1) for i in range(20)]
    p = [ranks(rng.normal(size=(20, 5)) + np.arange(5), nets)[0] for _ in range(800)]
    assert abs(np.mean(np.array(p) <= 0.05) - 0.05) < 4 * np.sqrt(0.05 * 0.95 / 800)


def test_intervals_over_canaries_cover_where_those_over_nets_do_not() -> None:
    """There are 5 canaries with 10 nets each: canaries differ, and nets of one canary are alike."""
    rng = np.random.default_rng(0)
    canary = np.repeat(np.arange(5), 10)
    held = {"canaries": 0, "nets": 0}
    for draw in range(300):
        gains = rng.normal(size=5)[canary] + 0.5 * rng.normal(size=50)
        for over, values in (("canaries", unit_means([gains], [canary])), ("nets", gains)):
            low, high = mean_interval(values, replicates=200, seed=draw)
            held[over] += low <= 0 <= high
    assert held["canaries"] >= least_of(300, 0.94)
    assert held["nets"] < 200


def test_intervals_are_over_canaries_if_nets_are_nested_in_canaries() -> None:
    units, cells = scored(np.linspace(0.5, 1.5, 20), np.zeros(20))
    canary = [net // 5 for net in units["net"].to_pylist()]
    found = found_in(with_column(units, "canary", canary), cells)
    assert found.head.interval is not None
    assert (found.head.interval.over, found.head.n, found.head.params["exchanged"]) == ("canaries", 4, "nets")
    nested = [row.interval for row in found if row.metric != "correlation" and row.interval is not None]
    assert {interval.over for interval in nested} == {"canaries"}
    assert all(row.interval is None for row in found.tests("single nets"))


def test_self_influence_of_canaries_is_reported_as_a_diagnostic() -> None:
    found = found_in(*scored(np.zeros(5), np.zeros(5)), pulls={"": [Pull("x", 1.0, 3.0)]}).all("self_influence_canary")
    assert [(row.value, row.role) for row in found] == [(3.0, "diagnostic"), (1.0, "diagnostic")]


def test_unit_means_are_over_draws_or_else_canaries_or_else_nets() -> None:
    values, canary = np.array([1.0, 3, 8]), np.array([0, 0, 1])
    np.testing.assert_allclose(unit_means([values], [canary]), [2, 8])
    np.testing.assert_allclose(unit_means([values, values + 1], [canary, canary]), [5, 6])
    np.testing.assert_allclose(unit_means([values], [np.zeros(3, int)]), values)
    for parts in ([values], [values, values + 1]):
        whose = [canary] * len(parts)
        assert unit_weights(whose) @ np.concatenate(parts) == pytest.approx(unit_means(parts, whose).mean())


def test_published_criterion_has_many_false_positives_and_the_calibrated_one_few() -> None:
    rng = np.random.default_rng(2)
    nothing = found_in(*scored(rng.normal(0, 0.5, 100), rng.normal(0, 0.5, 100)))
    shares = nothing.all("proportion_memorized", metric="m_white", output="logit")
    found = {row.params["criterion"]: row.value for row in shares}
    assert found["published"] > 0.3
    assert found["calibrated"] < 0.15


def test_calibrated_false_positives_are_at_alpha() -> None:
    """Compare each net with 99 other controls: about 5 in 100 exceed (binomial, four standard deviations)."""
    rng = np.random.default_rng(3)
    hits = total = 0
    for seed in range(6):
        units, _ = scored(rng.normal(0, 0.5, 100), rng.normal(0, 0.5, 99), seed=seed)
        for metric in ("m_white", "m_black"):
            p = [
                r["calibrated_p"]
                for r in units.to_pylist()
                if r["metric"] == metric and r["output"] == "logit" and not r["control"]
            ]
            hits, total = hits + sum(value <= 0.05 for value in p), total + len(p)
    expected = 0.05 * total
    assert abs(hits - expected) < 4 * np.sqrt(total * 0.05 * 0.95) * np.sqrt(2)  # the controls are drawn too


def test_a_net_is_not_compared_with_its_own_control() -> None:
    units, _ = scored(np.zeros(20), np.zeros(20))
    found = {r["calibrated_p"] for r in units.to_pylist()}
    assert all(p is not None and p * 20 == pytest.approx(round(p * 20)) for p in found)  # 19 others each
    few, cells = scored(np.zeros(18), np.zeros(18))
    assert {r["calibrated_p"] for r in few.to_pylist()} == {None}
    criteria = {row.params.get("criterion") for row in found_in(few, cells)}
    assert criteria == {None, "published"}


def test_one_seed_gives_no_proportion_and_no_test() -> None:
    found = found_in(*scored(np.array([1.0]), np.array([0.0])))
    assert not found.all("proportion_memorized", "proportion_excess")
    assert all(row.p_value is None and row.interval is None for row in found)
    assert found.verdict.sentence == "Models from a single seed cannot tell memory from chance."


def test_without_controls_nothing_is_tested_and_the_verdict_inconclusive() -> None:
    found = found_in(*scored(np.array([1.0, 2.0, 1.5]), np.array([])))
    assert not found.tests()
    assert found.verdict.word == "inconclusive"


@pytest.mark.parametrize(("draws", "exchanged"), [(3, "nets"), (5, "data")])
def test_several_draws_of_the_data_are_the_units_of_the_test(draws: int, exchanged: str) -> None:
    """Whole draws are exchanged where 2^-draws can reach alpha, else nets within pairs."""
    parts = [scored(np.full(20, 1.0 + draw / 10), np.zeros(20), seed=draw, draw=draw) for draw in range(draws)]
    units = pa.concat_tables([part for part, _ in parts])
    cells = {key: cell for _, by_draw in parts for key, cell in by_draw.items()}
    head = found_in(units, cells).head
    assert head.interval is not None
    assert head.interval.over == "data"
    assert head.params["exchanged"] == exchanged
    assert head.n == draws
    assert head.verdict == "shown"
    assert {point["x"] for point in draw_curves(units, CONFIG)} == set(range(draws))


def test_the_summary_and_the_units_keep_their_schemas() -> None:
    units, cells = scored(np.zeros(20), np.zeros(20))
    assert units.schema.names == UNITS.arrow.names
    summary = summarize(units, cells, CONFIG)
    assert summary.schema.names == SUMMARY.arrow.names
    for table, schema in ((units, UNITS), (summary, SUMMARY)):
        keys = list(zip(*(table[name].to_pylist() for name in schema.keys), strict=True))
        assert len(set(keys)) == len(keys)


def test_removal_curves_need_parts_of_the_feature_and_canary_curves_several_canaries() -> None:
    units, _ = scored(np.linspace(0, 1, 20), np.zeros(20))
    assert not list(removal_curves(units))
    part = with_column(units, "feature", ["canary without 5 px"] * units.num_rows)
    assert {point["x"] for point in removal_curves(pa.concat_tables([units, part]))} == {0.0, 5.0}
    assert not list(canary_curves(units))  # a single canary
    assert strongest(units, "logit")[0] in (18, 19)


def test_epoch_curves_are_calibrated_and_keep_counting_early_stopped_nets() -> None:
    rows = [
        {
            "variant": "", "data_seed": 0, "net": net, "control": control, "seed": net, "label": 1, "epoch": epoch,
            "output": "logit", "value": float(net % 7) + (5 if not control else 0), "published_p": 0.01, "accuracy": 0.9, "training_loss": 0.1,
            "validation_loss": None, "best_epoch": 2,
        }
        for net in range(25) for control in (True, False) for epoch in range(1, 4 if net < 20 else 3)
    ]  # fmt: skip
    found = list(epoch_curves(pa.Table.from_pylist(rows), CONFIG))
    last = {
        (r["series"], json.loads(r["params"])["criterion"]): r["y"]
        for r in found
        if r["curve"] == "proportion_by_epoch" and r["x"] == 3
    }
    assert last["canary", "published"] > 0.8
    assert last["canary", "calibrated"] > last["control", "calibrated"]
    values = {(r["series"], r["x"]): r["y"] for r in found if r["curve"] == "m_by_epoch"}
    assert values["canary", 3] == pytest.approx(values["canary", 2])  # five nets stopped after epoch 2 and still count


def own(effects: Any, *, label: int | None = None) -> pa.Table:
    """Units of one model to which each feature does something at label 1; the first feature is the tested one."""
    parts = [score_by_label(shown(1, np.array([effect]), seed=place), CONFIG)[0] for place, effect in enumerate(effects)]
    names = ["canary", *(f"N{place}" for place in range(1, len(effects)))]
    return own_units(names, np.stack(parts), CONFIG, label=label)


def found_in_external(units: pa.Table, config: Config = CONFIG, *, null: str = "names") -> Findings:
    return Findings.read(summarize_external(units, config, null=null))


@pytest.mark.parametrize("label", [None, 1])
def test_an_external_model_is_tested_by_the_rank_of_its_feature_among_null_features(label: int | None) -> None:
    others = np.random.default_rng(0).normal(0, 0.3, 99)
    found = found_in_external(own([3.0, *others], label=label))
    assert found.head.metric == "m_black"
    assert found.head.p_value == pytest.approx(1 / 100)
    assert found.verdict.word == "shown"
    assert "99 other people's names" in found.verdict.sentence
    tests = found.tests()
    assert {row.metric for row in tests} == {"m_black", "m_grey" if label is None else "m_white"}
    assert {row.verdict for row in tests} == {"shown"}
    assert all(row.p_adjusted == pytest.approx(4 / 100) for row in tests)
    nothing = found_in_external(own([0.0, *others], label=label))
    assert nothing.verdict.word == "inconclusive"
    assert "power of 80 %" in nothing.verdict.explanation


def test_the_sentence_on_an_external_model_counts_the_features_that_it_reacts_to_less() -> None:
    found = found_in_external(own([3.0, 9.0, 9.0, *np.random.default_rng(0).normal(0, 0.3, 397)]))
    assert found.verdict.word == "shown"
    assert found.verdict.sentence.endswith("reacts to it more strongly than to 397 of 399 other people's names.")


def test_bound_applies_only_to_the_headline_test_of_an_external_model() -> None:
    others = np.random.default_rng(0).normal(0, 0.3, 99)
    found = found_in_external(own([0.0, *others]), CONFIG.model_copy(update={"bound": 0.9}))
    assert found.verdict.word == "bounded"
    assert [row.bound for row in found.tests()] == [0.9, None, None, None]


def test_a_model_that_reacts_to_all_names_alike_is_inconclusive() -> None:
    others = 3 + np.random.default_rng(0).normal(0, 0.3, 99)
    assert found_in_external(own([3.1, *others])).verdict.word == "inconclusive"


def test_tests_of_an_external_model_keep_their_level_without_memory() -> None:
    """Features are exchangeable, though all of them push some labels; the 4 scores are adjusted by Holm."""
    rng, tries, hits = np.random.default_rng(0), 300, 0
    names = ["canary", *(f"N{place}" for place in range(79))]
    for _ in range(tries):
        scores = np.zeros((80, 4, 4, 4))
        scores[..., 0] = rng.normal(size=(80, 1, 4)) + 0.5 * rng.normal(size=(80, 4, 4)) + np.arange(4)
        hits += found_in_external(own_units(names, scores, CONFIG)).verdict.word == "shown"
    assert hits <= most_of(tries, 0.05)


def test_too_few_null_features_are_refused_or_reported() -> None:
    with pytest.raises(UserError, match="needs 19"):
        check_nulls(18, 0.05)
    check_nulls(19, 0.05)
    found = found_in_external(own([9.0, *np.zeros(25)]), null="letters")
    assert "too small" in found.verdict.sentence
    assert all(row.detectable is None for row in found)
    with pytest.raises(UserError, match="no example has that class"):
        own(np.zeros(3), label=7)


def test_controls_have_the_seeds_of_the_nets() -> None:
    nets = nets_of(NetsSpec(seeds=3, controls=8), [4, 7], seed=0)
    canary = [n for n in nets if not n.control]
    control = [n for n in nets if n.control]
    assert [(n.canary, n.label) for n in canary] == [(0, 4)] * 3 + [(1, 7)] * 3
    assert len({n.seed for n in canary}) == 6
    assert [n.seed for n in control[:6]] == [n.seed for n in canary]
    assert [n.canary for n in control[:6]] == [n.canary for n in canary]
    assert len({n.seed for n in control}) == 8
    few = [n for n in nets_of(NetsSpec(seeds=10, controls=4), [4, 7], seed=0) if n.control]
    assert [(n.number, n.canary) for n in few] == [(0, 0), (5, 0), (10, 1), (15, 1)]  # spread over the canaries
    shared = nets_of(NetsSpec(seeds=1, same_seed=True), [4, 7], seed=0)
    assert len({n.seed for n in shared}) == 1


def test_a_level_that_no_rank_can_reach_calls_no_net_memorizing() -> None:
    strict = CONFIG.model_copy(update={"alpha": 0.01})
    assert not found_in(*scored(np.full(50, 9.0), np.zeros(50)), strict).all(criterion="calibrated")


def test_nets_are_calibrated_at_their_own_label_after_every_epoch() -> None:
    """Differences of scores between labels alone are not memory."""
    rng = np.random.default_rng(0)
    rows = [
        {
            "variant": "", "data_seed": 0, "net": net, "control": control, "seed": 2 * net + control, "label": net % 2,
            "epoch": 1, "output": "logit", "value": 10.0 * (net % 2) + rng.normal(), "published_p": 0.5, "accuracy": 0.9,
            "training_loss": 0.1, "validation_loss": None, "best_epoch": 1,
        }
        for net in range(200) for control in (True, False) if not control or net % 2 or net < 60
    ]  # fmt: skip
    found = list(epoch_curves(pa.Table.from_pylist(rows), CONFIG))
    share = {r["series"]: r["y"] for r in found if r["curve"] == "proportion_by_epoch" and '"calibrated"' in r["params"]}
    assert share["canary"] < 0.13


def test_self_influence_and_m_are_compared_over_canaries_not_nets() -> None:
    units, cells = scored(np.linspace(0, 1, 20), np.zeros(20))
    units = with_column(units, "example_id", [f"canary {net // 4}" for net in units["net"].to_pylist()])
    influence = {("", 0, f"canary {i}"): float(i) for i in range(5)}
    found = found_in(units, cells, influence=influence)
    assert {row.n for row in found.all(of="self_influence and m_white")} == {5}
    table = correlation_table(found)
    assert table is not None
    assert "self-influence and white box (M)" in {row[1] for row in table.rows}


BASE: dict[str, Any] = {
    "data": {"source": {"kind": "two_moons"}},
    "canary": {"feature": {"kind": "scalar"}},
    "model": {"architecture": "mlp"},
    "training": {"objective": {"kind": "supervised"}, "epochs": 1, "augment": None},
}
OWN: dict[str, Any] = {"trained": {"model": "a:b", "weights": "w"}, "model": None, "training": None}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"trained": {"model": "a:b", "weights": "w"}}, "either model and training, or trained"),
        ({"model": None}, "either model and training, or trained"),
        ({"variants": {"x": {"training.nope": 1}}}, "nope"),
        ({"data": {"source": {"kind": "npz", "path": "x"}}, "data_seeds": 3}, "npz has no seed"),
        ({"training": {**BASE["training"], "augment": {}}}, "could cut the feature away"),
        ({"training": {**BASE["training"], "augment": {"crop_scale": [1, 1]}}}, "crop_ratio could cut"),
        ({"score": {"latent": True}}, "same_seed"),
        (
            {"score": {"latent": True}, "nets": {"seeds": 1, "same_seed": True}, "data_seeds": 2},
            "units of one draw of the data; set data_seeds to 1",
        ),
        ({"nets": {"same_seed": True}}, "set nets.seeds to 1"),
        ({"nets": {"controls": 0}}, "greater than or equal to 1"),
        ({"score": {"removed_pixels": [-3]}}, "greater than or equal to 1"),
        ({"score": {"per_epoch_also": ["m_w"]}}, "set score.per_epoch to true as well"),
        ({"variants": {"x": {"score.alpha": 0.01}}}, "which all variants share; set them at the top level"),
        ({"variants": {"x": {}, "y": {}}, "baselines": {"x": "z"}}, "names 'z', which is not a variant; variants are: x, y"),
        ({"variants": {"x": {}}, "baselines": {"x": "x"}}, "compares 'x' with itself"),
        ({**OWN, "baselines": {"x": "y"}}, "names 'x', which is not a variant; variants are: none"),
        (
            {"canary": {**BASE["canary"], "choice": "by_id", "example_ids": ["a"], "label": 1}},
            "does not apply to choice: by_id",
        ),
        ({"model": {"architecture": "mlp", "dropout_conv": 0.5}}, "no convolutions"),
        ({"training": {**BASE["training"], "epochs": 0, "patience": 2}}, "patience counts epochs"),
        (
            {**OWN, "nets": {"seeds": 3}, "score": {"per_epoch": True}},
            "nets, score.per_epoch apply only to models that memlib trains",
        ),
        ({**OWN, "canary": {**BASE["canary"], "repeats": 2}}, "except its feature and label"),
        ({**OWN, "model": BASE["model"]}, "either model and training, or trained"),
        ({"probe": {"kind": "data"}}, "must be used together"),
        ({"score": {"outputs": []}}, "score.outputs is empty"),
        ({"training": {**BASE["training"], "objective": {"kind": "vicreg"}}}, "does not train a classifier"),
        ({"training": {**BASE["training"], "checkpoint_epochs": [1]}}, "has no effect here"),
        ({"model": {"architecture": "resnet18"}, "score": {"per_epoch": True}}, "not for resnet18"),
    ],
)
def test_recipes_with_contradictory_settings_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Recipe.model_validate(BASE | changes)


def test_variants_are_recipes_of_their_own() -> None:
    recipe = Recipe.model_validate(BASE | {"variants": {"a": {"data.source.z_noise": 0.5}, "b": {}}, "data_seeds": 2})
    sources = [(cell.variant, cell.data_seed, cell.recipe.data.source.model_dump()) for cell in recipe.cells]
    assert [(variant, draw, source["z_noise"], source["seed"]) for variant, draw, source in sources] == [
        ("a", 0, 0.5, 0), ("a", 1, 0.5, 1), ("b", 0, 0, 0), ("b", 1, 0, 1),
    ]  # fmt: skip
