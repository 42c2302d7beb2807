"""Text for terminals, pages and figures: sanitizing of untrusted text, numbers with their nouns, and ids as compared."""

import re
import unicodedata

# characters that move a cursor, end a line, change the writing direction, or are lone surrogates; tabs and \n stay
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
LONGEST = 2000  # characters of one message


def plain(text: str) -> str:
    """Replace control characters, Unicode line separators, bidirectional controls and lone surrogates by U+FFFD."""
    return CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def brief(text: str) -> str:
    """Return the sanitized text, truncated after LONGEST characters."""
    text = plain(text)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ... ({len(text)} characters)"


def one_line(text: str) -> str:
    """Return the sanitized text in one line, as of a name that could otherwise write lines of its own."""
    return " ".join(brief(text).split())


def count_of(number: int, noun: str, plural: str = "") -> str:
    """Return a number and its noun, which is in the plural unless the number is 1."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {plural or noun + 's'}"


def is_plain(text: str) -> bool:
    """Return whether a text has no character that `plain` would replace."""
    return CONTROL.search(text) is None


def is_text(name: str) -> bool:
    """Return whether a name has no lone surrogates, which stand for bytes that are not UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def composed(text: str) -> str:
    """Return a text in which letters and their accents are single characters where possible (Unicode's NFC)."""
    return unicodedata.normalize("NFC", text)


def folded(name: str) -> str:
    """Return an id as it is compared: composed, without case and outer blanks."""
    return composed(composed(name).casefold()).strip()
