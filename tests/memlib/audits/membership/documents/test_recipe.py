"""Recipes of documents: which data make one, and what they cannot ask for."""

from typing import Any

import pytest
from pydantic import ValidationError

from memlib.audits import AUDITS
from memlib.audits.membership.documents.recipe import DocumentsRecipe
from memlib.audits.membership.recipe import Recipe
from memlib.recipes import RecipeError
from memlib.recipes.request import AuditRequest
from memlib.specs import changed

AUDIT = AUDITS["membership"]
TRAINING = {"objective": {"kind": "language"}, "epochs": 1, "augment": None}
WHOLE: dict[str, Any] = {"data": {"source": {"kind": "topics"}}, "training": TRAINING}
PRETRAINED = {"data": {"source": {"kind": "topics"}, "unit": "token"}, "model": {"kind": "huggingface", "path": "base"}}


@pytest.mark.parametrize("kind", ["topics", "text", "text_parquet", "jsonl", "mail"])
def test_a_source_of_text_is_read_as_a_recipe_of_documents(kind: str) -> None:
    source = {"kind": kind} if kind == "topics" else {"kind": kind, "path": "somewhere"}
    assert AUDIT.schema({**WHOLE, "data": {"source": source}}) is DocumentsRecipe


def test_a_source_of_images_is_not_read_as_a_recipe_of_documents() -> None:
    assert AUDIT.schema({"data": {"source": {"kind": "digits"}}, "model": {"kind": "forest"}}) is Recipe


def test_a_recipe_is_read_back_from_its_own_content_and_changed() -> None:
    recipe = DocumentsRecipe.model_validate(WHOLE)
    assert DocumentsRecipe.model_validate(recipe.model_dump(mode="json")) == recipe
    assert changed(recipe, {"score.headline": "loss"}).score.headline == "loss"


@pytest.mark.parametrize(("key", "meant"), [("shortes", "shortest"), ("data.windo", "window"), ("score.lowst", "lowest")])
def test_unknown_keys_are_answered_with_the_nearest_key_of_documents(key: str, meant: str) -> None:
    with pytest.raises(RecipeError, match=f"did you mean {meant}"):
        AuditRequest.read("membership_documents", {key: 3})


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"training": None}, "lacks training"),
        ({"shadows": {"count": 0}}, "the attack ratio needs"),
        ({"shadows": {"count": 2}, "score": {"attacks": ["lira"], "headline": "lira"}}, "lira needs 4 shadow models"),
        ({"score": {"attacks": ["loss"]}}, "headline ratio is not in"),
        ({"split": {"held_out_per_class": 3}}, "split may only have"),
        ({"data": {"source": {"kind": "topics"}, "unit": "token"}}, "go together"),
        ({"training": {**TRAINING, "patience": 1}}, "every document may be a member"),
        ({"target": {"trained": {"kind": "huggingface", "path": "x"}}}, "give both or neither"),
        ({"data": {"source": {"kind": "topic_pairs"}}}, "not of pairs"),
    ],
)
def test_recipes_of_documents_with_contradictory_settings_are_refused(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        DocumentsRecipe.model_validate({**WHOLE, **change})


def test_an_external_model_needs_no_training_without_shadow_models() -> None:
    target = {"trained": {"kind": "huggingface", "path": "tuned"}, "members": "members.csv", "drawn": "coins"}
    recipe = DocumentsRecipe.model_validate({**PRETRAINED, "target": target, "shadows": {"count": 0}})
    assert not recipe.trains
    assert recipe.coins == 0.5
