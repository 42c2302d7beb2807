"""Policies: the rules by which a build decides from finished runs whether a model may be released."""

import math
import re
from collections.abc import Mapping
from typing import Annotated, NamedTuple

from pydantic import Field, field_validator, model_validator

from memlib.audits import PACKAGES, audit_of
from memlib.findings import Word
from memlib.specs import Spec
from memlib.specs.base import MOST_NUMBER

SELECTED = re.compile(r"(?P<metric>\w+)(\[(?P<params>[^\]]*)\])?")
CEILING = re.compile(r"(?P<selected>[^=\[]+(\[[^\]]*\])?)=(?P<limit>[^=]+)")


class Selected(NamedTuple):
    """The findings to which a rule applies: a metric, and the params that they must have, as text."""

    metric: str
    params: Mapping[str, str]

    @classmethod
    def of(cls, text: str) -> "Selected":
        """Return the findings that METRIC or METRIC[PARAM=...,...] names.

        Raises:
            ValueError: if the text has another form.
        """
        match = SELECTED.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not METRIC or METRIC[PARAM=...]")
        parts = [part.partition("=") for part in (match["params"] or "").split(",") if part]
        return cls(match["metric"], {key: value for key, _, value in parts})


class Ceiling(NamedTuple):
    """A limit on the findings that it names; `text` is the ceiling as given."""

    text: str
    selected: Selected
    limit: float

    @classmethod
    def of(cls, text: str) -> "Ceiling":
        """Return the ceiling METRIC=VALUE or METRIC[PARAM=...,...]=VALUE.

        Raises:
            ValueError: if the text has another form, or the value is no finite number.
        """
        try:
            match = CEILING.fullmatch(text)
            selected, limit = (Selected.of(match["selected"]), float(match["limit"])) if match else (None, math.nan)
        except ValueError:
            selected, limit = None, math.nan
        if selected is None or not math.isfinite(limit):
            raise ValueError(f"{text!r} is not METRIC=VALUE or METRIC[PARAM=...]=VALUE with a finite number")
        return cls(text, selected, limit)


class NonInferiority(Spec):
    """A comparison with the baseline's run: a metric may exceed the baseline's by less than a margin. It is a test on
    independently trained models, with a one-sided error of 5 %, and needs at least three trainings on each side."""

    metric: str
    """METRIC, or METRIC[PARAM=...,...] for the findings with these params: share_excess of déjà vu, or m_white, m_w or m_kl
    of unique feature."""
    margin: float = Field(gt=0, le=MOST_NUMBER)
    """Difference, in the metric's unit, that is too large to accept. Fix it in advance. A margin that the numbers of
    trainings cannot decide passes nothing; `memlib plan --policy --baseline` prints the smallest one that they can."""

    @field_validator("metric")
    @classmethod
    def _names_findings(cls, value: str) -> str:
        Selected.of(value)
        return value


class RunRules(Spec):
    """Rules that a single run has to satisfy."""

    verdicts: tuple[Word, ...] = ()
    """Accepted verdicts, such as [bounded]. Of the others, shown fails, and inconclusive and descriptive are undecided; so is
    a shown that earlier looks at the same data void."""
    ceilings: tuple[str, ...] = ()
    """Limits METRIC=VALUE on upper bounds, as in share_excess=0.05: the headline of the metric decides.
    METRIC[PARAM=...,...]=VALUE asks for the findings with these params."""
    detectable: float | None = Field(default=None, gt=0, le=MOST_NUMBER)
    """Power: largest effect that every headline test may need in order to be found with a probability of 80 %, in the unit of
    its metric. A run with less power is undecided."""
    bound: float | None = Field(default=None, gt=0, le=MOST_NUMBER)
    """Largest bound that the recipe may call acceptable in its headline tests, in the unit of the metric: `bounded` means
    below the recipe's own bound. A run with a larger one, or with none, is undecided."""
    n: int | None = Field(default=None, ge=1)
    """Power: smallest number of independent units on which the headline may rest: persons, where examples are grouped. A run
    with fewer is undecided."""

    @field_validator("ceilings")
    @classmethod
    def _are_ceilings(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            Ceiling.of(text)
        return value


class AuditRules(RunRules):
    """Rules for the runs of one audit. The newest run that matches is judged, and with it the current runs on the same data
    that differ from it in seeds alone, or examine the same given model; a missing run is undecided."""

    audit: str
    """Name of the audit, such as deja-vu."""
    title: str | None = None
    """Title of the run, as in its recipe; by default any."""
    recipe: str | None = None
    """Recipe of the run: the name of a shipped one, or a YAML file beside the policy. A run with other settings is another
    one. By default any."""
    model: Annotated[str, Field(pattern=r"[0-9a-f]{6,64}")] | None = None
    """Digest (sha256), or its first digits, of a file that the run must have examined: weights or outputs that were given to
    it, or weights that it trained. Other runs are undecided. By default any."""
    non_inferiority: tuple[NonInferiority, ...] = ()
    """Comparisons with the baseline's run."""

    @field_validator("audit")
    @classmethod
    def _exists(cls, value: str) -> str:
        if audit_of(value) not in PACKAGES:
            raise ValueError(f"there is no audit {value!r}; choose from {', '.join(PACKAGES)}")
        return audit_of(value)

    @model_validator(mode="after")
    def _decides_something(self) -> "AuditRules":
        if not (self.verdicts or self.ceilings or self.non_inferiority):
            raise ValueError(f"the rules for {self.audit} can fail no run; give verdicts, ceilings or non_inferiority")
        return self

    @property
    def named(self) -> str:
        """The audit, with the title or recipe by which its runs are chosen."""
        return " ".join([self.audit, *(f'"{text}"' for text in (self.title, self.recipe) if text is not None)])


class Policy(Spec):
    """The rules by which `memlib gate` decides about a build."""

    title: str = "Policy"
    """Heading of the summary."""
    audits: tuple[AuditRules, ...]
    """Required audits, each with its rules."""
    max_age_days: float | None = Field(default=None, gt=0, le=MOST_NUMBER)
    """Largest age of a run's numbers in days, whenever its page was drawn; an older run is stale, and undecided. So is one
    that is dated ahead."""
    current: bool = True
    """Leave a run undecided if a newer one has the same recipe and data."""
    data: Annotated[str, Field(pattern=r"[0-9a-f]{6,64}")] | None = None
    """Digest of the audited data, or its first digits; `memlib show RUN --json` prints it. A run on other data is stale, and
    undecided."""

    @field_validator("audits")
    @classmethod
    def _some(cls, value: tuple[AuditRules, ...]) -> tuple[AuditRules, ...]:
        if not value:
            raise ValueError("a policy needs the rules of at least one audit")
        return value
