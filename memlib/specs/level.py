"""The level of an audit's tests, and how often the same data will be looked at."""

from pydantic import Field

from memlib.specs.base import Spec

MOST_LOOKS = 1000
ERROR = 0.05  # probability that an upper bound is wrong, over all looks together


class LevelSpec(Spec):
    """A level that is shared by a planned number of looks at the same data (Bonferroni)."""

    alpha: float
    looks: int = Field(default=1, ge=1, le=MOST_LOOKS)
    """Number of audits of these data that are planned in all, such as one pair of models now and three more if in doubt, or
    five seeds of a split. Each audit spends alpha / looks, so that the chance of a false finding over all audits stays below
    alpha; one-sided 95 % bounds hold over all audits, too. Fix the number before the first audit."""

    @property
    def level(self) -> float:
        """The level that one look spends."""
        return self.alpha / self.looks

    @property
    def error(self) -> float:
        """The probability with which the upper bounds of one look may be wrong."""
        return ERROR / self.looks
