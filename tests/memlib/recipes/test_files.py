import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import pytest
from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, create_model

from memlib.audits import AUDITS, audit_of
from memlib.audits.deja_vu.recipe import Recipe
from memlib.audits.policy import Policy
from memlib.errors import UserError
from memlib.recipes.files import FORMS, load_recipe, models_in, overridden, printed_recipe, shipped_recipes, validate
from memlib.recipes.request import AuditRequest
from memlib.specs import Resources
from memlib.specs.base import _numbers_of

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


def test_every_shipped_recipe_is_valid_as_it_stands_and_the_same_once_printed(tmp_path: Path) -> None:
    path = tmp_path / "printed.yaml"
    assert len(shipped_recipes()) > 80
    for name in shipped_recipes():
        content, resources = load_recipe(name)
        try:
            spec = validate(AUDITS[audit_of(content["audit"])].schema(content), content)
            validate(Resources, resources)
        except UserError as error:
            pytest.fail(f"{name}: {error}")
        assert spec.title, name
        if content["audit"] == "unique_feature" and content.get("variants"):
            assert len(spec.cells) >= len(content["variants"]), f"{name}: every variant is a recipe"
        path.write_text(printed_recipe(name))
        assert load_recipe(str(path)) == (content, resources), name


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


def test_setting_another_kind_drops_the_values_of_the_old_kind(minimal: str) -> None:
    content, _ = load_recipe(minimal, ["training.objective={kind: supervised}"])
    assert validate(Recipe, content).training.objective.kind == "supervised"
    content, _ = load_recipe(minimal, ["training.objective={variance: 3}"])
    assert content["training"]["objective"] == {"kind": "vicreg", "invariance": 10, "variance": 3}


def test_recipes_of_embedded_data_cannot_be_extended_to_other_data(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    own = "extends: smoke\ndata: {source: {kind: image_folder, path: images}}\n"
    mine.write_text(own)
    with pytest.raises(
        UserError, match="replaces the data of smoke, whose split section applies only to its embedded examples; set split"
    ):
        load_recipe(str(mine))
    assert load_recipe(str(mine), ["split.train_per_class=7"])[0]["split"] == {"train_per_class": 7}
    mine.write_text(own + "split: {train_per_class: 5}\n")
    content, _ = load_recipe(str(mine))
    assert content["split"] == {"train_per_class": 5}  # nothing of the 160 public images of each digit
    assert content["training"]["epochs"] == 90
    assert "public_per_class" not in printed_recipe(str(mine))
    mine.write_text("extends: smoke\ndata: {source: {kind: scenes, num_examples: 5000}}\n")
    assert load_recipe(str(mine))[0]["split"]["public_per_class"] == 160
    mine.write_text("extends: forgetting_smoke\ndata: {source: {kind: image_folder, path: images}}\n")
    with pytest.raises(UserError, match="whose sets section applies only to its embedded examples"):
        load_recipe(str(mine))
    mine.write_text("extends: deja_vu_tiny_imagenet\ndata: {source: {kind: npz, path: a.npz}}\n")
    assert load_recipe(str(mine))[0]["split"]["train_per_class"] > 0  # of real data: the reader knows what they extend


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
    ("override", "expected"),
    [
        ("variants.noise 0.1=!remove", {"variants": {"none": {"std": 1}}}),
        ("variants.noise 0.1.std=3", {"variants": {"none": {"std": 1}, "noise 0.1": {"std": 3}}}),
    ],
)
def test_overrides_reach_names_that_contain_dots(override: str, expected: dict[str, Any]) -> None:
    assert overridden({"variants": {"none": {"std": 1}, "noise 0.1": {"std": 2}}}, [override]) == expected


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
        ("training.augment.crop_scale=[0.5,0.2]", r"training\.augment\.crop_scale: expected the smaller number first"),
        ("training.checkpoint_epochs=[50]", r"training: checkpoint_epochs \[50\] are outside the 5 epochs"),
        ("training.optimizer.learning_rate=.nan", r"learning_rate: input should be (a finite number|greater than 0)"),
        ("split.train_per_class=5.5", r"split\.train_per_class: input should be a valid integer"),
    ],
)
def test_errors_in_a_recipe_name_their_place(minimal: str, override: str, message: str) -> None:
    content, _ = load_recipe(minimal, [override])
    with pytest.raises(UserError, match=message):
        validate(Recipe, content)


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("smokee", [], "no recipe 'smokee'; did you mean smoke?"),
        ("nothing-like-it.yaml", [], "memlib recipes lists"),
        ("smoke", ["training.epochs"], "does not have the form key=value"),
        ("smoke", ["training.epochs={"], "is not valid YAML"),
        ("smoke", ["training.epochs=&a [*a]"], "expands to more than 100000 values"),
        ("smoke", ["title.x=1"], "title is a value, not a section"),
        ("sweep_smoke", ["resources=5"], "resources is 5, but must be a section"),
    ],
)
def test_load_recipe_refuses_unknown_names_and_malformed_overrides(name: str, overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message.replace("?", r"\?")):
        load_recipe(name, overrides)


def test_yaml_aliases_that_expand_without_end_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    lines = "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in itertools.pairwise("abcdefghijkl"))
    for text in (f"a: &a [x, x]\n{lines}", "audit: deja_vu\nmodel: &m {inner: *m}\n"):
        path.write_text(text)
        with pytest.raises(UserError, match="expands to more than 100000 values"):
            load_recipe(str(path))
    path.write_text("audit: deja_vu\nsplit: &s {train_per_class: 3}\nother: *s\n")
    assert load_recipe(str(path))[0]["other"] == {"train_per_class": 3}


def test_a_missing_section_of_a_recipe_is_named(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("audit: deja_vu\ndata: {source: {kind: scenes}}\n")
    with pytest.raises(UserError, match="the recipe lacks split"):
        validate(Recipe, load_recipe(str(path))[0])
    path.write_text("- a\n")
    with pytest.raises(UserError, match="does not hold a recipe"):
        load_recipe(str(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("audit: deja_vu\naudit: exposure\n", "has the key audit twice in line 3"),
        ("training: {epochs: true}", "training: epochs must be a number, not True (in "),
        ("training: {epochs: 12:30}", "training.epochs: input should be a valid integer"),  # no 750 seconds
        ("training: {epochs: 1000000000000}", "less than or equal to"),
        ("training: {augment: {flip: 1.5}}", "less than or equal to 1 (seen: 1.5)"),
        ("decode: {p: -0.1}", "greater than 0"),
        ("decode: {k: [0]}", "greater than or equal to 1"),
        ("report: !remove", "cannot remove report, because there is no such key"),
        ("decode: {k: [30, !remove ]}", "not items of a list"),
        ("decode: {p: !remove}", "put a space after !remove"),
        ("decode: !replace 3", "!replace must precede a mapping"),
        ("decode: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
    ],
)
def test_recipes_with_invalid_keys_values_or_tags_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"extends: smoke\n{text}\n")
    with pytest.raises(UserError, match=re.escape(message)):
        read("deja-vu", str(path))


def read(audit: str, recipe: str, *settings: str) -> Any:
    return AuditRequest.of_command(audit, recipe, settings).recipe


def test_errors_in_a_recipe_name_the_file_or_option_that_set_the_value(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("extends: smoke\ntraining: {epochs: -1}\n")
    (tmp_path / "mine.yaml").write_text("extends: base.yaml\ntraining: {batch_size: 1}\n")
    with pytest.raises(UserError) as caught:
        read("deja-vu", str(tmp_path / "mine.yaml"))
    base, mine = (str(tmp_path / name) for name in ("base.yaml", "mine.yaml"))
    assert f"training.epochs: input should be greater than or equal to 0 (seen: -1) (in {base}, which {mine} extends)" in str(
        caught.value
    )
    assert f"(seen: 1) (in {mine})" in str(caught.value)
    with pytest.raises(UserError, match=r"\(in --set training.epochs\)"):
        read("deja-vu", "smoke", "training.epochs=-1")


def test_inherited_settings_can_be_removed_replaced_or_set_to_null(tmp_path: Path) -> None:
    smoke = read("deja-vu", "smoke")
    path = tmp_path / "mine.yaml"
    path.write_text(
        "extends: smoke\naudit: deja-vu  # as on the command line\ntitle: Größe\n"
        "training:\n  augment: null\n  batch_size: !remove\n  optimizer: !replace {learning_rate: 0.01}  # nothing else\n"
    )
    spec = read("deja-vu", str(path))
    assert spec.audit == "deja_vu"
    assert (spec.training.epochs, spec.training.augment) == (smoke.training.epochs, None)
    assert (smoke.training.batch_size, spec.training.batch_size) == (50, 256)
    assert (smoke.training.optimizer.warmup_epochs, spec.training.optimizer.warmup_epochs) == (5, 10)
    assert read("deja-vu", "smoke", "training.batch_size=!remove").training.batch_size == 256
    printed = printed_recipe(str(path))
    assert "# nothing else" in printed
    assert "# Backgrounds are drawn independently" in printed  # of the recipe that it extends
    assert "Größe" in printed
    assert "!" not in printed.replace("!=", "")
    again = tmp_path / "again.yaml"
    again.write_text(printed)
    assert read("deja-vu", str(again)) == spec


def test_every_number_of_every_recipe_has_bounds() -> None:
    found = dict(numbers(model) for audit in AUDITS.values() for model in specs_of(audit.recipe))
    found |= dict(numbers(model) for model in specs_of(Resources))
    assert sum(map(len, found.values())) > 150
    assert [f"{model}.{name}" for model, fields in found.items() for name, bounded in fields.items() if not bounded] == []


def specs_of(model: type[BaseModel], seen: set[type[BaseModel]] | None = None) -> set[type[BaseModel]]:
    seen = set() if seen is None else seen
    if model not in seen:
        seen.add(model)
        for field in model.model_fields.values():
            for inner in models_in(field.annotation, mappings=True):
                specs_of(inner, seen)
    return seen


def numbers(model: type[BaseModel]) -> tuple[str, dict[str, bool]]:
    """Of every field with numbers whether both ends are bounded."""
    found = {}
    for name, field in model.model_fields.items():
        if name in _numbers_of(model):  # type: ignore[arg-type]
            said = [*field.metadata, *constraints(field.annotation)]
            low = any(isinstance(one, Ge | Gt) for one in said)
            found[name] = low and any(isinstance(one, Le | Lt) for one in said)
    return f"{model.__module__}.{model.__name__}", found


def constraints(annotation: Any) -> list[Any]:
    inner = [part for part in get_args(annotation) if get_args(part)]
    own = list(get_args(annotation)[1:]) if get_origin(annotation) is Annotated else []
    own += [more for one in own for more in getattr(one, "metadata", ())]
    return own + [one for part in inner for one in constraints(part)]


@pytest.mark.parametrize(
    "url",
    [
        "https://user:pw@host/x.txt",
        "s3://KEY:SECRET@bucket/x",
        "https://host/x?X-Amz-Signature=abc",
        "https://h/x?a=1&sig=abc",
    ],
)
def test_credentials_in_a_recipe_are_refused_and_not_repeated(url: str) -> None:
    content, _ = load_recipe("exposure_smoke")
    content["data"] = {**content["data"], "source": {"kind": "text", "path": url}}
    with pytest.raises(UserError, match=r"data.source.path contains credentials") as caught:
        validate(AUDITS["exposure"].recipe, content)
    assert not any(word in str(caught.value) for word in ("pw", "SECRET", "abc"))
    validate(
        AUDITS["exposure"].recipe,
        {**content, "data": {**content["data"], "source": {"kind": "text", "path": "https://h/x?a=1"}}},
    )


def _patterns(annotation: Any) -> Iterator[str]:
    """Yield the patterns of texts in an annotation: of values, of keys and within unions."""
    found = (getattr(part, "pattern", None) for part in getattr(annotation, "__metadata__", ()))
    metadata = (part for one in getattr(annotation, "__metadata__", ()) for part in getattr(one, "metadata", ()))
    yield from filter(None, (*found, *(getattr(part, "pattern", None) for part in metadata)))
    for inner in get_args(annotation):
        yield from _patterns(inner)


def test_texts_of_the_wrong_form_are_answered_in_words_with_an_example() -> None:
    """For every field with a pattern of every recipe and policy; each example is of the form."""
    waiting: list[type[BaseModel]] = [Policy, Resources, *(audit.recipe for audit in AUDITS.values())]
    seen, patterns = set(), set()
    while waiting:
        model = waiting.pop()
        if model in seen:
            continue
        seen.add(model)
        for name, field in model.model_fields.items():
            waiting += models_in(field.annotation, mappings=True)
            annotation: Any = Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
            if not (found := set(_patterns(annotation))):
                continue
            patterns |= found
            fields: Any = {name: (annotation, ...)}
            holder: type[BaseModel] = create_model("Holder", **fields)
            with pytest.raises(UserError) as said:
                validate(holder, {name: {"? ?": None} if get_origin(field.annotation) is Mapping else "? ?"})
            message = str(said.value).partition(";")[0]
            assert re.search(rf"^{name}: must be .*, as in .* \(seen: '\? \?'\)", message), message
            assert not any(sign in message for sign in ("\\w", "[", "]", "^", "$", "{", "should match")), message
    assert patterns == {*FORMS}
    for pattern, (_, example) in FORMS.items():
        assert re.search(pattern, example)
