"""Replacements for people's names that have the same length and case."""

import importlib
import re
import unicodedata

import numpy as np

from memlib.errors import UserError
from memlib.identity import derive_seed

LOCALES = ("en_US", "en_GB", "en_NZ", "de_DE", "nl_NL", "fr_FR", "es_ES", "it_IT")
"""Locales of the Faker package, in order of use: names that a model is most likely to know come first."""
_WORD = re.compile(r"[^\W\d_]+")


def other_names(text: str, count: int, *, seed: int) -> list[str]:
    """Return variants of a text with other people's names: each word is replaced by a name of the same length and case.

    First names are replaced by first names, words that are only last names by last names, and other words by either.

    Args:
        text: a name, such as JOHN, Smith or SMITH^JOHN.
        count: maximum number of names; for a single word there may be fewer.

    Raises:
        UserError: when the text has no word, or there is no other name of the same length.
    """
    words = _WORD.findall(text)
    if not words:
        raise UserError(f"the text {text!r} has no word that a name could replace; set canary.feature.nulls")
    shuffled = [_candidates(word, count, seed=derive_seed(seed, place)) for place, word in enumerate(words)]
    drawn: dict[str, None] = {}
    if len(words) == 1:
        drawn = dict.fromkeys(_with_words(text, [name]) for name in shuffled[0])
    rng = np.random.default_rng(derive_seed(seed, "whole"))
    for _ in range(20 * count if len(words) > 1 and all(shuffled) else 0):
        drawn[_with_words(text, [names[rng.integers(len(names))] for names in shuffled])] = None
    others = [name for name in drawn if name != text][:count]
    if not others:
        raise UserError(f"there is no other name with as many letters as {text!r}; set canary.feature.nulls")
    return others


def _with_words(text: str, words: list[str]) -> str:
    replacements = iter(words)
    return _WORD.sub(lambda _: next(replacements), text)


def _candidates(word: str, count: int, *, seed: int) -> list[str]:
    """Return names with the length and case of a word, locale by locale: at least `count`, or all if there are fewer."""
    plain, rng = word.casefold(), np.random.default_rng(seed)
    pools = [_names(locale) for locale in LOCALES]
    known = [kind for kind in (0, 1) if any(plain in pool[kind] for pool in pools)][:1]
    chosen: list[str] = []
    for pool in pools:
        names = sorted({name for kind in known or (0, 1) for name in pool[kind] if len(name) == len(word)})
        fresh = [name for name in names if name != plain and name not in chosen]
        chosen += [fresh[place] for place in rng.permutation(len(fresh))]
        if len(chosen) >= count:
            break
    return [_in_case_of(word, name) for name in chosen]


def _names(locale: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the first and last names of a locale, in lower case without accents."""
    provider = importlib.import_module(f"faker.providers.person.{locale}").Provider
    first = {*provider.first_names} if hasattr(provider, "first_names") else set()
    for side in ("first_names_male", "first_names_female"):
        first |= {*getattr(provider, side, ())}
    return _plain(first), _plain({*provider.last_names})


def _plain(names: set[str]) -> frozenset[str]:
    """Strip accents and convert to lower case; omit names with letters other than a to z."""
    bare = ("".join(c for c in unicodedata.normalize("NFKD", name) if not unicodedata.combining(c)) for name in names)
    return frozenset(name.lower() for name in bare if name.isascii() and name.isalpha())


def _in_case_of(word: str, name: str) -> str:
    if word.isupper():
        return name.upper()
    return name.title() if word[0].isupper() else name
