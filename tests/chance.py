"""Limits that a count of independent tries passes once in a million runs, for tests of levels and coverages."""

from scipy.stats import binom

CHANCE = 1e-6


def most_of(tries: int, rate: float) -> int:
    """Return the largest count to accept of `tries` tries that each succeed with at most probability `rate`."""
    return int(binom.isf(CHANCE, tries, rate))


def least_of(tries: int, rate: float) -> int:
    """Return the smallest count to accept of `tries` tries that each succeed with at least probability `rate`."""
    return int(binom.ppf(CHANCE, tries, rate))
