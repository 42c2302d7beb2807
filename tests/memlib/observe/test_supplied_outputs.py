"""Outputs in a Parquet file are joined by id, and refused with a message if they are invalid."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from memlib.errors import UserError
from memlib.observe.supplied_outputs import check_columns, read_outputs
from memlib.specs import OutputsSpec
from memlib.stats.likelihood import log_odds, odds_of

MEMBERS = pa.table({"example_id": ["a", "b", "c"], "label": [0, 1, 1], "class_name": ["cat", "dog", "dog"]})
SCORES = [[0.75, 0.25], [0.5, 0.5], [0.125, 0.875]]


def wrote(tmp_path: Path, **columns: Any) -> str:
    table = {"example_id": ["c", "a", "x", "b"], "scores": [SCORES[2], SCORES[0], [1.0, 0.0], SCORES[1]]} | columns
    pq.write_table(pa.table({name: values for name, values in table.items() if values is not None}), tmp_path / "o.parquet")
    return str(tmp_path / "o.parquet")


def read(path: str, **options: Any) -> Any:
    return read_outputs(OutputsSpec(path=path, **options), MEMBERS, 2)


def test_supplied_outputs_are_joined_by_id_and_surplus_rows_ignored(tmp_path: Path) -> None:
    found = read(wrote(tmp_path))
    np.testing.assert_allclose(found.probabilities, SCORES)
    np.testing.assert_allclose(found.scores, np.log(SCORES))
    again = read(wrote(tmp_path, scores=[SCORES[2], SCORES[0], [0.5, 0.5], SCORES[1]]))
    assert again.digest == found.digest
    assert read(wrote(tmp_path, scores=[SCORES[2], SCORES[1], [0.5, 0.5], SCORES[1]])).digest != found.digest
    logits = read(wrote(tmp_path, scores=[[3.0, -1], [0, 1], [0, 0], [2, 2]]), kind="logits")
    assert logits.scores.tolist() == [[0, 1], [2, 2], [3, -1]]
    assert logits.probabilities is None


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ({"example_id": ["c", "a", "x", "y"]}, {}, "no outputs for 1 of the 3 audited examples: b"),
        ({"example_id": ["c", "a", "a", "b"]}, {}, "1 repeated ids"),
        (
            {},
            {"scores_column": "logits"},
            "no column 'logits', and not one column of numbers per class .*; it has example_id, scores",
        ),
        ({"scores": [0.1, 0.2, 0.3, 0.4]}, {}, "a list of numbers, one per class; it holds double"),
        ({"scores": [["0.5", "0.5"]] * 4}, {}, "a list of numbers, one per class; it holds list<.*string>"),
        ({"scores": [[[0.5, 0.5]]] * 4}, {}, "a list of numbers, one per class; it holds list<.*list<"),
        ({"scores": [{"cat": 0.5, "dog": 0.5}] * 4}, {}, "a list of numbers, one per class; it holds struct<"),
        ({"scores": [[0.5, None]] * 4}, {}, "has lists with missing numbers"),
        ({"scores": [[30.0, 70.0], [99.9, 0.1], [50.0, 50.0], [1.0, 99.0]]}, {}, "percentages: divide them by 100"),
        (
            {"scores": [[30.0, 70.0], [99.9, 0.1], [50.0, 50.0], [1.0, 99.0]]},
            {"kind": "logits"},
            "percentages: divide them by",
        ),
        ({"scores": [[1.0], [1.0], [1.0], [1.0]]}, {}, "has 1 numbers per example, but the data have 2 classes"),
        ({"scores": [[3.0, -1], [0, 1], [0, 0], [2, 2]]}, {}, "if they are logits, set outputs.kind to logits"),
        ({}, {"kind": "logits"}, "these are probabilities"),
        ({"scores": [[0.4, 0.4]] * 4}, {}, "not a distribution: its rows sum to 0.8 to 0.8"),
        ({"scores": [[float("nan"), 1.0]] * 4}, {}, "not finite"),
        ({"scores": [[0.4, 0.6]] * 4}, {}, "is the same for 3 of 3 examples, which are of several classes"),
        ({"scores": [[0.0, 1.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]}, {}, "only 0 and 1, which are decisions"),
        ({"scores": [[-5.0, 5.0], [5.0, -5.0]] * 2}, {"kind": "logits"}, "only -5 and 5, which are decisions"),
        ({"y": [1, 1, 0, 1]}, {"label_column": "y"}, r"1 labels differ from those of the data, such as a's \(1"),
    ],
)
def test_supplied_outputs_with_wrong_ids_types_or_ranges_are_refused(
    tmp_path: Path, columns: Any, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        read(wrote(tmp_path, **columns), **options)


def test_scores_that_are_equal_for_almost_all_examples_are_refused(tmp_path: Path) -> None:
    count = 50
    labels = [number % 2 for number in range(count)]
    names = [f"n{number}" for number in range(count)]
    members = pa.table({"example_id": names, "label": labels, "class_name": [str(label) for label in labels]})

    def given(scores: list[list[float]], members: pa.Table) -> Any:
        path = wrote(tmp_path, example_id=names, scores=scores)
        return read_outputs(OutputsSpec(path=path), members, 2)

    with pytest.raises(UserError, match="is the same for 49 of 50 examples"):
        given([[0.9, 0.1]] * 49 + [[0.2, 0.8]], members)
    given([[0.0, 1.0] if label else [1.0, 0.0] for label in labels[:49]] + [[0.2, 0.8]], members)  # a sure model
    alone = pa.table({"example_id": names, "label": [0] * count, "class_name": ["0"] * count})
    given([[0.9, 0.1]] * 49 + [[0.2, 0.8]], alone)


def test_a_column_per_class_is_read_from_parquet_and_csv(tmp_path: Path) -> None:
    columns = np.array([SCORES[2], SCORES[0], [1.0, 0.0], SCORES[1]])
    expected = read(wrote(tmp_path)).probabilities
    for names in (["p0", "p1"], ["0", "1"], ["cat", "dog"], ["dog", "cat"]):
        order = [1, 0] if names == ["dog", "cat"] else [0, 1]
        table = pa.table(
            {"example_id": ["c", "a", "x", "b"], **{n: columns[:, i] for n, i in zip(names, order, strict=True)}}
        )
        pq.write_table(table, tmp_path / "columns.parquet")
        pyarrow.csv.write_csv(table, tmp_path / "columns.csv")
        for suffix in ("parquet", "csv"):
            np.testing.assert_allclose(read(str(tmp_path / f"columns.{suffix}")).probabilities, expected)
    pq.write_table(pa.table({"example_id": ["a", "b", "c"], "p1": [0.5] * 3, "p2": [0.5] * 3}), tmp_path / "columns.parquet")
    with pytest.raises(UserError, match=r"no column 'scores', and not one column of numbers per class \(cat, dog, "):
        read(str(tmp_path / "columns.parquet"))


def test_ids_with_another_spelling_have_a_hint(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"Its ids, such as c.png, have a suffix that those of the examples lack"):
        read(wrote(tmp_path, example_id=["c.png", "a.png", "x.png", "b.png"]))
    with pytest.raises(UserError, match=r"Its ids, such as in/c, differ from a in their folder or suffix"):
        read(wrote(tmp_path, example_id=["in/c", "in/a", "in/x", "in/b"]))


@pytest.mark.parametrize("labels", [[1, 0, 0, 1], ["1", "0", "0", "1"], ["dog", "cat", "cat", "dog"]])
def test_supplied_labels_are_accepted_as_numbers_texts_or_names(tmp_path: Path, labels: list[Any]) -> None:
    found = read(wrote(tmp_path, y=labels), label_column="y")
    np.testing.assert_allclose(found.probabilities, SCORES)


def test_missing_or_unreadable_output_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read outputs from"):
        read(str(tmp_path / "no.parquet"))
    (tmp_path / "text.parquet").write_text("no")
    with pytest.raises(UserError, match="cannot read outputs from"):
        read(str(tmp_path / "text.parquet"))


@pytest.mark.parametrize("decimals", [1, 2, 3])
def test_rounded_supplied_probabilities_are_not_normalized(tmp_path: Path, decimals: int) -> None:
    """Ten rounded numbers do not sum to 1; the confidence is the stated one."""
    rng = np.random.default_rng(0)
    scores = rng.dirichlet(np.ones(2) * 0.7, size=4).round(decimals)
    scores[1] = [0.3, 0.7 + 10.0**-decimals]
    found = read(wrote(tmp_path, scores=scores.tolist()))
    assert found.probabilities is not None
    np.testing.assert_allclose(odds_of(found.probabilities[:1, 0]), [np.log(0.3 / 0.7)])
    assert read(wrote(tmp_path, scores=[[0.1, 2.0], [1.0, 3.0]] * 2), kind="logits").digest != found.digest


def test_losses_give_the_odds_of_the_true_class(tmp_path: Path) -> None:
    """A loss is -log p and depends on neither the scores nor the number of the other classes."""
    confidences = np.array([0.75, 0.5, 1 - 1e-9])
    losses = -np.log(confidences)
    for number, path in enumerate((tmp_path / "o.parquet", tmp_path / "o.csv")):
        table = pa.table({"example_id": ["c", "a", "x", "b"], "loss": losses[[2, 0, 0, 1]]})
        (pq.write_table if number == 0 else pyarrow.csv.write_csv)(table, path)
        found = read(str(path), kind="losses", scores_column="loss")
        odds = log_odds(found.scores, np.array([0, 1, 1]))
        np.testing.assert_allclose(odds, odds_of(confidences), rtol=1e-6)
        assert found.probabilities is None
    wide = read_outputs(OutputsSpec(path=str(path), kind="losses", scores_column="loss"), MEMBERS, 10)
    np.testing.assert_allclose(log_odds(wide.scores, np.array([0, 1, 1])), odds)
    assert wide.digest == found.digest


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        ([0.1, -0.2, 0.3, 0.4], "loss ranges from -0.2 to 0.4|losses are finite and not negative"),
        ([0.1, np.nan, 0.3, 0.4], "losses are finite"),
        ([0.1, None, 0.3, 0.4], "must hold a number in each row"),
        ([[0.1], [0.2], [0.3], [0.4]], "must hold a number in each row; it holds list"),
        ([0.0, 1.0, 0.0, 1.0], "which are decisions, not confidences"),
    ],
)
def test_supplied_losses_that_are_not_finite_or_only_decisions_are_refused(
    tmp_path: Path, losses: list[Any], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        read(wrote(tmp_path, scores=None, loss=losses), kind="losses", scores_column="loss")


def answers(rng: np.random.Generator, count: int, classes: int, accuracy: float) -> tuple[pa.Table, Any]:
    """Return members, half of them withheld, and the probabilities of a model of some accuracy."""
    labels = rng.integers(classes, size=count)
    named = np.where(rng.random(count) < accuracy, labels, rng.integers(classes, size=count))
    scores = rng.dirichlet(np.ones(classes), size=count) * 0.4
    scores[np.arange(count), named] += 0.6
    names = [f"e{i}" for i in range(count)]
    roles = ["query", "withheld"] * (count // 2)
    members = {"example_id": names, "label": labels, "class_name": [f"c{label}" for label in labels], "role": roles}
    return pa.table(members), scores


@pytest.mark.parametrize(("classes", "count"), [(3, 100), (10, 60), (10, 400)])
def test_supplied_scores_with_permuted_classes_are_refused_but_bad_models_are_not(
    tmp_path: Path, classes: int, count: int
) -> None:
    """Permuted classes would make the model look worse on D_Q, a trace that it does not have."""
    refused = {"right": 0, "guessing": 0, "confusing": 0, "rotated": 0, "reversed": 0, "as text": 0}
    for seed in range(30):
        rng = np.random.default_rng([seed, classes, count])
        for what in refused:
            members, scores = answers(rng, count, classes, {"right": 0.7, "guessing": 0.0}.get(what, 0.95))
            as_text = sorted(range(classes), key=str)
            swapped = np.array([1, 2, 0, *range(classes - 1, 2, -1)])  # by a model of images of another kind
            order = {"rotated": np.roll(range(classes), 1), "reversed": range(classes)[::-1], "confusing": swapped}
            columns = scores[:, np.array(order.get(what, as_text if what == "as text" else range(classes)))]
            pq.write_table(pa.table({"example_id": members["example_id"], "scores": list(columns)}), tmp_path / "o.parquet")
            try:
                read_outputs(OutputsSpec(path=str(tmp_path / "o.parquet")), members, classes)
            except UserError as error:
                refused[what] += "if the classes are " in str(error)
    assert (refused["right"], refused["guessing"]) == (0, 0)
    assert refused["rotated"] >= 27
    assert refused["reversed"] >= (27 if classes > 3 else 0)  # the middle one of three classes stays
    assert refused["confusing"] == 0 or classes == 3  # where it is a shift by one


def test_a_missing_column_of_ids_is_named(tmp_path: Path) -> None:
    path = wrote(tmp_path, example_id=None, id=["a", "b", "c", "x"])
    with pytest.raises(UserError, match="no column 'example_id' of ids; it has scores, id; name the right one in id_column"):
        read(path)
    with pytest.raises(UserError, match="no column 'example_id' of ids"):
        check_columns(OutputsSpec(path=path))
