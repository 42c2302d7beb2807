"""Given secrets that occur once in a text, and so can be compared with held-out secrets on equal terms.

A text's own held-out secrets are a null for its given secrets only if chance alone decided which secrets were held out.
Recurring secrets are seldom held out completely, and they are popular or simple: with them, given secrets would be more
likely than unseen ones even under a model that saw neither. So only secrets that occur once, in training and held-out text
together, are compared.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import ahocorasick_rs

IGNORED = re.compile(r"[\W_]+")


def normalized(text: str) -> str:
    """Return a text without case, spaces and separators, in compatibility form: +49 (0) 12-3 and 49 0123 are the same."""
    return IGNORED.sub("", unicodedata.normalize("NFKC", text).casefold())


def single_secrets(documents: Iterable[tuple[int, str]], secrets: Sequence[str]) -> list[bool]:
    """Return a mask of the secrets that occur exactly once in all documents, spelt as given, and first in their document.

    Documents are held out as wholes, so the secrets of one document are a single piece of evidence, and only the first is
    used.

    Args:
        documents: number and text of each document that is trained on or held out; copies that stay together share a number.
        secrets: the secrets; occurrences are counted after `normalized`.

    Returns:
        (num_secrets,) booleans.
    """
    spelt = [normalized(secret) for secret in secrets]
    different = {text: place for place, text in enumerate(dict.fromkeys(filter(None, spelt)))}
    if not different:
        return [False] * len(secrets)
    search = ahocorasick_rs.AhoCorasick(list(different))
    totals: Counter[int] = Counter()
    raw = {different[text]: secret for text, secret in zip(spelt, secrets, strict=True) if text}
    exact: set[int] = set()  # found in their own spelling, which is what is counted in training text
    order: dict[int, list[int]] = {}  # secrets of each document, in order of their first occurrence
    for number, text in documents:
        found = [match for match, _, _ in search.find_matches_as_indexes(normalized(text), overlapping=True)]
        totals.update(found)
        if found:
            exact.update(match for match in found if raw[match] in text)
            order.setdefault(number, []).extend(found)
    once = {match for match, count in totals.items() if count == 1} & exact
    firsts = {next((match for match in matches if match in once), None) for matches in order.values()}
    twice = {text for text, count in Counter(spelt).items() if count > 1}
    return [bool(text) and text not in twice and different[text] in firsts for text in spelt]


def blocks_of(chunks: Iterable[Sequence[str]], size: int, unit: str) -> Iterator[tuple[int, str]]:
    """Yield the number and text of each block of consecutive symbols; the last block may be shorter.

    Args:
        chunks: the text's symbols.
        size: symbols per block.
        unit: character or word.
    """
    between, number, pending = "" if unit == "character" else " ", 0, []
    count = 0
    for chunk in chunks:
        place = 0
        while place < len(chunk):
            part = chunk[place : place + size - count]
            pending.append(between.join(part))
            place, count = place + len(part), count + len(part)
            if count == size:
                yield number, between.join(pending)
                number, count, pending = number + 1, 0, []
    if pending:
        yield number, between.join(pending)
