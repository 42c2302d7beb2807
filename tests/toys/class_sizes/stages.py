"""Stages of the toy audit: counting, and the page."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import torch
from memlib.audits.class_sizes.recipe import Recipe
from memlib.audits.class_sizes.tables import UNITS

from memlib.audits.last_stages import CURVES_FILE, SUMMARY_FILE, UNITS_FILE, PageStage, ScoresStage
from memlib.data.stages import Shard
from memlib.findings import DESCRIPTIVE, Findings, Verdict, diagnostic
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import Artifact
from memlib.pipeline.tables import Tables
from memlib.store import Attempt
from memlib.tables import CURVES, SUMMARY, write_table

if TYPE_CHECKING:
    from memlib.report.page import Content


@dataclass(frozen=True)
class Count(ScoresStage):
    """Count the examples of each class."""

    declared: ClassVar[Declared] = Declared("class_sizes", 1)
    title: ClassVar[str] = "count classes"

    shard: Artifact[Shard]
    smallest: int

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write units, summary and curves."""
        sizes = Counter(self.shard.content.index["class_name"].to_pylist())
        ratio, total = max(sizes.values()) / min(sizes.values()), sum(sizes.values())
        rows = [diagnostic("largest_over_smallest", {}, ratio, n=total)]
        rows += [diagnostic("small", {"class": name}, n, n=n) for name, n in sizes.items() if n < self.smallest]
        verdict = Verdict(DESCRIPTIVE, f"The largest class has {ratio:.2f} times the examples of the smallest.", "Counted.")
        units = [{"class_name": name, "examples": size} for name, size in sorted(sizes.items())]
        write_table(pa.Table.from_pylist(units, schema=UNITS.arrow), UNITS, attempt.path(UNITS_FILE))
        write_table(Findings(rows).table(verdict), SUMMARY, attempt.path(SUMMARY_FILE))
        write_table(CURVES.arrow.empty_table(), CURVES, attempt.path(CURVES_FILE))


@dataclass(frozen=True)
class Report(PageStage):
    """Draw the page of the toy audit."""

    declared: ClassVar[Declared] = Declared("report", 1)
    title: ClassVar[str] = "report class sizes"

    recipe: Recipe
    run: str
    scores: Artifact[Tables]

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Return the key of the scores."""
        return {"scores": self.scores.key}

    def compose(self, attempt: Attempt) -> "Content":
        """Compose what the page says."""
        from memlib.audits.class_sizes.report import compose

        return compose(self.scores.content["units"])
