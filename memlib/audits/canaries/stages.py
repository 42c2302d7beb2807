"""The stages of an audit of canaries: losses are read under pseudonyms, scored with the coins, and reported."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from memlib.audits.canaries.recipe import Recipe
from memlib.audits.canaries.tables import LOOKS
from memlib.audits.last_stages import CURVES_FILE, SUMMARY_FILE, UNITS_FILE, PageStage, ScoresStage
from memlib.data.canaries.losses import LOSSES, Recorded, Served, read_losses
from memlib.data.canaries.plan import Coins, read_coins
from memlib.errors import UserError
from memlib.identity import file_digest
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import UNKEYED, AnyArtifact, Artifact, Stage
from memlib.pipeline.tables import Tables
from memlib.store import Attempt
from memlib.tables import CURVES, SUMMARY, read_table, write_table

if TYPE_CHECKING:
    import torch

    from memlib.report.page import Content

LOSSES_FILE, LOOKS_FILE = "losses.parquet", "looks.json"
KEPT = ("looks", "repeated", "stopped", "canaries", "plan")  # of what is recorded, besides the table


@dataclass(frozen=True)
class ReadLosses(Stage[Recorded]):
    """Read the losses of canaries: losses.parquet, under pseudonyms, and looks.json."""

    declared: ClassVar[Declared] = Declared("read_losses", 1)
    title: ClassVar[str] = "read losses of canaries"

    canaries: str = field(metadata=UNKEYED)  #: the folder; its content is an input.
    losses: str = field(metadata=UNKEYED)  #: the file; its content is an input.

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Digests of the losses and, keyed with their salt, of the coins and their plan."""
        if not Path(self.losses).is_file():
            raise UserError(
                f"losses: {self.losses} does not exist; CanaryAudit, a callback or memlib canaries score writes it"
            )
        return {"losses": file_digest(Path(self.losses)), "coins": read_coins(Path(self.canaries)).digest}

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write the losses in order of the pseudonyms."""
        coins, recorded = read_coins(Path(self.canaries)), read_losses(Path(self.losses))
        if recorded.canaries and coins.content and recorded.canaries != coins.content:
            raise UserError(
                f"{self.losses} has losses of other canaries than those of {self.canaries}; name their own folder"
            )
        hidden = {name: pseudonym(name, coins) for name in recorded.table["canary"].unique().to_pylist()}
        names = pa.array([hidden[name] for name in recorded.table["canary"].to_pylist()], pa.string())
        table = recorded.table.set_column(recorded.table.column_names.index("canary"), "canary", names)
        keep(attempt, replace(recorded, table=table))

    @classmethod
    def open(cls, artifact: Artifact[Recorded]) -> Recorded:
        """Return the losses; canaries have pseudonyms."""
        return kept(artifact)


def keep(attempt: Attempt, recorded: Recorded) -> None:
    """Write losses, whose canaries have pseudonyms, in their order: losses.parquet and looks.json."""
    table = recorded.table.sort_by([("step", "ascending"), ("canary", "ascending")])
    write_table(table, LOSSES, attempt.path(LOSSES_FILE))
    said = {name: getattr(recorded, name) for name in KEPT}
    said |= {} if recorded.asked is None else {"asked": asdict(recorded.asked)}
    attempt.path(LOOKS_FILE).write_text(json.dumps(said), encoding="utf-8")


def kept(artifact: AnyArtifact) -> Recorded:
    """Return the losses that `keep` wrote."""
    said = json.loads(artifact.path(LOOKS_FILE).read_text(encoding="utf-8"))
    looks = {int(look): step for look, step in said["looks"].items()}
    others = {name: said[name] for name in KEPT if name not in ("looks", "repeated")}
    asked = Served(**{**said["asked"], "remarks": tuple(said["asked"]["remarks"])}) if "asked" in said else None
    return Recorded(read_table(artifact.path(LOSSES_FILE)), looks, tuple(said["repeated"]), **others, asked=asked)


def pseudonym(name: str, coins: Coins) -> str:
    """Return the name under which a canary is stored, which says nothing without the salt of the coins."""
    return hmac.new(coins.salt.encode(), name.encode(), hashlib.sha256).hexdigest()[:16]


@dataclass(frozen=True)
class Score(ScoresStage):
    """Test the losses of canaries against redraws of their coins, which are read and not stored."""

    declared: ClassVar[Declared] = Declared("score_canaries", 1)
    title: ClassVar[str] = "score canaries"

    recipe: Recipe = field(metadata=UNKEYED)
    losses: Artifact[Recorded]

    @property
    def spec(self) -> Mapping[str, Any]:
        """The claim, and a step that is looked at besides the plan."""
        claim = self.recipe.privacy
        return {"privacy": None if claim is None else claim.model_dump(mode="json"), "step": self.recipe.step}

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The losses."""
        return {"losses": self.losses.key}

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write looks, curves and summary."""
        from memlib.audits.canaries.findings import Evidence, curves, looks_of, summarize

        coins = read_coins(Path(self.recipe.canaries))
        found = Evidence.of(self.recipe, coins, [pseudonym(name, coins) for name in coins.canaries], self.losses.content)
        write_table(looks_of(found), LOOKS, attempt.path(UNITS_FILE))
        write_table(summarize(found), SUMMARY, attempt.path(SUMMARY_FILE))
        write_table(curves(found), CURVES, attempt.path(CURVES_FILE))


@dataclass(frozen=True)
class Report(PageStage):
    """Draw the page of an audit of canaries."""

    declared: ClassVar[Declared] = Declared("report_canaries", 1)
    title: ClassVar[str] = "report canaries"

    recipe: Recipe
    run: str
    scores: Artifact[Tables]

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The scores."""
        return {"scores": self.scores.key}

    def compose(self, attempt: Attempt) -> Content:
        """Draw the figures and return the content of the page."""
        from memlib.audits.canaries.report import compose

        tables = self.scores.content
        return compose(self.recipe, tables["units"], tables["summary"], tables["curves"], attempt.path("figures"))
