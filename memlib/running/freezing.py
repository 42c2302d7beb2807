"""Freezing of a plan before a run, and the comparison of the run with it."""

import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from memlib.audits import AUDITS, audit_of
from memlib.audits.arrangement import stages_within
from memlib.audits.base import Audit
from memlib.data.read_beside import LONG, reads_of
from memlib.findings import Findings
from memlib.identity import flat
from memlib.pipeline import sources
from memlib.pipeline.definitions import equal_codes
from memlib.pipeline.provenance import source_state
from memlib.pipeline.stage import AnyStage
from memlib.pipeline.user_code import identity_of, modules_in
from memlib.report.format import in_words
from memlib.running.comparison import recipe_changes
from memlib.running.planning import Plan
from memlib.runs import ledger
from memlib.runs.index import list_runs, refs_of
from memlib.runs.plans import DIGITS, frozen_in, on, said_of_signatures
from memlib.runs.records import Departure, FollowedPlan, FrozenPlan, PlanFile, RunRecord
from memlib.sanitize import count_of
from memlib.specs import Spec
from memlib.specs.question import asks, asks_digest
from memlib.store import Ref, Store
from memlib.store.records import ArtifactRecord, sealed
from memlib.version import VERSION

THRESHOLD = re.compile(r"(?<!\blora)\.(alpha|(\w+_)?bound)$")
MOST_SHOWN = 10  # departures that a page names

Texts = Mapping[str, list[str]]


def freeze(audit: Audit, recipe: Spec, plan: Plan) -> PlanFile:
    """Return a plan to be written before the run: recipe, thresholds, and digests of data and code as far as they are known.

    Args:
        plan: what a run would do.
    """
    content, read = recipe.model_dump(mode="json"), _sources(plan)
    frozen = {
        "audit": str(content["audit"]),
        "title": str(content["title"]),
        "frozen": time.time(),
        "recipe": asks(content),
        "asks": asks_digest(content),
        "looks": ledger.planned_looks(content),
        "thresholds": {name: value for name, value in flat(content) if THRESHOLD.search(name)},
        "data": sources.digest_of(read),
        "reads": reads_of((ref.stage, identity.inputs) for ref, identity in plan.identities.items()),
        "code": _code_of(stages_within(audit, recipe), content),
        "unknown": list(plan.unreached),
        "held": sorted({ref.stage for ref, part in plan.parts.items() if part.hit}),
        "earlier": _earlier(plan.store, read),
        "memlib": VERSION,
        "source": dict(source_state()),
    }
    return PlanFile(format=1, plan=sealed(frozen))


Read = list[tuple[Mapping[str, Any], Mapping[str, Any]]]


def _sources(plan: Plan) -> Read:
    return [(one.inputs, one.spec) for ref, one in plan.identities.items() if sources.is_source(ref)]


def _earlier(store: Store, read: Read) -> list[str]:
    """Return the runs of a store whose data are one of the sources, or all of them."""
    digests = {sources.digest_of(read), *(sources.digest_of([one]) for one in read)} - {""}
    return [entry["run"] for entry in list_runs(store.trusting(None)).entries if entry["ledger"]["data"] in digests]


def _code_of(stages: Iterable[type[AnyStage]], recipe: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return version and digest of the code of stages, each followed by equal ones, and of modules that a recipe names."""
    found: dict[str, list[str]] = {module: [identity_of(module)] for module in sorted(set(modules_in(recipe)))}
    for stage in stages:
        equal = sorted(equal_codes(stage.__module__, stage.__qualname__) - {stage.code()})
        lines = [f"version {stage.declared.version}, {digest}" for digest in (stage.code(), *equal)]
        found[stage.declared.name] = list(dict.fromkeys([*found.get(stage.declared.name, []), *lines]))
    return found


def _code_in(manifests: Mapping[Ref, ArtifactRecord]) -> dict[str, list[str]]:
    """Return version and digest of the code that made artifacts, by stage, and of the modules that it ran."""
    found = defaultdict[str, set[str]](set)
    for ref, manifest in manifests.items():
        found[ref.stage].add(f"version {manifest.version}, {manifest.definitions or 'code not recorded'}")
        for module, identity in manifest.named.items():
            found[module].add(identity)
    return {name: sorted(lines) for name, lines in sorted(found.items())}


def followed(
    file: PlanFile, store: Store, run: RunRecord, cells: Mapping[str, RunRecord], *, before: RunRecord | None, started: float
) -> FollowedPlan:
    """Return what a run's manifest records of the frozen plan that it was given.

    Args:
        cells: manifests of the cells that it compares.
        before: manifest of an earlier publication of the run, if any.
        started: start time of the run.
    """
    plan = frozen_in(file)
    times = [started, *(one.started for one in (before.history if before is not None else []))]
    times += [before.plan.began] if before is not None and before.plan is not None else []
    if run.scores in run.reused:
        made = store.artifacts.manifests_of([Ref.parse(str(run.scores))])
        times += [manifest.finished for manifest in made.values() if manifest.finished is not None]
    found = departures(plan, store, run, cells)
    earlier, between = _audits_before(run, plan.frozen, plan.earlier)
    if before is not None and before.plan is not None and before.plan.digest == plan.digest and not run.ledger.earlier:
        earlier, between = before.plan.before or earlier, before.plan.between or between
    return FollowedPlan(
        digest=plan.digest, frozen=plan.frozen, began=min(times), signatures=file.signatures, earlier=plan.earlier,
        fixes_data=bool(plan.data), before=earlier, between=between, departures=found,
    )  # fmt: skip


def departures(plan: FrozenPlan, store: Store, run: RunRecord, cells: Mapping[str, RunRecord]) -> list[Departure]:
    """Return the differences between a frozen plan and a run: recipe, data, code, and looks at the data.

    What the plan could not know, and stages that only one of the two has, are left out: the recipe decides which stages
    there are.
    """
    manifests = store.artifacts.manifests_of(refs_of(run))
    changed = recipe_changes(plan.recipe, asks(run.recipe))
    found = [Departure(what=one["key"], planned=one["first"], found=one["second"]) for one in changed]
    read = reads_of((ref.stage, manifest.inputs) for ref, manifest in manifests.items())
    found += _of_data(plan.reads, read, is_partial=bool(plan.unknown))
    found += _of_code(plan.code, _code_in(manifests))
    if plan.memlib != (version := str(run.software.get("memlib", ""))):
        found.append(Departure(what="memlib", planned=plan.memlib, found=version))
    return [*found, *_of_looks(plan, run), *_of_cells(plan, cells)]


def _of_data(planned: Texts, found: Texts, *, is_partial: bool) -> Iterator[Departure]:
    """Yield what stages read otherwise than planned; a partial plan may leave out some of what is read."""
    for name in sorted(planned.keys() & found.keys()):
        missing, new = _beyond(planned[name], found[name]), _beyond(found[name], planned[name])
        if missing or (new and not is_partial):
            yield Departure(what=f"data of {name}", planned=missing, found=new)


def _of_code(planned: Texts, found: Texts) -> Iterator[Departure]:
    """Yield the stages and modules whose code is none of the planned ones."""
    for name in sorted(planned.keys() & found.keys()):
        if new := _beyond(found[name], planned[name]):
            yield Departure(what=f"code of {name}", planned=planned[name][:1], found=new)


def _beyond(texts: Sequence[str], others: Sequence[str]) -> list[str]:
    return [text for text in texts if text not in others]


def _of_looks(plan: FrozenPlan, run: RunRecord) -> Iterator[Departure]:
    is_test = AUDITS[audit_of(run.audit)].decisive(Findings.of_run(run)).is_test
    number = ledger.look_of(run.ledger, run.audit).number if is_test else 0
    if number > plan.looks:
        yield Departure(what="looks at the data", planned=plan.looks, found=number)


def _of_cells(plan: FrozenPlan, cells: Mapping[str, RunRecord]) -> Iterator[Departure]:
    """Yield the cells of a sweep that were run before the plan was frozen."""
    early = [name for name, one in cells.items() if any(each.started < plan.frozen for each in one.history)]
    if early:
        yield Departure(what="cells run before the plan was frozen", planned=[], found=early)


def said_of_plan(run: RunRecord) -> str:
    """Return the note on the frozen plan that a run was given, for page and terminal; "" if it was given none."""
    plan = run.plan
    if plan is None:
        return ""
    named = f"the plan frozen on {on(plan.frozen)} (digest {plan.digest[:DIGITS]})"
    sentences = [f"This run {_in_words(plan, run.run, named)}."]
    if plan.frozen > plan.began:
        known = f"results may have been known since {on(plan.began)}"
        sentences.append(f"The plan was frozen after the run ({known}), so it does not show what was decided beforehand.")
    if not plan.fixes_data:
        sentences.append("The plan holds no digest of the data, so it does not show that these data were meant.")
    return " ".join([*sentences, said_of_signatures(plan.signatures, plan.began), *_of_earlier(run, plan)])


def _in_words(plan: FollowedPlan, run: str, named: str) -> str:
    """Say whether a run follows a plan, or where it departs from it."""
    count = len(plan.departures)
    if not count:
        return f"follows {named}"
    listed = "; ".join(map(departure_in_words, plan.departures[:MOST_SHOWN]))
    more = f"; and {count - MOST_SHOWN} more (memlib show {run})" if count > MOST_SHOWN else ""
    return f"departs in {count_of(count, 'place')} from {named}: {listed}{more}"


def _of_earlier(run: RunRecord, plan: FollowedPlan) -> Iterator[str]:
    """Yield a sentence on the audits of the same data before the plan was frozen, and between then and the run."""
    counts = _audits_before(run, plan.frozen, plan.earlier) if plan.before is None else (plan.before, plan.between or 0)
    parts = [
        f"{count_of(number, 'audit')} of the same data {when}"
        for number, when in zip(counts, ("before the plan was frozen", "between then and this run"), strict=True)
        if number
    ]
    if parts:
        yield f"The store lists {' and '.join(parts)}."


def _audits_before(run: RunRecord, frozen: float, known: Iterable[str]) -> tuple[int, int]:
    """Return the number of audits of the same data before a plan was frozen, and between then and the run."""
    before = {one.run for one in run.ledger.earlier if one.finished < frozen} | {*known} - {run.run}
    return len(before), len({one.run for one in run.ledger.earlier} - before)


def departure_in_words(one: Departure) -> str:
    """Return a departure as text; digests are shortened."""
    planned, found = (LONG.sub(lambda digest: digest[0][:DIGITS], in_words(value)) for value in (one.planned, one.found))
    return f"{one.what}: {planned} planned, {found} run"
