"""The joint bound of several canaries; gates import it, so it loads no PyTorch."""

from collections.abc import Sequence


def largest(bounds: Sequence[float | None]) -> float | None:
    """Return the largest of some bounds; None if any of them is unknown."""
    known = [bound for bound in bounds if bound is not None]
    return max(known) if len(known) == len(bounds) else None
