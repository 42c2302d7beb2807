"""A plan that was frozen before the run is compared with the run: what departs is named, and nothing else."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from harness import INFLUENCE
from markupsafe import escape

import memlib
from flows.cli.app import main
from memlib.audits.exposure import recipe as exposure
from memlib.data.read_beside import reads_of
from memlib.errors import RunError
from memlib.findings import settle, tested
from memlib.recipes.request import AuditRequest
from memlib.running.finished import plan as planned
from memlib.running.freezing import departure_in_words, departures, freeze, said_of_plan
from memlib.runs.index import list_runs, page_path, read_run
from memlib.runs.plans import PLAN, content_of, frozen_in, read_plan, write_plan
from memlib.runs.records import (
    Departure,
    EarlierAudit,
    FindingRecord,
    FollowedPlan,
    FrozenPlan,
    Ledger,
    PlanFile,
    Publication,
    RunRecord,
)
from memlib.runs.run import Run
from memlib.store import Store
from memlib.store.records import sealed

LINES = [f"{x:.3f},{y:.3f},{n % 2}" for n, (x, y) in enumerate(np.random.default_rng(0).normal(size=(40, 2)))]


def recipe_for(path: Path) -> str:
    table = {"kind": "table", "path": str(path), "label_column": "label"}
    return str(yaml.safe_dump(INFLUENCE | {"title": "points", "data": {"source": table}}))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, a recipe, a plan frozen before the run, and stores: one with the run, one with another run, too."""
    folder = tmp_path_factory.mktemp("frozen")
    (folder / "points.csv").write_text("\n".join(["a,b,label", *LINES, ""]))
    (folder / "points.yaml").write_text(recipe_for(folder / "points.csv"))
    assert (
        main(["plan", str(folder / "points.yaml"), "--freeze", str(folder / "plan.json"), "--store", str(folder / "new")])
        == 0
    )
    ran(folder, "store")
    shutil.copytree(folder / "store", folder / "departed")
    ran(folder, "departed", {"training.epochs": 3})
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """The same, to be spoilt; the recipe names data in this folder."""
    shutil.copytree(made, tmp_path / "a")
    (tmp_path / "a/points.yaml").write_text(recipe_for(tmp_path / "a/points.csv"))
    return tmp_path / "a"


def ran(folder: Path, store: str, changes: dict[str, Any] | None = None, plan: str | None = "plan.json") -> Run:
    path = None if plan is None else folder / plan
    return memlib.run(folder / "points.yaml", store=str(folder / store), quiet=True, changes=changes, plan=path)


def only_run(folder: Path) -> RunRecord:
    return newest(folder, "store")


def newest(folder: Path, name: str) -> RunRecord:
    store = Store(str(folder / name))
    return read_run(store, list_runs(store).entries[0]["run"])


def plan_of(run: RunRecord) -> FollowedPlan:
    assert run.plan is not None
    return run.plan


def frozen(folder: Path, **changes: Any) -> FrozenPlan:
    """Return the plan of a folder with some fields changed."""
    file = read_plan(folder / "plan.json")
    return frozen_in(file.model_copy(update={"plan": sealed(file.plan | changes)}))


def test_a_followed_plan_is_stated_in_manifest_page_terminal_and_verify(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, plan, store = only_run(made), frozen(made), Store(str(made / "store"))
    assert (plan_of(run).digest, plan_of(run).frozen, plan_of(run).departures) == (plan.digest, plan.frozen, [])
    assert plan_of(run).frozen < plan_of(run).began
    said = said_of_plan(run)
    assert said.startswith("This run follows the plan frozen on ")
    assert plan.digest[:16] in said
    page = (store.published(page_path(run)) or b"").decode()
    assert f'</div>\n<p class="looks">{escape(said)}</p>' in page
    assert main(["verify", run.run, "--store", store.uri, "--plan", str(made / "plan.json")]) == 0
    assert main(["show", run.run, "--store", store.uri]) == 0
    assert capsys.readouterr().out.count(said) == 2


def test_a_plan_names_data_thresholds_code_and_what_it_could_not_know(made: Path) -> None:
    plan = frozen(made)
    assert list(plan.reads) == ["decode source"]
    assert plan.data == only_run(made).ledger.data
    assert plan.asks == only_run(made).asks
    assert "path" not in plan.recipe["data"]["source"]
    assert plan.code["train"][0].startswith("version 2, ")
    assert plan.unknown == ["train", "gradient_norms", "self_influence", "report"]
    assert (plan.held, plan.earlier, plan.looks) == ([], [], 1)
    request = AuditRequest.read("membership_smoke", {"score.alpha": 0.01})
    from_recipe = freeze(
        request.audit, request.recipe, planned(request.audit, request.recipe, str(made / "new"), request.resources)
    )
    thresholds = frozen_in(from_recipe).thresholds
    assert thresholds["score.alpha"] == 0.01
    assert "score.auc_bound" in thresholds


def test_a_changed_recipe_value_is_the_only_departure(made: Path) -> None:
    run = newest(made, "departed")
    assert plan_of(run).departures == [Departure(what="training.epochs", planned=2, found=3)]
    said = said_of_plan(run)
    assert "departs in 1 place from the plan" in said
    assert "training.epochs: 2 planned, 3 run" in said
    assert "1 audit of the same data between then and this run" in said  # the one that follows the plan
    assert memlib.verify(store=str(made / "departed")).outcome == "unchanged"


def test_a_changed_data_file_is_the_only_departure(folder: Path) -> None:
    before = frozen(folder).reads["decode source"]
    path = folder / "points.csv"
    path.write_text(path.read_text().replace(LINES[0], "9.000,9.000,0"))
    plan = plan_of(ran(folder, "other").record)
    (found,) = plan.departures
    assert (found.what, found.planned) == ("data of decode source", before)
    assert len(found.found) == 1
    assert found.found != before
    assert departure_in_words(found) == f"data of decode source: {before[0][:16]} planned, {found.found[0][:16]} run"


def test_moving_the_data_is_not_a_departure(folder: Path) -> None:
    assert plan_of(ran(folder, "other", {"title": "another title"}).record).departures == []


def compared(folder: Path, **changes: Any) -> list[Departure]:
    return departures(frozen(folder, **changes), Store(str(folder / "store")), only_run(folder), {})


def test_changed_code_and_another_version_of_memlib_are_departures(made: Path) -> None:
    code = frozen(made).code
    old = "version 1, " + "0" * 32
    assert compared(made, code=code | {"train": [old]}) == [
        Departure(what="code of train", planned=[old], found=code["train"][:1])
    ]
    assert compared(made, code=code | {"train": [old, *code["train"]]}) == []  # declared to give the same results
    (found,) = compared(made, memlib="0.0.9")
    assert (found.what, found.planned) == ("memlib", "0.0.9")


def test_a_whole_plan_leaves_nothing_to_be_read_beyond_it_and_a_partial_one_does(made: Path) -> None:
    (known,) = frozen(made).reads["decode source"]
    assert compared(made, unknown=["train"], reads={"decode source": [known]}) == []
    assert compared(made, unknown=["train"], reads={"decode source": []}) == []
    assert compared(made, unknown=[], reads={"decode source": []}) == [
        Departure(what="data of decode source", planned=[], found=[known])
    ]
    (found,) = compared(made, unknown=["train"], reads={"decode source": [known, "f" * 64]})
    assert (found.planned, found.found) == (["f" * 64], [])


def test_a_plan_frozen_after_the_run_is_recorded_as_such(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = folder / "late"
    first = ran(folder, "late", plan=None)
    assert first.record.plan is None
    assert said_of_plan(first.record) == ""
    assert main(["plan", str(folder / "points.yaml"), "--freeze", str(folder / "late.json"), "--store", str(store)]) == 0
    assert f"1 audit of the same data existed in the store when the plan was frozen: {first.id}" in capsys.readouterr().out
    again = ran(folder, "late", plan="late.json")
    assert again.id == first.id
    assert plan_of(again.record).frozen > plan_of(again.record).began
    said = said_of_plan(again.record)
    assert "The plan was frozen after the run (results may have been known since" in said
    assert "frozen after the run" in again.report.read_text()
    assert memlib.verify(store=str(store)).plans == {first.id: said}
    assert memlib.verify(store=str(store)).outcome == "unchanged"


def test_results_computed_before_the_plan_count_even_if_their_run_is_gone(folder: Path) -> None:
    store = folder / "late"
    first = ran(folder, "late", plan=None)
    shutil.rmtree(store / "runs" / first.id)
    shutil.rmtree(store / "index")
    assert main(["plan", str(folder / "points.yaml"), "--freeze", str(folder / "late.json"), "--store", str(store)]) == 0
    again = ran(folder, "late", plan="late.json")
    assert len(again.record.history) == 1  # nothing else tells of the first run
    assert "frozen after the run" in said_of_plan(again.record)


def test_a_run_keeps_the_plan_of_its_first_publication(folder: Path) -> None:
    before = plan_of(only_run(folder))
    assert (
        main(["plan", str(folder / "points.yaml"), "--freeze", str(folder / "b.json"), "--store", str(folder / "new")]) == 0
    )
    with pytest.warns(UserWarning, match="keeps that plan, and the given one is not recorded"):
        assert plan_of(ran(folder, "store", plan="b.json").record) == before
    page = folder / "store" / page_path(only_run(folder))
    page.write_bytes(b"spoilt")  # so that the run is published in full, without a plan being given
    assert plan_of(ran(folder, "store", plan=None).record) == before
    assert memlib.verify(store=str(folder / "store")).outcome == "unchanged"


def test_a_run_whose_plan_is_damaged_is_published_again_only_with_that_plan(folder: Path) -> None:
    run = only_run(folder)
    (folder / "store/runs" / run.run / PLAN).write_text("{}")
    with pytest.raises(RunError, match="missing or damaged"):
        ran(folder, "store", plan=None)
    assert plan_of(ran(folder, "store").record).departures == []
    assert memlib.verify(store=str(folder / "store")).outcome == "unchanged"


Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda run: run["plan"].update(departures=[]), "its departures from its plan are not those that it records"),
        (lambda run: run["plan"].update(frozen=1.0), "it names another plan than the one that it was given"),
        (lambda run: run["plan"].update(fixes_data=False), "it names another plan than the one that it was given"),
        (lambda run: run["plan"].update(began=4e9), "its plan is said to be older than the run"),
        (lambda run: run["published"].pop(f"runs/{run['run']}/{PLAN}"), "the plan that it was given, among its published files"),
        (lambda run: run.pop("plan"), "report.html differs from its report"),
    ],
)  # fmt: skip
def test_verify_names_what_a_manifest_says_wrongly_of_its_plan(folder: Path, change: Change, problem: str) -> None:
    run, store = newest(folder, "departed"), Store(str(folder / "departed"))
    content = run.model_dump()
    change(content)
    store.publish(f"runs/{run.run}/manifest.json", json.dumps(sealed(content)).encode())
    found = memlib.verify(run.run, store=store.uri)
    assert any(problem in one.problem for one in found.problems), found.problems


def test_verify_names_a_changed_plan_file_of_a_run(folder: Path) -> None:
    run = only_run(folder)
    path = folder / "store/runs" / run.run / PLAN
    path.write_text(path.read_text().replace('"epochs": 2', '"epochs": 3'))
    problems = [one.problem for one in memlib.verify(run.run, store=str(folder / "store")).problems]
    assert "has been changed since it was published" in problems
    assert any("cannot be read (it has been changed since it was written" in one for one in problems)


def test_verify_with_a_plan_refuses_runs_that_were_given_another_or_none(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["plan", str(folder / "points.yaml"), "--freeze", str(folder / "b.json"), "--store", str(folder / "new")]) == 0
    )
    run = only_run(folder).run
    assert main(["verify", run, "--store", str(folder / "store"), "--plan", str(folder / "b.json")]) == 2
    assert "was given another plan" in capsys.readouterr().out
    other = ran(folder, "none", plan=None).id
    assert main(["verify", other, "--store", str(folder / "none"), "--plan", str(folder / "b.json")]) == 2
    assert "was given no frozen plan" in capsys.readouterr().out


def test_the_command_runs_the_recipe_of_a_plan_and_refuses_an_altered_one(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))  # no server is configured
    monkeypatch.chdir(tmp_path)
    run, path = only_run(folder).run, folder / "plan.json"
    data = only_run(folder).recipe["data"]["source"]["path"]
    where = ["--store", str(folder / "store"), "--set", f"data.source.path={data}"]
    assert main(["run", "--plan", str(path), *where]) == 0
    assert f"run {run}: 0 stages computed" in capsys.readouterr().out
    assert main(["run"]) == 2
    assert "name a recipe" in capsys.readouterr().err
    path.write_text(path.read_text().replace('"epochs": 2', '"epochs": 3'))
    assert main(["run", "--plan", str(path), *where]) == 2
    said = capsys.readouterr().err
    assert "is no intact plan: it has been changed since it was written" in said
    assert len(said.splitlines()) == 1


def followed(run: RunRecord, **changes: Any) -> RunRecord:
    plan = FollowedPlan(digest="d" * 64, frozen=100.0, began=200.0).model_copy(update=changes)
    return run.model_copy(update={"plan": plan})


def test_a_plan_tells_of_audits_before_it_was_frozen_and_until_the_run() -> None:
    earlier = [EarlierAudit(run=f"r{time}", finished=float(time)) for time in (50, 99, 150)]
    run = followed(looked(0.5, number=1).model_copy(update={"ledger": Ledger(data="d", earlier=earlier)}))
    said = said_of_plan(run)
    assert (
        "2 audits of the same data before the plan was frozen and 1 audit of the same data between then and this run" in said
    )
    elsewhere = said_of_plan(followed(run, earlier=["r50", "gone"]))
    assert "3 audits of the same data before the plan was frozen" in elsewhere
    assert "The store lists" not in said_of_plan(followed(looked(0.5, number=1)))


def test_a_page_names_ten_departures_and_counts_the_rest() -> None:
    found = [Departure(what=f"key{n}", planned=None, found=[n, True]) for n in range(12)]
    said = said_of_plan(followed(looked(0.5, number=1), departures=found))
    assert "departs in 12 places" in said
    assert "key9: - planned, 9, true run; and 2 more (memlib show now)" in said
    assert "key10" not in said


def test_the_note_names_a_plan_without_a_digest_of_the_data() -> None:
    assert "holds no digest of the data" in said_of_plan(followed(looked(0.5, number=1), fixes_data=False))
    assert "holds no digest" not in said_of_plan(followed(looked(0.5, number=1)))


def looked(p_value: float | None, *, number: int) -> RunRecord:
    """Return a run that is a certain look at its data."""
    row = tested("exposure", {}, 9.0, n=3, p_value=0.5 if p_value is None else p_value, family=exposure.HEADLINE)
    found = settle([row], alpha=0.05, headlines=exposure.HEADLINES)
    earlier = [
        EarlierAudit(run=f"r{n}", audit="exposure", p_value=0.5, look=f"r{n}", finished=1.0) for n in range(number - 1)
    ]
    return RunRecord(
        run="now", audit="exposure", title="t", finished=1.0, findings=[FindingRecord(**one.row()) for one in found],
        ledger=Ledger(data="d", look="now", earlier=earlier), recipe={"audit": "exposure"}, software={"memlib": "1"},
    )  # fmt: skip


def unlimited(**changes: Any) -> FrozenPlan:
    plan: dict[str, Any] = {
        "audit": "exposure", "title": "t", "frozen": 100.0, "recipe": {"audit": "exposure"}, "asks": "a" * 64, "looks": 1, "memlib": "1",
    }  # fmt: skip
    return frozen_in(PlanFile(format=1, plan=sealed(plan | changes)))


@pytest.mark.parametrize(("number", "planned", "departs"), [(1, 1, False), (2, 1, True), (2, 2, False), (3, 2, True)])
def test_more_looks_than_planned_are_a_departure(number: int, planned: int, departs: bool, tmp_path: Path) -> None:
    found = departures(unlimited(looks=planned), Store(str(tmp_path)), looked(0.5, number=number), {})
    assert found == ([Departure(what="looks at the data", planned=planned, found=number)] if departs else [])


def test_cells_that_ran_before_the_plan_was_frozen_are_a_departure(tmp_path: Path) -> None:
    cells = {
        name: looked(0.5, number=1).model_copy(update={"history": [Publication(started=started)]})
        for name, started in (("early", 99.0), ("late", 101.0))
    }
    (found,) = departures(unlimited(), Store(str(tmp_path)), looked(0.5, number=1), cells)
    assert (found.what, found.found) == ("cells run before the plan was frozen", ["early"])


def test_reads_are_digests_from_outside_and_neither_keys_nor_examples() -> None:
    key, digest = "a" * 32, "b" * 64
    read = reads_of([
        ("decode", {"source": "version 1"}), ("decode", {"source": key}), ("read_members", {"splits": key, "members": digest}),
        ("train", {"shard": key, "examples": digest, "train": digest}), ("report", {"data": [{"shard": key, "train": digest}]}),
    ])  # fmt: skip
    assert list(read) == ["decode source", "read_members members"]
    assert read["read_members members"] == [digest]
    assert key in read["decode source"]
    assert all(len(one) in (32, 64) for one in read["decode source"])


def test_a_file_with_a_plan_is_private_and_never_overwritten(made: Path, tmp_path: Path) -> None:
    file = read_plan(made / "plan.json")
    write_plan(tmp_path / "b.json", file)
    assert (tmp_path / "b.json").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "b.json").read_bytes() == content_of(file)
    with pytest.raises(ValueError, match="never overwritten"):
        write_plan(tmp_path / "b.json", file)
