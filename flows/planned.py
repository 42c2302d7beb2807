"""What an audit would do, and an audit in which nothing is left to do: neither Prefect nor PyTorch is loaded."""

import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from flows.audits import body_of, stage_names
from flows.requests import announced
from memlib import code
from memlib.audit import Audit
from memlib.errors import RunError, UserError
from memlib.journal import Journal
from memlib.planning import Plan, PlanRunner
from memlib.publishing import run_id
from memlib.records import RunRecord
from memlib.results import Tables
from memlib.running import FinishedRunner
from memlib.runs import asks_digest, list_runs, read_run
from memlib.specs import Resources, Spec
from memlib.stage import AnyArtifact, Artifact, Out, Stage, in_words
from memlib.store import Ref, Store
from memlib.upkeep import let_go

OWN_SERVER = "ephemeral"  # the profile of Prefect's in which a run starts a server of its own


def plan(audit: Audit, recipe: Spec, store: str, resources: Resources, *, force: Sequence[str] = ()) -> Plan:
    """Return what an audit would do: its flow, run without computing anything, as far as that can be known."""
    found = Plan(Store(store))
    found.limits += audit.limits(recipe)
    with found.following(stage_names(audit, recipe)), code.planning():
        body_of(audit)(PlanRunner(found, resources, frozenset(force)), recipe)
    return found


def finished(
    audit: Audit, recipe: Spec, store: Store, resources: Resources, *, say: Callable[[str], None]
) -> RunRecord | None:
    """Publish a run again of which nothing is left to compute; return its manifest, None where anything is left.

    Whatever is missing, damaged, or made from what has changed since is for the audit's flow, which says so and mends it.

    Args:
        audit: of the recipe.
        recipe, resources: what is asked for.
        store: where it may be.
        say: told what a run's user must see.
    """
    asked = asks_digest(recipe.model_dump(mode="json"))
    if audit.holds_others or all(entry["asks"] != asked for entry in list_runs(store).entries):
        return None
    runner = _Announcing(audit, store, resources, say)
    try:
        found = body_of(audit)(runner, recipe)
    except RunError:
        return None
    let_go(store, runner.passing, resources, say=say)
    for line in (*audit.limits(recipe), *runner.warnings, *([in_words(runner.old_code)] if runner.old_code else [])):
        say(line)
    return found


def finished_cells(
    cells: Mapping[str, tuple[Audit, Spec]],
    store: Store,
    resources: Resources,
    *,
    say: Callable[[str], None],
    passing: list[AnyArtifact] | None = None,
) -> dict[str, RunRecord]:
    """Return the runs of those cells of a sweep in which nothing is left to do, as they were published.

    One plan for all, and one listing of what is published; of artifacts only what a plan needs is read. Damage within one is
    named by `memlib verify`, and by whatever opens it.

    Args:
        cells: audit and recipe of each by name.
        store: where they may be.
        resources: machines.
        say: told what a run's user must see.
        passing: gets the artifacts whose files may be let go.
    """
    known = {entry["asks"] for entry in list_runs(store).entries}
    asked = {name: cell for name, cell in cells.items() if asks_digest(cell[1].model_dump(mode="json")) in known}
    if not asked:
        return {}
    there = {**store.listing("runs"), **store.listing("results")}
    found, runner = {}, _Naming(Plan(store), resources)
    with code.planning():
        for name, (audit, recipe) in asked.items():
            run = runner.run_of(audit, recipe)
            if run is not None and all(path in there for path in run.published):
                if passing is not None:
                    passing += runner.passing
                found[name] = run.model_copy(update={"computed": [], "reused": sorted({*run.computed, *run.reused})})
    limits = [line for name in found for line in asked[name][0].limits(asked[name][1])]
    for line in dict.fromkeys([*limits, *([in_words(runner.plan.old_code)] if found and runner.plan.old_code else [])]):
        say(line)
    return found


class _Naming(PlanRunner):
    """Finds out which run an audit's would be."""

    def run_of(self, audit: Audit, recipe: Spec) -> RunRecord | None:
        """Return an audit's finished run; None where anything of it is missing, or made from what has changed since."""
        self._refs: list[Ref] = []
        self._run = ""
        self.passing: list[AnyArtifact] = []
        try:
            body_of(audit)(self, recipe)
            if self._run and all(self.plan.parts[ref].is_settled for ref in self._refs):
                return read_run(self.store, self._run)
        except (RunError, UserError):  # said by whoever carries it out
            pass
        return None

    def run_all(self, stages: Sequence[Stage[Out]]) -> list[Artifact[Out]]:
        """Note the parts of a step."""
        self._refs += [stage.identity.ref for stage in stages]
        return super().run_all(stages)

    def let_go(self, artifacts: Sequence[AnyArtifact]) -> None:
        """Note what may be let go."""
        self.passing += artifacts

    def publish(
        self, recipe: Spec, scores: Artifact[Tables], report: Artifact[Path], artifacts: Mapping[str, AnyArtifact]
    ) -> None:
        """Note the name of the run."""
        self._run = run_id(recipe, scores)


class _Announcing(FinishedRunner):
    """Publishes as a run does: announced while it is under way, and noted in the log."""

    def __init__(self, audit: Audit, store: Store, resources: Resources, say: Callable[[str], None]) -> None:
        super().__init__(store, resources)
        self._audit, self._say = audit, say

    def publish(
        self, recipe: Spec, scores: Artifact[Tables], report: Artifact[Path], artifacts: Mapping[str, AnyArtifact]
    ) -> RunRecord:
        """Publish a run's tables and page, and return its manifest."""
        with announced(self.store, self._audit.name, recipe, self.resources, [], say=self._say) as run:
            journal = Journal(self.store, run, {})
            for ref in map(Ref.parse, self.reused):
                journal.note("cached", ref.stage, ref.key)
            found = super().publish(recipe, scores, report, artifacts)
            journal.end("completed")
        return found


def has_server() -> bool:
    """Whether Prefect may be told of a server, which is to show every run: in the environment or in one of its files."""
    if os.environ.get("PREFECT_API_URL") or os.environ.get("PREFECT_PROFILE"):
        return True
    for path in (Path(".env"), Path("prefect.toml"), Path("pyproject.toml")):
        with suppress(OSError, UnicodeDecodeError):
            if any(word in path.read_text(encoding="utf-8") for word in ("PREFECT_", "[api]", "[tool.prefect")):
                return True
    home = Path(os.environ.get("PREFECT_HOME", Path.home() / ".prefect"))
    try:
        said = tomllib.loads(
            Path(os.environ.get("PREFECT_PROFILES_PATH", home / "profiles.toml")).read_text(encoding="utf-8")
        )
    except OSError:  # there are no profiles
        return False
    except ValueError:
        return True
    active = said.get("active", OWN_SERVER)
    return bool(said.get("profiles", {}).get(active, {"PREFECT_API_URL": active != OWN_SERVER}).get("PREFECT_API_URL"))
