"""Secrets of a known format in a text of any length, found while the text is streamed, and those that occur once.

A text's own held-out secrets are a null for its given secrets only if chance alone decided which secrets were held out.
Recurring secrets are seldom held out completely, and they are popular or simple: with them, given secrets would be more
likely than unseen ones even under a model that saw neither. So only secrets that occur once, in training and held-out text
together, are compared.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import ahocorasick_rs

from memlib.data.text.formats import Format
from memlib.data.text.streams import LINE_END, Text
from memlib.errors import UserError

MOST_SECRETS = 1_000_000  # different ones that are held in memory


@dataclass(frozen=True)
class Scan:
    """The secrets of a text."""

    counts: Mapping[str, int] = field(repr=False)  #: number of occurrences by secret; must not be shown.

    @property
    def occurrences(self) -> int:
        """The number of all occurrences."""
        return sum(self.counts.values())

    @property
    def once(self) -> int:
        """The number of secrets that occur once."""
        return sum(count == 1 for count in self.counts.values())

    def lines(self, *, counted: bool = False) -> str:
        """Return the sorted secrets, one per line, in the format of `memlib.data.text.corpus.read_secrets`.

        Args:
            counted: True to add a tab and the number of occurrences to each secret.
        """
        return "".join(f"{secret}\t{count}\n" if counted else f"{secret}\n" for secret, count in sorted(self.counts.items()))


def scan_text(text: Text, form: Format) -> Scan:
    """Find all secrets of a format in a text; see `find_secrets`.

    Raises:
        UserError: for a format that cannot be searched for, a text that is empty or cannot be read, or too many secrets.
    """
    places = form.places("character")
    _check_places(places, form)
    counts: Counter[str] = Counter()
    for secret in find_secrets(_not_blank(text), places):
        counts[secret] += 1
        if len(counts) > MOST_SECRETS:
            raise UserError(
                f"more than {MOST_SECRETS:,} different texts in {text.name} match the format {form.text!r}; add some of the "
                "text around the secret to the format"
            )
    return Scan(counts)


def find_secrets(pieces: Iterable[str], places: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Yield the occurrences of a format in a text, overlapping ones included, in order.

    An occurrence that begins or ends with a hole does not count if a further symbol of this hole's alphabet adjoins the hole:
    nine digits within twelve are no number of nine digits.

    Args:
        pieces: the text, cut anywhere.
        places: possible symbols (single characters, no line end among them) at each place, see `Format.places`.
    """
    pattern, length = _pattern(places), len(places)
    rest = ""  # the undecided end of the text, after the character that precedes it
    start = 0
    for piece in _ended(pieces):
        window = rest + piece
        while (found := pattern.search(window, start)) and found.end() < len(window):
            yield found[0]
            start = found.start() + 1
        decided = max(start, len(window) - length)  # occurrences from here on reach the end of the window
        rest, start = window[max(0, decided - 1) :], min(decided, 1)


def _ended(pieces: Iterable[str]) -> Iterator[str]:
    """Yield pieces, then a line end, after which occurrences at the end of the text are complete."""
    yield from pieces
    yield LINE_END


def _pattern(places: Sequence[tuple[str, ...]]) -> re.Pattern[str]:
    """Return a regular expression of the occurrences of a format, with lookarounds for symbols that must not adjoin them."""
    parts = [re.escape(place[0]) if len(place) == 1 else _any_of(place) for place in places]
    before = f"(?<!{parts[0]})" if len(places[0]) > 1 else ""
    after = f"(?!{parts[-1]})" if len(places[-1]) > 1 else ""
    return re.compile(f"{before}{''.join(parts)}{after}")


def _any_of(symbols: Sequence[str]) -> str:
    return f"[{''.join(map(re.escape, symbols))}]"


def _check_places(places: Sequence[tuple[str, ...]], form: Format) -> None:
    """Refuse symbols of several characters, and those that a file with one secret per line cannot hold."""
    for symbol in {symbol for place in places for symbol in place}:
        if len(symbol) != 1:
            raise UserError(f"the format {form.text!r} has the symbol {symbol!r}; alphabets hold single characters")
        if symbol in "\t\ufeff" or symbol.splitlines() != [symbol]:
            raise UserError(
                f"the format {form.text!r} has the symbol {symbol!r}, which ends a secret in a secret file; leave it out"
            )


def _not_blank(text: Text) -> Iterator[str]:
    """Yield the pieces of a text; raise UserError at its end if all are blank."""
    blank = True
    for piece in text.read():
        blank = blank and not piece.strip()
        yield piece
    if blank:
        raise UserError(f"the text {text.name} is empty")


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
