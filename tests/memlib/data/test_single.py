"""Secrets that occur once, after their format is normalized, and one for each document."""

import numpy as np
import pytest

from memlib.data.single import blocks_of, normalized, single_secrets
from memlib.data.streams import symbols_of


def test_secrets_that_differ_in_case_spaces_or_separators_are_the_same() -> None:
    assert normalized("My Number is 12-34 / 56") == normalized("my number IS 123456") == "mynumberis123456"
    assert normalized("pin １２３") == "pin123"
    documents = [(0, "my pin 11-11"), (1, "MY pin 1111"), (2, "pin 2222 is mine")]
    assert single_secrets(documents, ["pin 1111", "pin 2222", "pin 3333"]) == [False, True, False]


def test_single_secrets_keeps_one_secret_per_document_and_drops_recurring_ones() -> None:
    documents = [
        (0, "pin 1111, pin 2222"),
        (1, "pin 3333 pin 3333"),
        (2, "pin 4444 pin 5555"),
        (2, "pin 6666"),
        (3, "pin 5555"),
    ]
    secrets = [f"pin {number}" for number in (1111, 2222, 3333, 4444, 5555, 6666)]
    assert single_secrets(documents, secrets) == [True, False, False, True, False, False]


def test_single_secrets_leaves_out_a_secret_in_another_spelling() -> None:
    """The training text is searched for the exact spelling; another spelling would count as unseen although trained on."""
    assert single_secrets([(0, "PIN 11 11"), (1, "pin 2222")], ["pin 1111", "pin 2222"]) == [False, True]


def test_single_secrets_drops_secrets_that_are_spelt_alike_or_empty() -> None:
    assert single_secrets([(0, "pin 1 2"), (1, "pin 34")], ["pin 12", "pin 1-2", "pin 34", "--"]) == [
        False,
        False,
        True,
        False,
    ]
    assert single_secrets([], ["", "-"]) == [False, False]


@pytest.mark.parametrize("unit", ["character", "word"])
def test_blocks_hold_the_whole_text(unit: str) -> None:
    pieces = ["one two three ", "four five", " six\nseven eight ", "nine ten"]
    symbols = [symbol for chunk in symbols_of(pieces, unit) for symbol in chunk]
    blocks = dict(blocks_of(symbols_of(pieces, unit), 4, unit))
    assert list(blocks) == list(range(-(-len(symbols) // 4)))
    between = "" if unit == "character" else " "
    assert between.join(blocks.values()) == between.join(symbols)
    assert blocks[1] == between.join(symbols[4:8])
    assert np.all([len(block.split(" ")) <= 5 for block in blocks.values()])
