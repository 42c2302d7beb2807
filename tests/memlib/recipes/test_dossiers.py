"""The audits that apply to data, worked out from the source, the persons and the model, and the reasons against all others."""

from dataclasses import replace
from typing import Any

import pytest

from memlib.audits import AUDITS
from memlib.audits.attacks import IMAGES, Attack, DataFacts
from memlib.audits.cells import CellSpec, CellsSpec
from memlib.errors import UserError
from memlib.recipes.cells import cells_of
from memlib.recipes.dossiers import dossier_recipe
from memlib.recipes.files import load_recipe
from memlib.recipes.request import AuditRequest
from memlib.specs import TextSource

ALL = {name for name, audit in AUDITS.items() if not audit.has_cells}
OF_IMAGES = {"deja-vu", "unique-feature", "self-influence", "membership", "forgetting"}
OF_ROWS = {"unique-feature", "self-influence", "membership"}
OF_TEXTS = {"membership", "exposure"}
FOLDER = {"kind": "image_folder", "path": "photos"}
TABLE = {"kind": "table", "path": "a.csv", "label_column": "outcome"}
SOURCES: list[tuple[dict[str, Any] | str, set[str]]] = [
    ("scenes", OF_IMAGES),
    ("digits", OF_IMAGES),
    (FOLDER, OF_IMAGES),
    ({**FOLDER, "boxes": "voc"}, OF_IMAGES),
    ({"kind": "annotated_folder", "path": "photos", "boxes": "coco"}, OF_IMAGES),
    ({"kind": "torchvision", "name": "MNIST", "root": "data"}, OF_IMAGES),
    ({"kind": "parquet", "path": "a.parquet", "boxes_column": "boxes"}, OF_IMAGES),
    ({"kind": "npz", "path": "a.npz"}, OF_IMAGES),
    ({"kind": "csv", "path": "a.csv", "root": ".", "label_column": "a", "classes": {"a": ["1"]}}, OF_IMAGES),
    ({"kind": "import", "function": "a.b:c"}, OF_IMAGES),
    ({"kind": "joined", "parts": {"a": {"source": FOLDER}, "b": {"source": FOLDER}}}, OF_IMAGES),
    ("captioned_scenes", {"captions"}),
    ("two_moons", OF_ROWS),
    ("breast_cancer", OF_ROWS),
    (TABLE, OF_ROWS),
    ({**TABLE, "person_column": "patient"}, OF_ROWS),
    ("topics", OF_TEXTS),
    ({"kind": "text", "path": "a.txt"}, OF_TEXTS),
    ({"kind": "text_parquet", "path": "a.parquet"}, OF_TEXTS),
    ({"kind": "jsonl", "path": "a.jsonl"}, OF_TEXTS),
    ({"kind": "mail", "path": "a.mbox"}, OF_TEXTS),
    ("topic_pairs", {"exposure"}),
    ({"kind": "pairs", "path": "a.tsv"}, {"exposure"}),
]


def names_of(recipe: dict[str, Any]) -> set[str]:
    """Return the names of the cells of a recipe."""
    return {cell["name"] for cell in recipe["cells"]}


def recipes_of(recipe: Any) -> dict[str, Any]:
    """Return the recipes of the cells, as the audits read them."""
    spec = AuditRequest.read(recipe).recipe
    assert isinstance(spec, CellsSpec)
    return {name: request.recipe for name, request in cells_of(spec).items()}


@pytest.mark.parametrize(("source", "expected"), SOURCES, ids=[str(source)[:40] for source, _ in SOURCES])
def test_audits_that_apply_to_a_source_become_cells_and_all_others_have_a_reason(
    source: dict[str, Any] | str, expected: set[str]
) -> None:
    recipe = dossier_recipe(source)
    assert names_of(recipe) == expected
    assert set(recipe["not_run"]) == ALL - expected
    assert all(recipe["not_run"].values())
    for cell in recipes_of(recipe).values():
        assert cell.data.source.kind == (source if isinstance(source, str) else source["kind"])


def test_every_kind_of_source_is_among_these() -> None:
    from memlib.specs.base import Source

    tried = {source if isinstance(source, str) else source["kind"] for source, _ in SOURCES}
    with pytest.raises(UserError, match="no audit applies: .*it needs scores"):
        dossier_recipe({"kind": "ids", "path": "scores.csv"})
    assert tried | {"ids"} == {kind.model_fields["kind"].annotation.__args__[0] for kind in Source.__subclasses__()}  # type: ignore[union-attr]


def test_the_crop_of_a_deja_vu_audit_follows_from_the_boxes() -> None:
    crops = {
        boxes: recipes_of(dossier_recipe({**FOLDER, "boxes": boxes}))["deja-vu"].split.crop.mode for boxes in ("none", "voc")
    }
    assert crops == {"none": "corner", "voc": "maximal"}


def test_the_examples_of_a_person_stay_together_in_every_audit() -> None:
    groups = recipes_of(dossier_recipe(FOLDER, persons="^(p[0-9]+)_"))
    held = {name: recipe.group if name == "forgetting" else recipe.split.group for name, recipe in groups.items()}
    assert {name: group.pattern for name, group in held.items()} == dict.fromkeys(OF_IMAGES, "^(p[0-9]+)_")
    rows = recipes_of(dossier_recipe({**TABLE, "person_column": "patient"}))
    assert {recipe.split.group.pattern for recipe in rows.values()} == {"^(.+)/"}
    assert recipes_of(dossier_recipe(TABLE))["membership"].split.group is None


def test_a_given_model_leaves_the_audits_that_need_no_more_than_it_and_its_members() -> None:
    model = {"model": "nets:build", "weights": "model.pt"}
    recipe = dossier_recipe(FOLDER, model=model, members="members.csv")
    assert names_of(recipe) == {"membership"}
    target = recipes_of(recipe)["membership"].target
    assert (target.trained.weights, target.members, target.drawn) == ("model.pt", "members.csv", "unknown")
    assert "checkpoints" in recipe["not_run"]["self-influence"]
    with pytest.raises(UserError, match="no audit applies: .*membership: for a given model it needs the list"):
        dossier_recipe(FOLDER, model=model)
    with pytest.raises(UserError, match="no audit applies: .*exposure: for a given model it needs a list of the secrets"):
        dossier_recipe({"kind": "text", "path": "a.txt"}, model=model)


def test_the_whole_of_a_users_text_is_used_unless_she_says_otherwise() -> None:
    text: dict[str, Any] = {"kind": "text", "path": "a.txt"}
    assert {recipe.data.fraction for recipe in recipes_of(dossier_recipe(text)).values()} == {1.0}
    some = recipes_of(dossier_recipe({"source": text, "fraction": 0.5}))
    assert {recipe.data.fraction for recipe in some.values()} == {0.5}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("photos", r"no source of kind 'photos'; memlib sources lists them"),
        ({"path": "photos"}, "no source of kind None"),
        ({"kind": "table", "path": "a.csv"}, "the data lacks source.label_column"),
        ({"kind": "text", "path": "https://me:secret@host/a.txt"}, "contains credentials"),
    ],
)
def test_data_that_cannot_be_read_are_refused(data: Any, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        dossier_recipe(data)
    assert "secret@" not in str(caught.value)


def test_a_new_audit_takes_part_by_its_declaration_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    attack = Attack("colours", IMAGES, "", "outputs", frozenset())
    new = replace(AUDITS["forgetting"], attacks=(attack,), cell=lambda facts: CellSpec(name="new", recipe="membership_smoke"))
    silent = replace(AUDITS["forgetting"], attacks=(), cell=AUDITS["sweep"].cell)
    monkeypatch.setattr("memlib.recipes.dossiers.AUDITS", {"sweep": new, "exposure": silent})  # names that recipes may have
    recipe = dossier_recipe("digits")
    assert names_of(recipe) == {"new"}
    assert recipe["not_run"] == {"exposure": "it has no recipe for any data; name one of your own in the dossier's cells"}
    with pytest.raises(UserError, match="sweep: for images; the data are points; exposure: it has no recipe for any data"):
        dossier_recipe("two_moons")


@pytest.mark.parametrize("name", ["all", "all_table", "all_text"])
def test_a_shipped_dossier_has_all_audits_that_apply_to_its_data(name: str) -> None:
    content = load_recipe(name)[0]
    spec = AuditRequest.read(name).recipe
    assert isinstance(spec, CellsSpec)
    asked = {request.audit for request in cells_of(spec).values()}
    assert asked == names_of(dossier_recipe(content["every"]["data"]))


def test_facts_of_a_source_name_its_kind() -> None:
    from pydantic import TypeAdapter

    source = TypeAdapter[Any](TextSource).validate_python({"kind": "topics"})
    assert (DataFacts(source).kind, DataFacts(source).split) == ("texts", {})
    assert DataFacts(source, persons="^a").split == {"group": {"pattern": "^a"}}
