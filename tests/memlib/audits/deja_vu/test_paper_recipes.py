"""Recipes of the paper's experiments: their settings, and two steps of training of their models."""

from pathlib import Path

import numpy as np
import pytest

from flows.deja_vu import _training
from memlib.audits import AUDITS
from memlib.audits.arrangement import resolved
from memlib.audits.deja_vu.recipe import Recipe
from memlib.data.stages import Split, decode
from memlib.models.encoder import build_encoder
from memlib.recipes.cells import cells_of
from memlib.recipes.files import load_recipe, validate
from memlib.running.runners import PlainRunner
from memlib.specs import SimCLRSpec
from memlib.store import Store

TWO_STEPS = [
    "data.source.num_examples=300", "split.train_per_class=4", "split.public_per_class=5", "training.epochs=1",
    "training.batch_size=20", "training.checkpoint_epochs=[0]", "decode.epochs=[]", "training.precision=float32",
    "training.optimizer.warmup_epochs=0",
]  # fmt: skip


def recipe_of(name: str, *settings: str) -> Recipe:
    recipe: Recipe = validate(Recipe, load_recipe(name, settings)[0])
    return recipe


def cells_of_sweep(name: str) -> dict[str, Recipe]:
    sweep = AUDITS["sweep"]
    cells = cells_of(validate(sweep.recipe, resolved(sweep, load_recipe(name)[0])))
    return {cell: request.recipe for cell, request in cells.items()}  # type: ignore[misc]


def test_simclr_has_the_projector_temperature_and_rate_of_the_paper() -> None:
    recipe = recipe_of("scenes_simclr")
    assert recipe.training is not None
    objective, optimizer = recipe.training.objective, recipe.training.optimizer
    assert isinstance(objective, SimCLRSpec)
    assert (recipe.model.projector, objective.temperature) == ((2048, 256), 0.15)
    assert (optimizer.name, optimizer.weight_decay) == ("lars", 1e-6)
    assert optimizer.learning_rate == pytest.approx(0.3 * recipe.training.batch_size / 256, rel=2e-3)
    assert recipe.layers == ("projector_2", "projector_1", "backbone")


def test_probing_through_training_follows_the_checkpoints_of_the_paper() -> None:
    recipe = recipe_of("scenes_epochs")
    assert sorted(recipe.probed_epochs) == [50, 100, 250, 500, 750, 1000]
    assert recipe.pairs == 3


def test_layers_and_numbers_of_neighbours_are_decoded_from_one_training() -> None:
    recipe = recipe_of("scenes_decoding")
    assert recipe.layers == recipe.model_layers[::-1]
    assert len(recipe.decode.k) > 3


@pytest.mark.parametrize("sweep", ["sweep_capacity", "sweep_capacity_depth", "sweep_capacity_vit"])
def test_capacity_sweeps_differ_only_in_rising_size_and_have_five_cells_or_more(sweep: str) -> None:
    cells = list(cells_of_sweep(sweep).values())
    sizes = [
        sum(p.numel() for p in build_encoder(cell.model, num_classes=None, seed=0).backbone.parameters()) for cell in cells
    ]
    assert len(cells) >= 5
    assert sizes == sorted(set(sizes))
    assert len({cell.model_copy(update={"model": cells[0].model}).model_dump_json() for cell in cells}) == 1


@pytest.mark.parametrize(
    ("recipe", "model"),
    [
        ("scenes_simclr", {}),
        ("scenes_vicreg", {"backbone": "small_vit", "patch_size": 8, "width": 4}),
        ("scenes_vicreg", {"width": 4, "blocks": 2}),
    ],
)
def test_two_training_steps_change_backbone_and_projector(recipe: str, model: dict[str, object], tmp_path: Path) -> None:
    spec = recipe_of(recipe, *TWO_STEPS, *(f"model.{name}={value}" for name, value in model.items()))
    runner = PlainRunner(Store(str(tmp_path)))
    shard = decode(runner, spec.data)
    trained = runner.run(_training(spec, shard, runner.run(Split(spec.split, shard)), {})[0, "A"])
    before, after = (trained.content.load(epoch=epoch)[0].state_dict() for epoch in (0, 1))
    assert before.keys() == after.keys()
    changed = {name.split(".")[0] for name in before if not np.array_equal(before[name].numpy(), after[name].numpy())}
    assert changed == {"backbone", "projector"}
    assert all(np.isfinite(values.numpy()).all() for values in after.values())
