"""A request is read in one way, whether a form, a program or a notebook makes it."""

from pathlib import Path

import pytest
import yaml

import flows
import memlib
from flows.cli.app import main
from memlib.errors import UserError
from memlib.recipes import RecipeError
from memlib.recipes.files import load_recipe
from memlib.recipes.request import AuditRequest, command_for, find_recipe
from memlib.specs import Resources


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"extends": "smoke", "resources": {"resume_seconds": 5, "workers_per_model": 3}}))
    return str(path)


def test_changes_in_python_are_values_and_not_parsed_texts(recipe: str) -> None:
    changes = {"training.epochs": 7, "training.optimizer.learning_rate": 1e-5, "title": "yes: no", "decode": {"k": [3]}}
    asked = AuditRequest.read(recipe, changes)
    assert asked.audit.name == "deja-vu"
    found = asked.recipe.model_dump()
    assert found["training"]["epochs"] == 7
    assert found["training"]["optimizer"]["learning_rate"] == 1e-5
    assert found["title"] == "yes: no"
    assert found["decode"]["k"] == (3,)


def test_resources_of_a_request_override_those_of_the_recipe(recipe: str) -> None:
    machines = AuditRequest.read(recipe, {}, Resources(workers_per_model=8)).resources
    assert (machines.resume_seconds, machines.workers_per_model) == (5, 8)
    machines = AuditRequest.read(recipe, {"resources.resume_seconds": 7}, Resources()).resources
    assert (machines.resume_seconds, machines.workers_per_model) == (7, 3)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"training.epoch": 7}, "did you mean epochs"),
        ({"training.epochs": -1}, "training.epochs"),
        ({"audit": "nothing"}, "there is no audit 'nothing' .in --set audit.; set audit to one of deja-vu"),
        ({"resources.gpus": 1}, "did you mean gpu"),
    ],
)
def test_audit_request_refuses_invalid_changes_with_a_hint(changes: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        AuditRequest.read("smoke", changes)


def test_a_recipe_may_be_a_name_or_file_or_mapping_or_spec(recipe: str) -> None:
    by_name = AuditRequest.read("smoke").recipe
    assert AuditRequest.read(Path(recipe)).recipe == by_name
    assert AuditRequest.read(load_recipe("smoke")[0]).recipe == by_name
    assert AuditRequest.read(by_name).recipe == by_name
    assert AuditRequest.read(by_name, {"training.epochs": 3}).recipe.model_dump()["training"]["epochs"] == 3
    assert (
        AuditRequest.read({**load_recipe("smoke")[0], "resources": {"workers_per_model": 2}}).resources.workers_per_model == 2
    )
    assert AuditRequest.read(recipe, resources={"workers_per_model": 4}).resources.workers_per_model == 4


def test_a_recipe_given_as_a_mapping_cannot_extend_another() -> None:
    with pytest.raises(UserError, match="pass that recipe.s name, and `changes`"):
        AuditRequest.read({"extends": "smoke"})


@pytest.mark.parametrize(
    ("what", "recipe", "expected"),
    [
        ("deja-vu", "smoke", ("deja-vu", "smoke")),
        ("deja_vu", "smoke", ("deja-vu", "smoke")),
        ("smoke", None, ("", "smoke")),
        ("photos.yaml", None, ("", "photos.yaml")),
        ("./photos", None, ("", "./photos")),
        ("self-influence", "self_influence", ("self-influence", "self_influence")),
    ],
)
def test_a_word_is_an_audit_or_a_shipped_recipe_and_a_path_has_a_suffix_or_a_slash(
    what: str, recipe: str | None, expected: tuple[str, str]
) -> None:
    assert find_recipe(what, recipe) == expected
    assert find_recipe(what.replace("-", "_") if recipe else what, recipe) == expected


@pytest.mark.parametrize(
    ("what", "recipe", "message"),
    [
        ("deja-vu", None, "deja-vu is an audit and needs a recipe: deja-vu --recipe NAME_OR_FILE"),
        ("self_influence", None, "self_influence is an audit and needs a recipe: self-influence --recipe self_influence"),
        ("dejavu", "smoke", "there is no audit 'dejavu'; choose from deja-vu, .*, or leave out --recipe"),
        ("photos", None, "there is no audit and no shipped recipe 'photos'; see memlib recipes, or give a YAML file"),
    ],
)
def test_find_recipe_refuses_unknown_audits_and_recipes_with_a_hint(what: str, recipe: str | None, message: str) -> None:
    with pytest.raises(UserError, match=message):
        find_recipe(what, recipe)


def test_the_command_line_accepts_a_recipe_without_an_audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("photos.yaml").write_text("extends: smoke\ntraining: {epochs: 7}\n")
    asked = AuditRequest.of_command("photos.yaml", None, ["pairs=2"])
    assert asked.audit.name == "deja-vu"
    assert (asked.recipe.training.epochs, asked.recipe.pairs) == (7, 2)  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="recipe photos.yaml is for the deja-vu audit, not exposure"):
        AuditRequest.of_command("exposure", "photos.yaml", [])
    Path("none.yaml").write_text("title: a\n")
    with pytest.raises(UserError, match="none.yaml names no audit; set audit to one of deja-vu"):
        AuditRequest.of_command("none.yaml", None, [])
    Path("photos").write_text("extends: smoke\n")
    with pytest.raises(UserError, match=r"to use the file, write \./photos"):
        find_recipe("photos", None)
    assert command_for("deja-vu", "smoke") == "smoke"
    assert command_for("self-influence", "self_influence") == "self-influence --recipe self_influence"


@pytest.mark.parametrize(
    "content", ["audit: nope\n", "extends: smoke\ntraining: {epochs: many}\n", "resources: {gpus: 1}\nextends: smoke\n"]
)
def test_commands_functions_and_flows_report_the_same_recipe_error(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(content)
    said = set()
    for arguments in (
        ["run", str(path)],
        ["plan", str(path)],
        ["validate", str(path)],
        ["ids", "--recipe", str(path), "--output", str(tmp_path / "out")],
    ):
        assert main(arguments) == 2
        said.add(capsys.readouterr().err.replace("\n", ""))
    for call in (memlib.run, memlib.plan, flows.run):
        with pytest.raises(RecipeError) as caught:
            call(str(path), store=str(tmp_path / "store"))
        said.add(f"memlib: {caught.value}")
        assert caught.value.origin == str(path)
    from flows.deployed import audit  # loads Prefect

    state = audit.fn(recipe=str(path), store=str(tmp_path))
    said.add(f"memlib: {state.message}")
    assert len(said) == 1, said
    assert f"(in {path})" in said.pop()
