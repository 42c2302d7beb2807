"""Documents in the training set and held-out ones: the test's level, its power, and its wording."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from memlib.audits.exposure.documents import GAP, SHARE, document_rows, said_of_documents
from memlib.audits.exposure.observing import beginnings, chosen_documents, shared_beginnings
from memlib.audits.exposure.recipe import DiscoverableSpec, Recipe
from memlib.audits.exposure.report import _gained
from memlib.audits.exposure.tables import DOCUMENTS
from memlib.audits.exposure.verdict import verdict
from memlib.errors import UserError
from memlib.findings import INCONCLUSIVE, SHOWN, Findings, settle
from tests.assignments import assert_exact

HOW = DiscoverableSpec(tries=(1, 100), samples=10)


def documents_of(
    rng: np.random.Generator, *, gap: float = 0.0, count: int = 60, seeds: int = 2, variant: str = ""
) -> pa.Table:
    """Bits of documents that differ more among themselves than trainings do."""
    held_out = rng.permutation(np.arange(count) % 2 == 0)
    base = rng.gamma(4, 10, size=count)
    rows = [
        {
            "variant": variant, "seed": seed, "document": number, "held_out": bool(held_out[number]), "copies": 1,
            "bits": float(base[number] + rng.normal() - gap * (not held_out[number])),
            "scheme_bits": 0.5 if not held_out[number] and gap else None, "greedy": bool(gap and not held_out[number]), "near": 3,
        }
        for seed in range(seeds) for number in range(count)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=DOCUMENTS.arrow)


def settled(table: pa.Table) -> Findings:
    return settle(document_rows(table, HOW, alpha=0.05), alpha=0.05)


@pytest.mark.usefixtures("without_power")
@pytest.mark.parametrize("bits", [[1.0, 2, 4, 8, 16, 32], [0.0, 0, 1, 1, 2, 3]])
def test_document_test_is_exact_for_every_held_out_set_of_several_models(bits: list[float]) -> None:
    """2 of 6 documents are held out; three trainings differ, and their bits are averaged."""
    sets = list(itertools.combinations(range(6), 2))
    p_values = []
    for chosen in sets:
        rows = documents_of(np.random.default_rng(0), seeds=3, count=6).to_pylist()
        for row in rows:
            row["held_out"], row["bits"] = row["document"] in chosen, bits[row["document"]] * (1 + row["seed"])
        table = pa.Table.from_pylist(rows, schema=DOCUMENTS.arrow)
        test = next(document_rows(table, HOW, alpha=0.05, given=np.array([one for one in sets if one != chosen])))
        others = [bits[place] for place in range(6) if place not in chosen]
        assert test.value == pytest.approx(2 * (sum(bits[place] for place in chosen) / 2 - sum(others) / 4))
        assert test.p_value is not None
        p_values.append(test.p_value)
    assert_exact(p_values)


def test_verdict_reports_remembered_documents_with_their_reproduced_share() -> None:
    rng = np.random.default_rng(1)
    rows = settled(pa.concat_tables([documents_of(rng, gap=25.0, variant="whole"), documents_of(rng, variant="private")]))
    whole = rows.first(GAP, variant="whole")
    assert whole.verdict == "shown"
    assert rows.first(GAP, variant="private").verdict == "inconclusive"
    assert whole.low is not None
    assert whole.high is not None
    assert whole.low < 25 < whole.high + 10
    at_once = rows.first(SHARE, variant="whole", side="trained", tries=1)
    assert at_once.value == 1.0  # half a bit: more likely than not at once
    assert at_once.n == 30
    assert rows.first(SHARE, variant="whole", side="held_out", tries=100).value == 0.0
    said = said_of_documents(rows)
    assert said is not None
    assert (said.word, said.sentence) == (SHOWN, "The model remembers documents that it was trained on.")
    assert (
        "100 % of the documents that it was trained on are reproduced with a probability of at least 0.5, and 0 % of the held-out documents"
        in said.explanation
    )
    said = said_of_documents(settled(documents_of(rng)))
    assert said is not None
    assert (said.word, said.sentence) == (
        INCONCLUSIVE, "It was not shown to remember documents that it was trained on."
    )  # fmt: skip
    assert "would have been found with a power of 80 %" in said.explanation
    assert said_of_documents(Findings([])) is None


def test_verdict_reports_remembered_documents_where_given_secrets_have_no_null() -> None:
    content = {
        "data": {"source": {"kind": "text", "path": "text"}, "unit": "token"},
        "canaries": {"format": "{d4}", "file": "secrets.txt"},
        "model": {"kind": "huggingface", "path": "gpt"},
        "training": {"objective": {"kind": "language"}, "epochs": 1, "augment": None},
    }  # fmt: skip
    recipe, rng = Recipe.model_validate(content), np.random.default_rng(1)
    found = verdict(settled(documents_of(rng, gap=25.0)), recipe, size=10_000)
    remembers = "The model remembers documents that it was trained on."
    missing = (
        "This audit cannot tell whether the model gives away these secrets: secrets of the same kind that it never saw are "
        "missing."
    )
    assert (found.word, found.sentence) == (SHOWN, f"{remembers} {missing}")
    assert found.explanation.startswith("The continuation of a document costs the model ")
    assert "in canaries.unseen" in found.explanation
    assert "data.hold_out" not in found.explanation  # documents are held out at random anyway
    nothing = verdict(settled(documents_of(rng)), recipe, size=10_000)
    assert nothing.word == INCONCLUSIVE
    assert nothing.sentence == f"{missing} It was not shown to remember documents that it was trained on."


def test_the_gained_text_mentions_secrets_only_if_canaries_are_shown_as_well() -> None:
    rows = settled(documents_of(np.random.default_rng(1), gap=25.0))
    gained = _gained(rows)
    assert gained.startswith("Whoever knows the beginning of a document can let the model continue it")
    assert "secret" not in gained
    both = _gained(Findings([*rows, replace(rows.first(GAP), family="headline")]))
    assert "can guess the exposed secrets" in both
    assert "beginning of a document" in both


def test_equally_many_documents_of_both_sides_are_drawn_and_short_ones_are_skipped() -> None:
    rng = np.random.default_rng(2)
    heads = np.stack(
        [
            np.arange(90),
            np.arange(90) % 3 == 0,
            np.ones(90),
            np.arange(90),
            np.zeros(90),
            rng.integers(10, 60, 90),
            np.full(90, 60),
        ],
        1,
    )
    heads = heads.astype(np.int64)
    how, none = DiscoverableSpec(documents=15, prefix=10, suffix=10), np.zeros(90, dtype=bool)
    found = chosen_documents(heads, how, seed=0, shared=none)
    assert (found[:, 5] >= 20).all()
    assert np.bincount(found[:, 1]).tolist() == [15, 15]
    assert (np.diff(found[:, 0]) > 0).all()
    assert not np.array_equal(found, chosen_documents(heads, how, seed=1, shared=none))
    with pytest.raises(UserError, match="held-out documents have 70 tokens in one window, but each side needs two"):
        chosen_documents(heads, DiscoverableSpec(prefix=35, suffix=35), seed=0, shared=none)
    shared = heads[:, 0] % 2 == 0
    assert (chosen_documents(heads, how, seed=0, shared=shared)[:, 0] % 2 == 1).all()
    with pytest.raises(
        UserError, match=r"\(90 that begin like another document were left out\), .* raise discoverable\.prefix"
    ):
        chosen_documents(heads, how, seed=0, shared=~none)


def test_shared_beginnings_are_found_across_the_ends_of_windows() -> None:
    windows = np.array([[1, 2, 3, 9, 1, 2], [4, 9, 1, 2, 3, 9], [1, 2, 5, 9, 1, 2]])
    heads = np.array(
        [[0, 0, 1, 0, 0, 3, 3], [1, 1, 1, 0, 4, 2, 3], [2, 1, 1, 1, 2, 0, 3], [3, 0, 1, 2, 0, 3, 3], [4, 0, 1, 2, 4, 2, 2]]
    )
    assert beginnings(heads[:2], windows, 3).tolist() == [[1, 2, 3], [1, 2, 4]]
    assert shared_beginnings(heads, windows, 3).tolist() == [True, False, True, False, False]
    assert shared_beginnings(heads, windows, 2).tolist() == [True] * 5


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"data": {"source": {"kind": "topics"}}, "model": {}}, "held out at random; use token"),
        ({"discoverable": {"prefix": 90, "suffix": 20}}, "data.window is 100"),
        ({"model": {}}, "go together"),
        ({"variants": {"b": {"model.path": "other"}}}, "fine-tunes another model"),
        ({"data": {"source": {"kind": "topics"}, "unit": "token", "vocabulary": 9}}, "leave out data.vocabulary"),
    ],
)
def test_recipes_with_contradictory_document_settings_are_refused(change: dict[str, Any], said: str) -> None:
    content = {
        "data": {"source": {"kind": "topics"}, "unit": "token"}, "model": {"kind": "huggingface", "path": "here"},
        "training": {"objective": {"kind": "language"}, "epochs": 1, "augment": None}, "discoverable": {},
    }  # fmt: skip
    Recipe.model_validate(content)
    with pytest.raises(ValueError, match=said):
        Recipe.model_validate(content | change)
