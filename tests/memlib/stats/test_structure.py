"""Structural risk: counts solved by hand, those of a plain loop, and those of real models with known outputs."""

from collections import Counter, defaultdict

import numpy as np
import pytest
from sklearn.tree import DecisionTreeClassifier

from memlib.errors import UserError
from memlib.stats.structure import StructuralRisk, output_classes, structural_risk


def test_counts_equal_those_of_a_plain_loop() -> None:
    rng = np.random.default_rng(0)
    outputs, labels = rng.dirichlet([0.3, 0.3, 0.3], 400), rng.integers(0, 3, 400)
    risk = structural_risk(outputs, labels, decimals=1, k=5)
    rows = defaultdict(list)
    for output, label in zip(np.round(outputs, 1).tolist(), labels.tolist(), strict=True):
        rows[tuple(output)].append(label)
    sizes = [len(own) for own in rows.values()]
    cells = [count for own in rows.values() for count in Counter(own).values()]
    pure = [len(own) for own in rows.values() if len(set(own)) == 1 and len(own) > 1]
    assert risk == StructuralRisk(
        rows=400,
        output_classes=len(rows),
        smallest=min(sizes),
        rows_below_k=sum(size for size in sizes if size < 5),
        single_rows=sizes.count(1),
        pure_classes=len(pure),
        pure_rows=sum(pure),
        certain_rows=sum(len(own) for output, own in rows.items() if max(output) == 1),
        excluding_rows=sum(len(own) for output, own in rows.items() if min(output) == 0),
        small_cells=sum(count < 5 for count in cells),
        small_cell_rows=sum(count for count in cells if count < 5),
        residual_freedom=None,
        instance_based=False,
        k=5,
    )
    assert 1 < len(rows) < 400


def test_a_tree_with_large_leaves_has_the_anonymity_of_its_leaves() -> None:
    rng = np.random.default_rng(1)
    features, labels = rng.normal(size=(300, 3)), rng.integers(0, 2, 300)
    tree = DecisionTreeClassifier(min_samples_leaf=20, random_state=0).fit(features, labels)
    risk = structural_risk(tree.predict_proba(features), labels)
    assert risk.smallest >= 20
    assert risk.rows_below_k == risk.single_rows == 0
    whole = DecisionTreeClassifier(random_state=0).fit(features, labels)
    grown = structural_risk(whole.predict_proba(features), labels)
    assert grown.certain_rows == grown.excluding_rows == grown.pure_rows == 300
    assert grown.output_classes == 2


def test_finer_outputs_tell_more_rows_apart() -> None:
    rng = np.random.default_rng(2)
    p, labels = rng.random(500), rng.integers(0, 2, 500)
    risks = [structural_risk(p, labels, decimals=decimals) for decimals in (0, 1, 2, 6)]
    assert risks[0].output_classes == 2
    assert [risk.output_classes for risk in risks] == sorted(risk.output_classes for risk in risks)
    assert [risk.rows_below_k for risk in risks] == sorted(risk.rows_below_k for risk in risks)
    assert risks[-1].single_rows > 490


def test_structural_risk_does_not_depend_on_the_order_of_rows_and_labels() -> None:
    rng = np.random.default_rng(3)
    outputs, labels, order = rng.integers(0, 4, (200, 3)), rng.integers(0, 3, 200), rng.permutation(200)
    renamed = np.array([2, 0, 1])[labels]
    assert structural_risk(outputs, labels) == structural_risk(outputs[order], renamed[order])


def test_votes_count_like_their_shares() -> None:
    votes = np.array([[100, 0], [100, 0], [60, 40], [0, 100]])
    labels = np.array([0, 0, 1, 1])
    assert structural_risk(votes, labels) == structural_risk(votes / 100, labels)
    assert structural_risk(votes, labels).certain_rows == 3


def test_an_output_of_a_single_row_is_counted_as_single_and_not_as_pure() -> None:
    risk = structural_risk(np.array([0.1, 0.2, 0.3, 0.3]), np.array([0, 0, 1, 1]))
    assert (risk.single_rows, risk.pure_classes, risk.pure_rows) == (2, 1, 2)


def test_a_negative_zero_is_a_zero() -> None:
    assert output_classes(np.array([[0.0, 1.0], [-0.0, 1.0], [-0.001, 1.0]]), decimals=2).tolist() == [0, 0, 0]


@pytest.mark.parametrize(("parameters", "left"), [(None, None), (30, 10), (90, -50)])
def test_residual_freedom_is_rows_less_parameters(parameters: int | None, left: int | None) -> None:
    risk = structural_risk(np.linspace(0, 1, 40), np.arange(40) % 2, parameters=parameters, instance_based=True)
    assert (risk.residual_freedom, risk.instance_based) == (left, True)


def test_outputs_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UserError, match="3 outputs for 2 labels"):
        structural_risk(np.ones((3, 2)), np.zeros(2, dtype=int))
    with pytest.raises(UserError, match="outputs of 1 of 2 rows are not finite"):
        structural_risk(np.array([[0.5, 0.5], [np.nan, 1.0]]), np.zeros(2, dtype=int))


def test_votes_may_be_floats_and_are_certain_where_all_agree() -> None:
    votes = np.array([[2.0, 0.0], [1.0, 1.0], [0.0, 2.0], [2.0, 0.0]])
    assert structural_risk(votes, np.array([0, 0, 1, 0])).certain_rows == 3
    assert structural_risk(votes / 2, np.array([0, 0, 1, 0])).certain_rows == 3
    assert structural_risk((votes / 2)[:, 1], np.array([0, 0, 1, 0])).certain_rows == 3
