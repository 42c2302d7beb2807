"""Copies of examples in another data set: planted ones are found, and nothing is found between unrelated sets."""

from typing import Any

import numpy as np
import pytest

from memlib.data.images.captions import words_of
from memlib.data.overlap import Set, overlap


def made(
    names: list[str], images: Any, captions: dict[str, str] | None = None, *, unreadable: frozenset[str] = frozenset()
) -> Set:
    """Return a set whose stored rows are in reverse order, so that rows and ids differ."""
    rows = np.arange(len(names))[::-1].copy()
    digests = [None if name in unreadable else str(hash(image.tobytes())) for name, image in zip(names, images, strict=True)]
    return Set(names, digests, rows, np.stack(images)[::-1].copy(), captions or {})


def noise(seed: int) -> Any:
    return np.random.default_rng(seed).integers(0, 256, size=(32, 32, 3), dtype=np.uint8)


def found(first: Set, second: Set, *, near: float = 2.0, shared: float = 0.5) -> list[tuple[str, str, str]]:
    rows = overlap(first, second, near=near, shared=shared).to_pylist()
    return [(row["example_id"], row["other_id"], row["by"]) for row in rows]


def test_copies_and_brightened_copies_are_found_and_others_are_not() -> None:
    images = [noise(seed) for seed in range(6)]
    brighter = np.clip(images[1].astype(int) + 1, 0, 255).astype(np.uint8)
    first = made(["a", "b", "c", "d"], images[:4])
    second = made(["x", "y", "z"], [images[5], brighter, images[0]])
    assert found(first, second) == [("a", "z", "identical"), ("b", "y", "alike")]
    assert found(first, second, near=0.1) == [("a", "z", "identical")]
    assert found(made(["a"], images[:1], unreadable=frozenset("a")), second) == []


def test_captions_that_share_half_of_their_runs_of_words_are_found() -> None:
    images = [noise(seed) for seed in range(5)]
    first = made(
        ["a", "b", "c"], images[:3], {"a": "A dog runs over the green grass", "b": "Two cats.", "c": "the sea at night"}
    )
    second = made(["x", "y"], images[3:], {"x": "a dog runs over the green hill", "y": "two CATS"})
    assert found(first, second) == [("a", "x", "caption"), ("b", "y", "caption")]
    assert found(first, second, shared=0.7) == [("b", "y", "caption")]


@pytest.mark.parametrize("seed", range(3))
def test_captions_equal_a_slow_comparison(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memlib.data.overlap.BLOCK", 7)
    rng = np.random.default_rng(seed)
    texts = [" ".join(rng.choice(["a", "b", "c"], size=rng.integers(0, 9))) for _ in range(60)]
    first = {f"f{n:02}": text for n, text in enumerate(texts[:30])}
    second = {f"s{n:02}": text for n, text in enumerate(texts[30:])}

    def shingles(text: str) -> set[tuple[str, ...]]:
        words = words_of(text)
        return {tuple(words[n : n + 4]) for n in range(max(1, len(words) - 3))} if words else set()

    expected = []
    for name, text in first.items():
        shares = {}
        for other, theirs in second.items():
            union = shingles(text) | shingles(theirs)
            shares[other] = len(shingles(text) & shingles(theirs)) / len(union) if union else 0.0
        best = max(shares, key=lambda other: (shares[other], [-ord(letter) for letter in other]))
        if shares[best] >= 0.3:
            expected.append((name, best, "caption"))
    images = [noise(number) for number in range(60)]
    assert found(made(list(first), images[:30], first), made(list(second), images[30:], second), shared=0.3) == expected
    assert expected


def test_points_are_compared_by_their_coordinates_alone() -> None:
    points = Set(["a", "b"], ["1", "2"], np.arange(2), None, {})
    assert found(points, Set(["x"], ["2"], np.arange(1), None, {})) == [("b", "x", "identical")]


def test_each_example_is_its_own_copy() -> None:
    images = [noise(seed) for seed in range(3)]
    one = made(["a", "b", "c"], images, {"a": "some words in a row", "b": "", "c": "other words"})
    assert found(one, one) == [
        ("a", "a", "caption"), ("a", "a", "identical"), ("b", "b", "identical"), ("c", "c", "caption"), ("c", "c", "identical"),
    ]  # fmt: skip
