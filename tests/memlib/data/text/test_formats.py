"""Formats and their spaces: holes, unbiased draws without replacement, parts, refusals."""

import numpy as np
import pytest

from memlib.data.text.formats import Format, Space, render
from memlib.errors import UserError

VOCABULARY = {symbol: number for number, symbol in enumerate("\n 0123456789-abcdefghijklmnopqrstuvwxyz")}


def space(text: str, unit: str = "character", **alphabets: tuple[str, ...]) -> Space:
    return Format(text, alphabets).space(VOCABULARY, unit)


def test_a_social_security_number_has_nine_holes_and_two_hyphens() -> None:
    found = space("my number is {d3}-{d2}-{d4}")
    assert found.size == 10**9
    assert len(found.slots) == len("my number is 078-05-1120")
    text = render([list(VOCABULARY)[t] for t in found.tokens(np.zeros((1, 24), dtype=np.int32))[0]], "character")
    assert text == "my number is 000-00-0000"


def test_alphabets_of_words_fill_whole_holes_but_no_part_of_a_word() -> None:
    words = {"the": 0, "code": 1, "red": 2, "green": 3, "blue": 4}
    form = Format("the code {colour2}", {"colour": ("red", "green", "blue")})
    assert form.space(words, "word").slots == ((0,), (1,), (2, 3, 4), (2, 3, 4))
    with pytest.raises(UserError, match="inside a word"):
        Format("the code-{colour2}", {"colour": ("red", "green")}).space(words, "word")


def test_words_of_the_text_are_symbols_of_words_and_are_spelled_with_a_space_after_them() -> None:
    form = Format("the code {w2} end", {}, words=("a", "an", "red"))
    assert form.places("word") == [("the",), ("code",), *[("a", "an", "red")] * 2, ("end",)]
    found = form.candidates(VOCABULARY, "character")
    assert found.size == 9
    choices = np.zeros((2, len(found.slots)), dtype=np.int32)
    choices[0, [9, 10]], choices[1, [9, 10]] = (0, 2), (1, 0)
    symbols = list(VOCABULARY)
    texts = ["".join(symbols[s] for s in row if s >= 0) for row in found.tokens(choices).tolist()]
    assert texts == ["the code a red end", "the code an a end"]
    own = Format("code {w}", {"w": ("b", "c")}, words=("a", "an"))
    assert own.places("character")[-1] == ("b", "c")  # an alphabet of the user's has precedence
    with pytest.raises(UserError, match="any word of the text, but the text has only 1 different words"):
        Format("the {w}", {}, words=("a",)).places("word")
    with pytest.raises(UserError, match="words and word models need spaces around holes"):
        Format("the ({w})", {}, words=("a", "b")).places("character")


def test_shards_divide_a_long_alphabet_into_blocks_and_a_short_one_into_symbols() -> None:
    words = Space(((0,), tuple(range(3000)), tuple(range(3000))))
    parts = list(words.shards(10))
    assert len(parts) == 10
    assert [symbol for part in parts for symbol in part.slots[1]] == list(range(3000))
    assert len(list(Space((tuple(range(16)),) * 2).shards(10))) == 16


def test_draws_of_candidates_are_distinct_and_uniform() -> None:
    """If 300 of 1000 candidates are drawn, each digit is equally frequent in each place, despite rejected repeats."""
    found = space("{d3}")
    rng = np.random.default_rng(0)
    counts = np.zeros((3, 10))
    for _ in range(200):
        drawn = found.draw(300, rng)
        assert len({tuple(row) for row in drawn.tolist()}) == 300
        for place in range(3):
            counts[place] += np.bincount(drawn[:, place], minlength=10)
    chi = ((counts - 6000) ** 2 / 6000).sum(axis=1)
    assert (chi < 30).all()  # 9 degrees of freedom


def test_large_spaces_are_drawn_without_repeats() -> None:
    found = space("{l9}")  # 5e12
    drawn = found.draw(2000, np.random.default_rng(1))
    assert len({tuple(row) for row in drawn.tolist()}) == 2000
    assert abs(drawn.mean() - 12.5) < 0.3
    assert found.bits == pytest.approx(np.log2(float(found.size)))


def test_shards_partition_the_space() -> None:
    found = space("a{d2}b{d1}")
    parts = list(found.shards(50))
    assert len(parts) == 100
    assert sum(part.size for part in parts) == found.size
    long = list(Space((tuple(range(1001)), (0, 1))).shards(5000))  # more parts than choices: none is empty
    assert len(long) == 2002
    assert all(part.size == 1 for part in long)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no hole", "has no hole"),
        ("{q3}", "uses an unknown alphabet 'q'"),
        ("pin {d0}", "holes have 1 to 1000 symbols"),
        ("{d3}!", "the model has no symbol '!'"),
    ],
)
def test_invalid_formats_are_refused_with_their_fault(text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        space(text)


def test_a_space_smaller_than_the_canaries_is_refused() -> None:
    with pytest.raises(UserError, match="100 candidates, fewer than the 101"):
        space("{d2}").draw(101, np.random.default_rng(0))
    assert len(space("{d2}").draw(100, np.random.default_rng(0))) == 100
    with pytest.raises(UserError, match="at least two symbols, all different"):
        space("{c2}", c=("a", "a"))


def test_a_long_format_has_distinct_draws() -> None:
    found = space("the pin code of the credit card of my colleague in the next office is {d4}")
    assert len({tuple(row) for row in found.draw(500, np.random.default_rng(0)).tolist()}) == 500
