"""The secrets of a format are those that an expression over the whole text finds, however the text is cut."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memlib.data.text import scan
from memlib.data.text.corpus import read_secrets
from memlib.data.text.formats import Format
from memlib.data.text.scan import Scan, blocks_of, find_secrets, normalized, scan_text, single_secrets
from memlib.data.text.streams import Text, symbols_of
from memlib.errors import UserError

BINARY = {"x": ("0", "1"), "y": ("1", "a"), "z": ("-", "]", "^", "\\")}
SLOW = {  # written by hand: nothing of the format's code
    "{x3}": r"(?<![01])(?=([01]{3})(?![01]))",
    "{x}": r"(?<![01])(?=([01])(?![01]))",
    "a{x2}": r"(?=(a[01]{2})(?![01]))",
    "{x2}a": r"(?<![01])(?=([01]{2}a))",
    "a{x}a": r"(?=(a[01]a))",
    "{x2}{y}": r"(?<![01])(?=([01]{2}[1a])(?![1a]))",
    "{x}-{x}": r"(?<![01])(?=([01]-[01])(?![01]))",
    "{z2}": r"(?<![-\]^\\])(?=([-\]^\\]{2})(?![-\]^\\]))",
}


def cut(text: str, sizes: list[int]) -> Iterator[str]:
    place = 0
    for size in sizes:
        yield text[place : place + size]
        place += size
    yield text[place:]


@given(
    st.sampled_from(sorted(SLOW)),
    st.text(alphabet="0011aa-\n]^\\", max_size=60),
    st.lists(st.integers(min_value=0, max_value=9), max_size=20),
)
def test_secrets_found_in_pieces_of_a_text_equal_a_slow_regular_expression(form: str, text: str, sizes: list[int]) -> None:
    expected = [found[1] for found in re.finditer(SLOW[form], text)]
    assert list(find_secrets(cut(text, sizes), Format(form, BINARY).places("character"))) == expected


def test_scan_text_ignores_numbers_within_longer_runs_of_digits() -> None:
    card = "4929123412341234"
    text = f"{card} 1{card} {card}7 x{card}x\n{card}"
    assert scan_text(Text.of(text), Format("{d16}", {})).counts == {card: 3}
    assert scan_text(Text.of("12-34-56 12-345"), Format("{d2}-{d2}", {})).counts == {"12-34": 1, "34-56": 1}


def test_a_capital_letter_ends_a_run_of_small_letters() -> None:
    assert scan_text(Text.of("abC abc xab"), Format("{l2}", {})).counts == {"ab": 1}


def test_found_secrets_are_read_by_the_audit(tmp_path: Path) -> None:
    form = Format("pin é {d2}", {})
    found = scan_text(Text.of("pin é 12, pin é 07 and pin é 12"), form)
    assert (found.occurrences, len(found.counts), found.once) == (3, 2, 1)
    for counted, times in ((False, [None, None]), (True, [1, 2])):
        path = tmp_path / f"{counted}.txt"
        path.write_text(found.lines(counted=counted))
        read = read_secrets(str(path), form, "character")
        assert [form.choices(text, "character") for text in ("pin é 07", "pin é 12")] == [list(one.choices) for one in read]
        assert [one.times for one in read] == times


@pytest.mark.parametrize(
    ("form", "alphabets", "said"),
    [
        ("my pin", {}, "has no hole"),
        ("pin {q4}", {}, "unknown alphabet 'q'; the alphabets are d, h, l, u, a"),
        ("pin {x}", {"x": ("red", "green")}, "alphabets hold single characters"),
        ("pin\t{d4}", {}, r"has the symbol '\\t', which ends a secret in a secret file"),
        ("pin {x}", {"x": ("1", "\x85")}, r"has the symbol '\\x85', which ends a secret"),
    ],
)
def test_scan_text_refuses_formats_that_cannot_be_searched(
    form: str, alphabets: dict[str, tuple[str, ...]], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        scan_text(Text.of("pin 1234"), Format(form, alphabets))


def test_a_blank_text_and_too_many_secrets_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="the text mail is empty"):
        scan_text(Text(lambda: iter([" ", "\n"]), "mail"), Format("{d2}", {}))
    monkeypatch.setattr(scan, "MOST_SECRETS", 2)
    with pytest.raises(UserError, match="more than 2 different texts in mail match the format '{d2}'"):
        scan_text(Text(lambda: iter(["11 12 13"]), "mail"), Format("{d2}", {}))


def test_repr_of_a_scan_hides_the_found_secrets() -> None:
    assert "1234" not in repr(Scan(Counter(["1234"])))


def test_memory_does_not_grow_with_the_text() -> None:
    import tracemalloc

    def peak(pieces: int) -> int:
        tracemalloc.start()
        scan_text(Text(lambda: (f"my pin is 1234. {'x' * 2**16} 123" for _ in range(pieces)), "long"), Format("{d4}", {}))
        top = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return top

    assert peak(200) < peak(20) + 2**21  # of 12 MiB more; other threads of the tests' process allocate, too


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
