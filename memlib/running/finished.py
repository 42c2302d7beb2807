"""Plans of audits, and the republication of finished audits, without loading Prefect or PyTorch."""

import functools
import os
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from memlib.audits.arrangement import body_of, stage_names, stages_within
from memlib.audits.base import Audit
from memlib.errors import RunError, UserError
from memlib.pipeline import user_code
from memlib.pipeline.stage import NO_CELLS, AnyArtifact, Artifact, Ended
from memlib.pipeline.tables import Tables
from memlib.recipes.named_files import check_files
from memlib.running.planning import Plan, PlanRunner
from memlib.running.reuse import evict
from memlib.running.runners import FinishedRunner
from memlib.runs.index import list_runs
from memlib.runs.journal import Journal
from memlib.runs.plans import unrecorded
from memlib.runs.records import PlanFile, RunRecord
from memlib.runs.requests import announced
from memlib.specs import Resources, Spec
from memlib.specs.question import asks_digest
from memlib.store import Ref, Store

if TYPE_CHECKING:
    from memlib.pricing.price import Price

OWN_SERVER = "ephemeral"  # the Prefect profile with which each run starts its own server


def plan(audit: Audit, recipe: Spec, store: str, resources: Resources, *, force: Sequence[str] = ()) -> Plan:
    """Return the plan of an audit: run its flow without computing anything, as far as keys can be known."""
    result = Plan(Store(store))
    result.limits += [*audit.limits(recipe), *check_files(recipe)]
    with result.following(stage_names(audit, recipe)), user_code.planning():
        try:
            body_of(audit)(PlanRunner(result, resources, frozenset(force)), recipe)
        except UserError as error:
            if getattr(getattr(recipe, "data", None), "expected", None) is None or result.parts:
                raise
            result.limits.append(f"{error}; the price is that of data of the size in data.expected")
            result.is_partial = True
    result.pricing = functools.partial(_price, audit, recipe, result.store, resources, frozenset(force))
    return result


def _price(audit: Audit, recipe: Spec, store: Store, resources: Resources, forced: frozenset[str]) -> "Price":
    from memlib.pricing.price import price_of  # loads PyTorch

    return price_of(audit, recipe, store, resources, forced=forced)


def needs_workers(audit: Audit, recipe: Spec, store: Store, resources: Resources, *, force: Sequence[str] = ()) -> bool:
    """Return whether a run has to train models, or to compute several parts of a step, as far as a plan can tell."""
    try:
        steps = plan(audit, recipe, store.uri, resources, force=force)
    except (UserError, RunError):  # the run itself reports it
        return False
    missing = Counter(ref.stage for ref, part in steps.parts.items() if not part.is_settled)
    missing.update({name: 2 for names in steps.blocked.values() for name in names})  # of unknown number
    places = {stage.declared.name: stage.place for stage in stages_within(audit, recipe)}
    kinds = [(places.get(name, "driver"), count) for name, count in missing.items()]
    return any(place == "fleet" or (place in ("anywhere", "cores") and count > 1) for place, count in kinds)


def finished(
    audit: Audit,
    recipe: Spec,
    store: Store,
    resources: Resources,
    *,
    say: Callable[[str], None],
    plan: PlanFile | None = None,
) -> RunRecord | None:
    """Publish a finished run again, and return its manifest; return None if anything is left to compute.

    Artifacts that are missing, damaged or computed from inputs that have since changed are left to the audit's flow, which
    reports and recomputes them.

    Args:
        recipe, resources: recipe and machine settings of the run.
        store: the store that may hold the run.
        say: called with messages for the user.
        plan: the frozen plan that the run was given, if any.
    """
    wanted = asks_digest(recipe.model_dump(mode="json"))
    if all(entry["asks"] != wanted for entry in list_runs(store.trusting(None)).entries):
        return None
    runner = _Announcing(audit, store, resources, say, plan)
    try:
        run = body_of(audit)(runner, recipe)
    except RunError:
        return None
    evict(store, runner.transient, resources, say=say)
    for line in (*audit.limits(recipe), *runner.warnings, *runner.old_code.lines, *unrecorded(run, plan)):
        say(line)
    return run


class _Announcing(FinishedRunner):
    """A runner that republishes a finished run and records its progress in the store and in the log."""

    def __init__(
        self, audit: Audit, store: Store, resources: Resources, say: Callable[[str], None], plan: PlanFile | None
    ) -> None:
        super().__init__(store, resources=resources, plan=plan)
        self._audit, self._say = audit, say

    def publish(
        self,
        recipe: Spec,
        scores: Artifact[Tables],
        report: Artifact[Path],
        artifacts: Mapping[str, AnyArtifact],
        *,
        cells: Ended = NO_CELLS,
    ) -> RunRecord:
        """Publish a run's tables and page, and return its manifest."""
        with self._recorded(recipe):
            return super().publish(recipe, scores, report, artifacts, cells=cells)

    @contextmanager
    def _recorded(self, recipe: Spec) -> Iterator[None]:
        plan = self._work.plan
        with announced(self.store, self._audit.name, recipe, self.resources, [], say=self._say, plan=plan) as run:
            journal = Journal(self.store, run, {})
            for ref in map(Ref.parse, self.reused):
                journal.note("cached", ref.stage, ref.key)
            yield
            journal.end("completed")


def has_server() -> bool:
    """Return whether a Prefect server, which is to show every run, may be configured in the environment or a file."""
    if os.environ.get("PREFECT_API_URL") or os.environ.get("PREFECT_PROFILE"):
        return True
    for path in (Path(".env"), Path("prefect.toml"), Path("pyproject.toml")):
        with suppress(OSError, UnicodeDecodeError):
            if any(word in path.read_text(encoding="utf-8") for word in ("PREFECT_", "[api]", "[tool.prefect")):
                return True
    home = Path(os.environ.get("PREFECT_HOME", Path.home() / ".prefect"))
    try:
        content = tomllib.loads(
            Path(os.environ.get("PREFECT_PROFILES_PATH", home / "profiles.toml")).read_text(encoding="utf-8")
        )
    except OSError:  # no profiles
        return False
    except ValueError:
        return True
    active = content.get("active", OWN_SERVER)
    return bool(content.get("profiles", {}).get(active, {"PREFECT_API_URL": active != OWN_SERVER}).get("PREFECT_API_URL"))
