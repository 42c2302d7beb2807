"""Secrets of a known format in a text of any length, found while the text is streamed."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from memlib.data.formats import Format
from memlib.data.streams import LINE_END, Text
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
        """Return the sorted secrets, one per line, in the format of `memlib.data.text.read_secrets`.

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
