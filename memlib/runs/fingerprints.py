"""Fingerprints of data sets, by which a data set is recognized in another file: with a row less, or in another order.

Of each data set the smallest digests of its examples are kept (a bottom-k sketch, Cohen and Kaplan 2007). Up to the smaller
of two sketches' largest digests both sketches are complete, so the examples below it are a random sample of each set, of
which it is known whether the other set contains them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable

from memlib.runs.records import Fingerprints

KEPT, LENGTH = 256, 12  # number of digests that are kept, and their length
SHARE = 0.1  # share of the examples of the smaller set from which on a test of one set is a look at the other, too


def fingerprint_of(digest: str) -> str:
    """Return the fingerprint of an example, given the digest of its content."""
    return hashlib.sha256(digest.encode()).hexdigest()[:LENGTH]


def fingerprints_of(digests: Iterable[str]) -> Fingerprints | None:
    """Return the fingerprints of a data set, given the digests of its examples; None if it is empty."""
    found = {fingerprint_of(digest) for digest in digests}
    return {"count": len(found), "smallest": sorted(found)[:KEPT]} if found else None


def in_common(one: Fingerprints, other: Fingerprints) -> tuple[int, int]:
    """Return the number of sampled examples of the smaller set that the larger one contains, too, and the number sampled."""
    cut = [each["smallest"][-1] for each in (one, other) if each["count"] > len(each["smallest"])]
    smaller, larger = sorted((one, other), key=lambda each: each["count"])
    sampled = {digest for digest in smaller["smallest"] if not cut or digest <= min(cut)}
    return len(sampled & set(larger["smallest"])), len(sampled)


def have_common(one: Fingerprints, other: Fingerprints) -> bool:
    """Return whether two sets share a tenth of the smaller one.

    Where the number is estimated, it counts from two standard errors below: of pairs of sets that share a tenth, fewer than
    one in forty is missed, unless one set is hundreds of times larger than the other.
    """
    hits, sampled = in_common(one, other)
    is_exact = all(each["count"] == len(each["smallest"]) for each in (one, other))
    least = SHARE * sampled - (0 if is_exact else 2 * math.sqrt(SHARE * sampled))
    return hits >= max(1.0, least)


def without(kept: Fingerprints | None, forgotten: Collection[str]) -> Fingerprints | None:
    """Return fingerprints without some of them; None if none is left."""
    left = [] if kept is None else [digest for digest in kept["smallest"] if digest not in forgotten]
    return None if kept is None or not left else {"count": kept["count"], "smallest": left}
