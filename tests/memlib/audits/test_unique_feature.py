"""M scores by hand, the null and the plant of the audit, and its refusals."""

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import scipy.stats
from pydantic import ValidationError

from memlib.audits.unique_feature import (
    Config,
    Net,
    Recipe,
    Shown,
    calibrate,
    canary_curves,
    divergence,
    draw_curves,
    epoch_curves,
    m_kl,
    m_of_label,
    m_of_labels,
    m_w,
    nets_of,
    removal_curves,
    score,
    strongest,
    summarize,
    summarize_own,
)
from memlib.specs import NetsSpec
from memlib.tables import SUMMARY, UNIQUE_FEATURE_UNITS

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


def test_the_same_examples_give_nothing() -> None:
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


def test_the_2022_scores_by_hand() -> None:
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


def test_grey_and_black_box_find_the_label_without_being_told() -> None:
    units = score([Net(0, 0, False, 5, 1)], shown(1, np.array([2.0])), CONFIG)
    rows = {(r["metric"], r["output"]): r for r in units.to_pylist()}
    assert rows["m_grey", "probability"]["label"] == rows["m_black", "logit"]["label"] == 1
    assert rows["m_grey", "logit"]["value"] == rows["m_white", "logit"]["value"]
    assert rows["m_grey", "logit"]["corrected_p"] == min(1.0, 3 * rows["m_grey", "logit"]["published_p"])
    assert rows["m_black", "logit"]["corrected_p"] is None
    assert {r["n"] for r in units.to_pylist() if r["metric"] == "m_black"} == {40}
    assert rows["m_white", "probability"]["with_feature"] > rows["m_white", "probability"]["without_feature"]


def scored(effects: np.ndarray, null: np.ndarray, *, seed: int = 0) -> pa.Table:
    """Units of canary nets with these effects and of as many controls, paired by seed."""
    nets = [Net(i, 0, False, 100 + i, 1) for i in range(len(effects))] + [
        Net(i, 0, True, 100 + i, 1) for i in range(len(null))
    ]
    table = score(nets, shown(len(nets), np.concatenate([effects, null]), seed=seed), CONFIG)
    for name, value in (("variant", ""), ("data_seed", 0), ("example_id", "x"), ("epoch", 1)):
        kind = UNIQUE_FEATURE_UNITS.arrow.field(name).type
        table = table.set_column(table.schema.get_field_index(name), name, pa.array([value] * table.num_rows, type=kind))
    return calibrate(table)


def rows_of(summary: pa.Table, **params: Any) -> list[dict[str, Any]]:
    rows = [{**row, "params": json.loads(row["params"])} for row in summary.to_pylist()]
    return [row for row in rows if all(row["params"].get(key) == value for key, value in params.items())]


def test_plant_and_null_of_the_whole_audit() -> None:
    rng = np.random.default_rng(1)
    wobble = rng.normal(0, 0.3, 40)  # every net reacts to the feature somehow
    planted = summarize(scored(wobble + 2, wobble), CONFIG)
    head = {**planted.to_pylist()[0]}
    assert json.loads(head["params"])["group"] == "canary - control"
    assert head["verdict"] == "above_null"
    assert head["p_value"] < 0.01
    calibrated = rows_of(planted, metric="m_white", output="probability", criterion="calibrated")
    assert {row["metric"] for row in calibrated} == {"proportion_excess", "proportion_memorized", "proportion_control"}
    assert next(r for r in calibrated if r["metric"] == "proportion_memorized")["value"] == 1
    nothing = summarize(scored(rng.permutation(wobble), wobble, seed=4), CONFIG)
    assert nothing.to_pylist()[0]["verdict"] == "at_null"


def test_the_published_criterion_cries_wolf_and_the_calibrated_one_does_not() -> None:
    rng = np.random.default_rng(2)
    nothing = summarize(scored(rng.normal(0, 0.5, 100), rng.normal(0, 0.5, 100)), CONFIG)
    found = {
        r["params"]["criterion"]: r["value"]
        for r in rows_of(nothing, metric="m_white", output="logit")
        if r["metric"] == "proportion_memorized"
    }
    assert found["published"] > 0.3
    assert found["calibrated"] < 0.15


def test_calibrated_false_positives_are_at_alpha() -> None:
    """Each net against 99 other controls: about 5 in 100 (binomial, four standard deviations)."""
    rng = np.random.default_rng(3)
    hits = total = 0
    for seed in range(6):
        units = scored(rng.normal(0, 0.5, 100), rng.normal(0, 0.5, 99), seed=seed)
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
    units = scored(np.zeros(20), np.zeros(20))
    ranks = {r["calibrated_p"] for r in units.to_pylist()}
    assert all(p is not None and p * 20 == pytest.approx(round(p * 20)) for p in ranks)  # 19 others each
    few = scored(np.zeros(19), np.zeros(19))
    assert {r["calibrated_p"] for r in few.to_pylist()} == {None}
    criteria = {r["params"].get("criterion") for r in rows_of(summarize(few, CONFIG))}
    assert criteria == {None, "published"}


def test_one_seed_gives_no_proportion_and_no_test() -> None:
    summary = summarize(scored(np.array([1.0]), np.array([0.0])), CONFIG)
    assert not {row["metric"] for row in summary.to_pylist()} & {"proportion_memorized", "proportion_excess"}
    assert all(row["p_value"] is None and row["ci_low"] is None for row in summary.to_pylist())


def test_no_controls_no_claim() -> None:
    summary = summarize(scored(np.array([1.0, 2.0, 1.5]), np.array([])), CONFIG)
    assert not any(row["verdict"] == "above_null" for row in summary.to_pylist() if row["metric"] != "correlation")


def test_draws_of_the_data_are_the_units() -> None:
    parts = []
    for draw in range(4):
        units = scored(np.full(20, 1.0 + draw / 10), np.zeros(20), seed=draw)
        parts.append(units.set_column(1, "data_seed", pa.array([draw] * units.num_rows)))
    units = pa.concat_tables(parts)
    head = summarize(units, CONFIG).to_pylist()[0]
    assert json.loads(head["params"])["interval"] == "data"
    assert head["n"] == 4
    assert head["ci_low"] is not None
    assert set(draw_curves(units, CONFIG)["x"].to_pylist()) == {0, 1, 2, 3}


def test_the_summary_and_the_units_keep_their_schemas() -> None:
    units = scored(np.zeros(20), np.zeros(20))
    assert units.schema.names == UNIQUE_FEATURE_UNITS.arrow.names
    assert summarize(units, CONFIG).schema.names == SUMMARY.arrow.names
    keys = list(zip(*(units[name].to_pylist() for name in UNIQUE_FEATURE_UNITS.keys), strict=True))
    assert len(set(keys)) == len(keys)


def test_curves() -> None:
    units = scored(np.linspace(0, 1, 20), np.zeros(20))
    assert removal_curves(units).num_rows == 0
    part = units.set_column(
        units.schema.get_field_index("feature"), "feature", pa.array(["canary without 5 px"] * units.num_rows)
    )
    assert set(removal_curves(pa.concat_tables([units, part]))["x"].to_pylist()) == {0.0, 5.0}
    assert canary_curves(units).num_rows == 0  # a single canary
    assert strongest(units, "logit", 2)[0] in (18, 19)


def test_early_stopped_nets_and_calibration_by_epoch() -> None:
    rows = [
        {
            "variant": "", "data_seed": 0, "net": net, "control": control, "seed": net, "label": 1, "epoch": epoch,
            "output": "logit", "value": float(net % 7) + (5 if not control else 0), "published_p": 0.01, "accuracy": 0.9, "training_loss": 0.1,
            "validation_loss": None, "best_epoch": 2,
        }
        for net in range(25) for control in (True, False) for epoch in range(1, 4 if net < 20 else 3)
    ]  # fmt: skip
    found = epoch_curves(pa.Table.from_pylist(rows), CONFIG).to_pylist()
    last = {
        (r["series"], json.loads(r["params"])["criterion"]): r["y"]
        for r in found
        if r["curve"] == "proportion_by_epoch" and r["x"] == 3
    }
    assert last["canary", "published"] > 0.8
    assert last["canary", "calibrated"] > last["control", "calibrated"]
    values = {(r["series"], r["x"]): r["y"] for r in found if r["curve"] == "m_by_epoch"}
    assert values["canary", 3] == pytest.approx(values["canary", 2])  # five nets stopped after epoch 2 and still count


def test_own_models_are_ranked_among_null_features() -> None:
    effects = np.array([3.0, *np.random.default_rng(0).normal(0, 0.3, 40)])
    parts = []
    for place, effect in enumerate(effects):
        table = score([Net(0, 0, False, 0, -1)], shown(1, np.array([effect]), seed=place), CONFIG)
        name = "canary" if place == 0 else f"N{place}"
        parts.append(table.set_column(table.schema.get_field_index("feature"), "feature", pa.array([name] * table.num_rows)))
    rows = summarize_own(pa.concat_tables(parts), CONFIG).to_pylist()
    assert rows[0]["metric"] == "m_black"
    assert rows[0]["p_value"] == pytest.approx(1 / 41)
    assert {row["verdict"] for row in rows} == {"above_null"}
    shuffled = pa.concat_tables([parts[1].set_column(10, "feature", parts[0]["feature"]), *parts[2:]])
    assert {row["verdict"] for row in summarize_own(shuffled, CONFIG).to_pylist()} != {"above_null"}


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


def test_only_the_excess_of_a_proportion_has_a_verdict() -> None:
    rows = rows_of(summarize(scored(np.full(40, 5.0), np.zeros(40)), CONFIG), criterion="calibrated", metric="m_white")
    assert {row["verdict"] for row in rows if row["metric"] != "proportion_excess"} == {"descriptive"}
    assert {row["verdict"] for row in rows if row["metric"] == "proportion_excess"} == {"above_null"}


def test_a_level_that_no_rank_can_reach_calls_no_net_memorizing() -> None:
    strict = CONFIG.model_copy(update={"alpha": 0.01})
    rows = rows_of(summarize(scored(np.full(50, 9.0), np.zeros(50)), strict))
    assert "calibrated" not in {row["params"].get("criterion") for row in rows}


def test_nets_are_calibrated_at_their_own_label_after_every_epoch() -> None:
    """Scores that differ by label and nothing else are no memory."""
    rng = np.random.default_rng(0)
    rows = [
        {
            "variant": "", "data_seed": 0, "net": net, "control": control, "seed": 2 * net + control, "label": net % 2,
            "epoch": 1, "output": "logit", "value": 10.0 * (net % 2) + rng.normal(), "published_p": 0.5, "accuracy": 0.9,
            "training_loss": 0.1, "validation_loss": None, "best_epoch": 1,
        }
        for net in range(200) for control in (True, False) if not control or net % 2 or net < 60
    ]  # fmt: skip
    found = epoch_curves(pa.Table.from_pylist(rows), CONFIG).to_pylist()
    share = {r["series"]: r["y"] for r in found if r["curve"] == "proportion_by_epoch" and '"calibrated"' in r["params"]}
    assert share["canary"] < 0.13


def test_self_influence_and_m_are_compared_over_canaries_not_nets() -> None:
    units = scored(np.linspace(0, 1, 20), np.zeros(20))
    names = [f"canary {net // 4}" for net in units["net"].to_pylist()]
    units = units.set_column(units.schema.get_field_index("example_id"), "example_id", pa.array(names))
    influence = {("", 0, f"canary {i}"): float(i) for i in range(5)}
    rows = rows_of(summarize(units, CONFIG, influence=influence), of="self_influence and m_white")
    assert {row["n"] for row in rows} == {5}


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
        ({"data": {"source": {"kind": "npz", "path": "x"}}, "data_seeds": 3}, "npz has none"),
        ({"training": {**BASE["training"], "augment": {}}}, "could cut the feature away"),
        ({"training": {**BASE["training"], "augment": {"crop_scale": [1, 1]}}}, "crop_ratio could cut"),
        ({"score": {"latent": True}}, "same_seed"),
        ({"nets": {"same_seed": True}}, "set nets.seeds to 1"),
        ({"nets": {"controls": 0}}, "greater than or equal to 1"),
        ({"score": {"removed_pixels": [-3]}}, "greater than or equal to 1"),
        ({"variants": {"x": {"score.alpha": 0.01}}}, "which all variants share"),
        ({"canary": {**BASE["canary"], "choice": "by_id", "example_ids": ["a"], "label": 1}}, "other than by_id"),
        ({"model": {"architecture": "mlp", "dropout_conv": 0.5}}, "no convolutions"),
        ({"training": {**BASE["training"], "epochs": 0, "patience": 2}}, "waits for epochs"),
        (
            {**OWN, "nets": {"seeds": 3}, "score": {"per_epoch": True}},
            "nets, score.per_epoch are for models that are trained",
        ),
        ({**OWN, "canary": {**BASE["canary"], "repeats": 2}}, "but for its feature"),
        ({**OWN, "model": BASE["model"]}, "either model and training, or trained"),
        ({"probe": {"kind": "data"}}, "go together"),
        ({"score": {"outputs": []}}, "must name"),
        ({"training": {**BASE["training"], "objective": {"kind": "vicreg"}}}, "makes no classifier"),
        ({"training": {**BASE["training"], "checkpoint_epochs": [1]}}, "has no use here"),
        ({"model": {"architecture": "resnet18"}, "score": {"per_epoch": True}}, "not for resnet18"),
    ],
)
def test_recipes_that_make_no_sense(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Recipe.model_validate(BASE | changes)


def test_variants_are_recipes_of_their_own() -> None:
    recipe = Recipe.model_validate(BASE | {"variants": {"a": {"data.source.z_noise": 0.5}, "b": {}}, "data_seeds": 2})
    assert [(c.variant, c.data_seed, c.recipe.data.source.z_noise, c.recipe.data.source.seed) for c in recipe.cells] == [
        ("a", 0, 0.5, 0), ("a", 1, 0.5, 1), ("b", 0, 0, 0), ("b", 1, 0, 1),
    ]  # fmt: skip
