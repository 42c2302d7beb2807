"""TracInCP by hand, its checkpoints, and a plant: mislabelled examples."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from memlib.audits.self_influence.findings import curves, resampled_shares, summarize
from memlib.audits.self_influence.scores import choose_checkpoints, score, self_influence
from memlib.findings import Findings
from memlib.models.classifiers import build_classifier
from memlib.observe.gradients import GradientNorms
from memlib.specs import ClassifierSpec, InfluenceSpec


def test_self_influence_is_the_rate_weighted_sum_of_squared_norms_over_checkpoints() -> None:
    np.testing.assert_allclose(self_influence(np.array([[1.0, 2], [3, 4]]), [0.5, 0.1]), [0.8, 1.4])


def test_checkpoints_are_evenly_spaced_up_to_the_fall_of_the_loss() -> None:
    losses = [1.0 * 0.9**epoch for epoch in range(100)]  # .05 of the first at epoch 30
    assert choose_checkpoints(losses, InfluenceSpec()) == [3, 6, 9, 12, 15, 18, 21, 24, 27, 30]
    assert choose_checkpoints([1.0, 0.9, 0.8], InfluenceSpec()) == [1, 2, 3]  # never falls so far: all there are
    assert choose_checkpoints(losses, InfluenceSpec(checkpoints=1)) == [30]


def test_rows_are_ordered_and_shares_sum_to_one() -> None:
    units = score(["a", "b", "c"], np.array([0, 1, 1]), ["x", "y", "y"], np.array([[1.0, 5, 2]]), [0.5], [3])
    assert units["example_id"].to_pylist() == ["b", "c", "a"]
    assert units["rank"].to_pylist() == [1, 2, 3]
    assert sum(units["share"].to_pylist()) == pytest.approx(1)
    assert curves(units)["y"].to_pylist()[-1] == pytest.approx(1)
    rows = {(r["metric"], r["params"]): r["value"] for r in summarize(units).to_pylist()}
    assert rows["self_influence_mean", json.dumps({"checkpoints": [3], "class": "y"})] == pytest.approx(1.75)
    nothing = score(["a", "b"], np.array([0, 1]), ["x", "y"], np.zeros((2, 2)), [0.5, 0.5], [1, 2])
    assert nothing["share"].to_pylist() == [0, 0]
    assert summarize(nothing).num_rows > 0


def test_the_headline_has_an_interval_over_examples_and_no_verdict() -> None:
    values = np.random.default_rng(0).lognormal(0, 1.5, 2000)
    names = [f"e{i}" for i in range(len(values))]
    rows = summarize(score(names, np.zeros(2000, np.int64), ["x"] * 2000, values[None], [1.0], [1]))
    found = Findings.read(rows)
    interval = found.head.interval
    assert interval is not None
    assert interval.high is not None
    assert found.head.value == pytest.approx(np.sort(values)[-20:].sum() / values.sum())
    assert interval.low < found.head.value < interval.high
    assert interval.over == "examples"
    assert {row.verdict for row in found} == {None}
    assert found.verdict.word == "descriptive"
    assert "95 % interval" in found.verdict.sentence


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_verdict_explains_non_finite_influence_without_printing_it(broken: float) -> None:
    norms = np.array([[broken, *np.ones(29)]])
    units = score([f"e{n}" for n in range(30)], np.zeros(30, np.int64), ["x"] * 30, norms, [1.0], [1])
    said = Findings.read(summarize(units)).verdict
    assert said.word == "descriptive"
    assert said.sentence == "Self-influence could not be compared, because it is not a finite number for every example."
    assert "lower learning rate" in said.explanation
    assert not any(text in said.sentence + said.explanation for text in ("nan", "inf "))


@pytest.mark.parametrize(("count", "named"), [(20, "The most influential of 20 "), (300, "The 3 most influential of 300 ")])
def test_the_sentence_counts_the_examples_behind_the_most_influential_per_cent(count: int, named: str) -> None:
    values = np.random.default_rng(0).lognormal(0, 1.5, count)
    units = score([f"e{n}" for n in range(count)], np.zeros(count, np.int64), ["x"] * count, values[None], [1.0], [1])
    assert Findings.read(summarize(units)).verdict.sentence.startswith(named)


def test_resampled_shares_equal_copies() -> None:
    values = np.array([5.0, 1, 1, 1, 1, 1, 1, 1, 1, 1] * 3)
    rng = np.random.default_rng(0)
    for found in resampled_shares(values, 0.1, replicates=20):
        copies = rng.multinomial(30, np.full(30, 1 / 30))
        drawn = np.sort(np.repeat(np.sort(values)[::-1], copies))[::-1]
        assert found == pytest.approx(drawn[:3].sum() / drawn.sum())


def test_mislabelled_examples_come_first() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(300, 5)
    targets = (inputs[:, 0] > 0).long()
    wrong = inputs[:, 0].abs().argsort(descending=True)[:10]  # far from the boundary between the classes
    targets[wrong] = 1 - targets[wrong]
    model = build_classifier(ClassifierSpec(architecture="mlp", widths=(16,)), (5,), 2, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    norms = []
    for epoch in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        if epoch % 20 == 19:
            norms.append(GradientNorms(model)(inputs, targets).numpy())
    order = np.argsort(-self_influence(np.stack(norms), [0.1] * 3))
    assert len(set(order[:40].tolist()) & set(wrong.tolist())) >= 8  # 8 of 10 among the first 40 of 300
