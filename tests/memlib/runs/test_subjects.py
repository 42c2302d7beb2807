"""Data and models are named by what their recipes say, whatever else a stored recipe may hold."""

from typing import Any

import pytest

from memlib.recipes.files import load_recipe
from memlib.runs.index import data_name, model_name


@pytest.mark.parametrize(
    ("recipe", "data", "model"),
    [
        ("smoke", "scenes", "small_resnet"),
        ("membership_mnist", "torchvision MNIST", "mlp"),
        ("membership_adult", "table adult.data.xz", "boosting"),
        ("exposure_fine_tuning", "topics", "my-model"),
        ("own_model", "image_folder images", "model.safetensors"),
        ("membership_own_model", "image_folder images", "model.safetensors"),
        ("membership_outputs", "table records.csv", "outputs.csv"),
        ("deja_vu_own_model", "image_folder images", "model.safetensors"),
        ("sweep_smoke", "", ""),
    ],
)
def test_shipped_recipes_name_their_data_and_model(recipe: str, data: str, model: str) -> None:
    content, _ = load_recipe(recipe)
    assert (data_name(content), model_name(content)) == (data, model)


def test_a_recipe_with_several_external_models_names_the_first_three() -> None:
    targets = {name: {"trained": {"weights": f"/home/me/{name}.pt"}} for name in "abcd"}
    assert model_name({"targets": targets}) == "a.pt, b.pt, c.pt, ..."


@pytest.mark.parametrize("value", [None, [], "text", 3, {"kind": []}, {"source": {"path": {"a": 1}}}, [[], None]])
def test_damaged_recipes_have_no_names(value: Any) -> None:
    keys = ("data", "model", "trained", "target", "targets", "encoders", "checkpoints")
    recipe = dict.fromkeys(keys, value)
    assert data_name(recipe) == ""
    assert model_name(recipe) == ""


def test_names_hold_no_control_characters() -> None:
    assert data_name({"data": {"source": {"kind": "csv", "path": "a/\u202eb\x1b.csv"}}}) == "csv \ufffdb\ufffd.csv"
