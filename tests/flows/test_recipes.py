import itertools
from pathlib import Path

import pytest

from flows.recipes import load_recipe, shipped_recipes, validate
from memlib.audits import AUDITS, audit_of
from memlib.audits.deja_vu.recipe import Recipe
from memlib.errors import UserError
from memlib.specs import Resources

MINIMAL = """
audit: deja_vu
data: {source: {kind: scenes}}
split: {train_per_class: 5}
training: {objective: {kind: vicreg, invariance: 10}, epochs: 5}
"""


@pytest.fixture
def minimal(tmp_path: Path) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(MINIMAL)
    return str(path)


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_shipped_recipe_is_valid(name: str) -> None:
    content, resources = load_recipe(name)
    spec = AUDITS[audit_of(content["audit"])].recipe
    assert validate(spec, content).title
    validate(Resources, resources)


def test_values_are_set_from_the_command_line(minimal: str) -> None:
    content, resources = load_recipe(
        minimal,
        [
            "training.epochs=7",
            "decode.k=[5,3]",
            "training.optimizer.name=lars",
            "resources.gpu=false",
            "split.crop.mode=corner",
        ],
    )
    recipe = validate(Recipe, content)
    assert recipe.training.epochs == 7
    assert recipe.decode.k == (5, 3)
    assert recipe.training.optimizer.name == "lars"
    assert recipe.split.crop.mode == "corner"
    assert validate(Resources, resources).gpu is False


def test_setting_another_kind_drops_the_old_ones_values(minimal: str) -> None:
    content, _ = load_recipe(minimal, ["training.objective={kind: supervised}"])
    assert validate(Recipe, content).training.objective.kind == "supervised"
    content, _ = load_recipe(minimal, ["training.objective={variance: 3}"])
    assert content["training"]["objective"] == {"kind": "vicreg", "invariance": 10, "variance": 3}


def test_a_recipe_extends_another(tmp_path: Path, minimal: str) -> None:
    child = tmp_path / "child.yaml"
    child.write_text(f"extends: {minimal}\ntraining: {{epochs: 9}}\n")
    content, _ = load_recipe(str(child))
    assert content["training"]["epochs"] == 9
    assert content["training"]["objective"]["invariance"] == 10
    child.write_text(f"extends: {child}\n")
    with pytest.raises(UserError, match="in a circle"):
        load_recipe(str(child))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.epoch=5", r"unknown recipe key training\.epoch; did you mean epochs\?"),
        ("trainin.epochs=5", r"unknown recipe key trainin; did you mean training\?"),
        ("data.source.num_exmples=5", r"unknown recipe key data\.source\.num_exmples; did you mean num_examples\?"),
        ("training.objective.lambda=5", r"unknown recipe key training\.objective\.lambda"),
        ("training.epochs=many", r"training\.epochs: input should be a valid integer.*\(seen: 'many'\)"),
        ("training.epochs=-1", r"training\.epochs: input should be greater than or equal to 0 \(seen: -1\)"),
        ("data.source.kind=scences", r"data\.source: .*'scences'"),
        ("model.backbone=resnet19", r"model\.backbone: input should be .*'resnet18'"),
        ("training.augment.crop_scale=[0.5,0.2]", r"training\.augment\.crop_scale: expected two positive numbers"),
        ("training.checkpoint_epochs=[50]", r"training: checkpoint_epochs \[50\] are outside the 5 epochs"),
        ("training.optimizer.learning_rate=.nan", r"learning_rate: input should be (a finite number|greater than 0)"),
        ("split.train_per_class=5.5", r"split\.train_per_class: input should be a valid integer"),
    ],
)
def test_mistakes_are_named_with_their_place(minimal: str, override: str, message: str) -> None:
    content, _ = load_recipe(minimal, [override])
    with pytest.raises(UserError, match=message):
        validate(Recipe, content)


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("smokee", [], "no recipe 'smokee'; did you mean smoke?"),
        ("nothing-like-it.yaml", [], "shipped are"),
        ("smoke", ["training.epochs"], "is not key=value"),
        ("smoke", ["training.epochs={"], "is not valid YAML"),
        ("smoke", ["training.epochs=&a [*a]"], "unfolds to more than 100000 values"),
        ("smoke", ["title.x=1"], "title is a value, not a section"),
        ("sweep_smoke", ["resources=5"], "resources is 5; it is a section"),
    ],
)
def test_recipes_that_cannot_be_read(name: str, overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message.replace("?", r"\?")):
        load_recipe(name, overrides)


def test_aliases_that_unfold_without_end_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    lines = "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in itertools.pairwise("abcdefghijkl"))
    for text in (f"a: &a [x, x]\n{lines}", "audit: deja_vu\nmodel: &m {inner: *m}\n"):
        path.write_text(text)
        with pytest.raises(UserError, match="unfolds to more than 100000 values"):
            load_recipe(str(path))
    path.write_text("audit: deja_vu\nsplit: &s {train_per_class: 3}\nother: *s\n")
    assert load_recipe(str(path))[0]["other"] == {"train_per_class": 3}


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("audit: deja_vu\ndata: {source: {kind: scenes}}\n")
    with pytest.raises(UserError, match="the recipe lacks split; the recipe lacks training"):
        validate(Recipe, load_recipe(str(path))[0])
    path.write_text("- a\n")
    with pytest.raises(UserError, match="does not hold a recipe"):
        load_recipe(str(path))
