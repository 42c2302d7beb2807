"""People's names that could stand where another one does: as long, and written alike."""

import importlib
import re
import unicodedata

import numpy as np

from memlib.errors import UserError
from memlib.identity import derive_seed

LOCALES = ("en_US", "en_GB", "en_NZ", "de_DE", "nl_NL", "fr_FR", "es_ES", "it_IT")
"""Of the package Faker, in the order in which they are used up: a model that knows names knows its country's best."""
_WORD = re.compile(r"[^\W\d_]+")


def other_names(text: str, count: int, *, seed: int) -> list[str]:
    """Other people's names in the form of a text: each word a name of as many letters, in the same case.

    A word that is a first name is replaced by first names, one that is only a last name by last names, any other by both.

    Args:
        text: a name, such as JOHN, Smith or SMITH^JOHN.
        count: at most so many; names of one word may run out.
        seed: of the draws.

    Raises:
        UserError: when the text has no word, or there is no other name as long.
    """
    words = _WORD.findall(text)
    if not words:
        raise UserError(f"the text {text!r} has no word that another name could stand for; set canary.feature.nulls")
    shuffled = [_candidates(word, count, seed=derive_seed(seed, place)) for place, word in enumerate(words)]
    found: dict[str, None] = {}
    if len(words) == 1:
        found = dict.fromkeys(_with_words(text, [name]) for name in shuffled[0])
    rng = np.random.default_rng(derive_seed(seed, "whole"))
    for _ in range(20 * count if len(words) > 1 and all(shuffled) else 0):
        found[_with_words(text, [names[rng.integers(len(names))] for names in shuffled])] = None
    others = [name for name in found if name != text][:count]
    if not others:
        raise UserError(f"there is no other name with as many letters as {text!r}; set canary.feature.nulls")
    return others


def _with_words(text: str, words: list[str]) -> str:
    replacements = iter(words)
    return _WORD.sub(lambda _: next(replacements), text)


def _candidates(word: str, count: int, *, seed: int) -> list[str]:
    """Names as long as a word and in its case, those of the first locales first; at least `count` where there are so many."""
    plain, rng = word.casefold(), np.random.default_rng(seed)
    pools = [_names(locale) for locale in LOCALES]
    known = [kind for kind in (0, 1) if any(plain in pool[kind] for pool in pools)][:1]
    found: list[str] = []
    for pool in pools:
        names = sorted({name for kind in known or (0, 1) for name in pool[kind] if len(name) == len(word)})
        fresh = [name for name in names if name != plain and name not in found]
        found += [fresh[place] for place in rng.permutation(len(fresh))]
        if len(found) >= count:
            break
    return [_in_case_of(word, name) for name in found]


def _names(locale: str) -> tuple[frozenset[str], frozenset[str]]:
    """First and last names of a locale in small plain letters."""
    provider = importlib.import_module(f"faker.providers.person.{locale}").Provider
    first = {*provider.first_names} if hasattr(provider, "first_names") else set()
    for side in ("first_names_male", "first_names_female"):
        first |= {*getattr(provider, side, ())}
    return _plain(first), _plain({*provider.last_names})


def _plain(names: set[str]) -> frozenset[str]:
    """Without accents; names that need other letters than a to z are left out."""
    bare = ("".join(c for c in unicodedata.normalize("NFKD", name) if not unicodedata.combining(c)) for name in names)
    return frozenset(name.lower() for name in bare if name.isascii() and name.isalpha())


def _in_case_of(word: str, name: str) -> str:
    if word.isupper():
        return name.upper()
    return name.title() if word[0].isupper() else name
