"""Texts that came from elsewhere, made harmless for terminals, pages and figures."""

import re

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
LONGEST = 2000  # characters of what is said in one go
# what moves a cursor, turns writing round, or is half a character; tabs and ends of lines are left


def plain(text: str) -> str:
    """The text with a sign in the place of every character that a terminal obeys, or nothing can write."""
    return CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def brief(text: str) -> str:
    """The same, cut where nobody would read on."""
    text = plain(text)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ... ({len(text)} characters)"


def is_plain(text: str) -> bool:
    """Whether it has no such character."""
    return CONTROL.search(text) is None
