"""A request is read in one way, whether a form, a program or a notebook makes it."""

from pathlib import Path

import pytest
import yaml

from flows.asked import read
from flows.recipes import load_recipe
from memlib.errors import UserError
from memlib.specs import Resources


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"extends": "smoke", "resources": {"resume_seconds": 5, "workers_per_model": 3}}))
    return str(path)


def test_changes_are_values_and_not_texts(recipe: str) -> None:
    changes = {"training.epochs": 7, "training.optimizer.learning_rate": 1e-5, "title": "yes: no", "decode": {"k": [3]}}
    asked = read(recipe, changes)
    assert asked.audit.name == "deja-vu"
    found = asked.recipe.model_dump()
    assert found["training"]["epochs"] == 7
    assert found["training"]["optimizer"]["learning_rate"] == 1e-5
    assert found["title"] == "yes: no"
    assert found["decode"]["k"] == (3,)


def test_machines_of_the_form_go_before_those_of_the_recipe(recipe: str) -> None:
    machines = read(recipe, {}, Resources(workers_per_model=8)).resources
    assert (machines.resume_seconds, machines.workers_per_model) == (5, 8)
    machines = read(recipe, {"resources.resume_seconds": 7}, Resources()).resources
    assert (machines.resume_seconds, machines.workers_per_model) == (7, 3)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"training.epoch": 7}, "did you mean epochs"),
        ({"training.epochs": -1}, "training.epochs"),
        ({"audit": "nothing"}, "does not name its audit"),
        ({"resources.gpus": 1}, "did you mean gpu"),
    ],
)
def test_a_mistake_is_named(changes: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        read("smoke", changes)


def test_a_recipe_is_a_name_a_file_a_mapping_or_a_spec(recipe: str) -> None:
    by_name = read("smoke").recipe
    assert read(Path(recipe)).recipe == by_name
    assert read(load_recipe("smoke")[0]).recipe == by_name
    assert read(by_name).recipe == by_name
    assert read(by_name, {"training.epochs": 3}).recipe.model_dump()["training"]["epochs"] == 3
    assert read({**load_recipe("smoke")[0], "resources": {"workers_per_model": 2}}).resources.workers_per_model == 2
    assert read(recipe, resources={"workers_per_model": 4}).resources.workers_per_model == 4


def test_a_mapping_extends_nothing() -> None:
    with pytest.raises(UserError, match="pass that recipe.s name, and `changes`"):
        read({"extends": "smoke"})
