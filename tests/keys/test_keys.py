"""Keys are promises: users' stores are read by their keys, so no change of the code may change one unnoticed."""

import hashlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from ghosts import Keys, keys_of

from memlib.audits import AUDITS
from memlib.audits.arrangement import stages_of
from memlib.recipes.files import shipped_recipes

Pinned = dict[str, dict[str, list[object]]]
"""Number and digest of keys, by recipe and stage."""

READ_LATER = {
    "boxes of coco": (
        "deja_vu_tiny_imagenet",
        ["data.source={kind: image_folder, path: a, boxes: coco, annotations: a.json}"],
    ),
    "annotated folder": ("deja_vu_tiny_imagenet", ["data.source={kind: annotated_folder, path: a, boxes: yolo}"]),
    "labels left out": ("deja_vu_tiny_imagenet", ["data.labels={drop: [-1]}"]),
    "json lines": ("exposure_smoke", ["data.source={kind: jsonl, path: a, field: b}"]),
    "chats": ("exposure_smoke", ["data.source={kind: text_parquet, path: a, text_column: b, template: c}"]),
    "mail": ("exposure_smoke", ["data.source={kind: mail, path: a}"]),
    "table": ("fashion_mnist", ["data.source={kind: table, path: a, label_column: b}"]),
}
"""Sources that no shipped recipe has: each a shipped recipe and its settings."""
PINS = Path(__file__).with_name("keys.json")
NOT_FOLLOWED = {
    "ask_documents": "a service is asked, of which no recipe is shipped",
    "check_service": "as ask_documents",
    "decode_block": "data are stand-ins, which are decoded whole",
    "join_answers": "as ask_documents",
    "join_costs": "as ask_documents",
    "join_extraction": "as ask_documents",
    "join_scores": "as ask_documents",
    "read_losses": "canaries are files of coins and losses, of which no recipe is shipped",
    "report_canaries": "as read_losses",
    "score_canaries": "as read_losses",
    "read_columns": "no shipped recipe names a subgroup or hidden columns",
    "score_dossier": "the cells of dossiers are followed, each by itself",
    "score_setting": "a part of score",
    "secret/ask_answers": "as ask_documents",
    "secret/ask_canaries": "as ask_documents",
    "secret/ask_candidates": "as ask_documents",
    "score_sweep": "the cells of sweeps are followed, each by itself",
    "train_own": "no shipped recipe has the architecture of an external model",
    "train_subset": "a part of train_subsets",
}
"""Stages whose keys are not pinned, and why."""


def pins_of(keys: Keys) -> dict[str, list[object]]:
    """Return, by stage, the number of keys and a digest of all of them."""
    return {
        stage: [len(values), hashlib.sha256(" ".join(values).encode()).hexdigest()[:16]] for stage, values in keys.items()
    }


def cover(pinned: Pinned) -> list[str]:
    """Choose recipes that together contain every stage: again and again the one with most new stages per key."""
    missing, chosen = set().union(*pinned.values()), []
    while missing:
        chosen.append(
            max(sorted(pinned), key=lambda recipe: len(missing & set(pinned[recipe])) / number_of_keys(pinned[recipe]))
        )
        missing -= set(pinned[chosen[-1]])
    return chosen


def number_of_keys(stages: dict[str, list[object]]) -> int:
    return sum(int(str(number)) for number, _ in stages.values())


def cases() -> Iterator[object]:
    """Yield every shipped recipe; all but those of the cover are slow."""
    pinned = json.loads(PINS.read_text())
    shipped = shipped_recipes()
    quick = cover({recipe: stages for recipe, stages in pinned.items() if recipe in shipped})
    for recipe in shipped:
        yield recipe if recipe in quick or recipe not in pinned else pytest.param(recipe, marks=pytest.mark.slow)


def test_a_cover_contains_each_stage_and_prefers_few_keys() -> None:
    pinned: Pinned = {
        "large": {"a": [9, ""], "b": [9, ""], "c": [9, ""]},
        "both": {"a": [1, ""], "b": [1, ""]},
        "one": {"b": [1, ""]},
        "last": {"c": [2, ""], "b": [1, ""]},
    }
    assert cover(pinned) == ["both", "last"]


def test_the_cover_contains_every_stage_of_every_audit() -> None:
    """Changed keys of any stage are noticed before the slow tests follow all recipes."""
    pinned = json.loads(PINS.read_text())
    covered = set().union(*(pinned[case] for case in cases() if isinstance(case, str)))
    declared = {stage.declared.name for audit in AUDITS.values() for stage in stages_of(audit)}
    assert covered == (declared - set(NOT_FOLLOWED)) | {"run"}
    assert set(NOT_FOLLOWED) <= declared


@pytest.mark.parametrize("case", READ_LATER)
def test_no_key_of_a_source_without_a_shipped_recipe_has_changed(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, settings = READ_LATER[case]
    assert pins_of(keys_of(recipe, tmp_path, monkeypatch, settings)) == json.loads(PINS.read_text())[case]


@pytest.mark.parametrize("recipe", cases())
def test_no_key_of_a_shipped_recipe_has_changed(recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = json.loads(PINS.read_text())
    assert recipe in pinned, "python tests/keys/test_keys.py RECIPE pins the keys of a new one"
    assert pins_of(keys_of(recipe, tmp_path, monkeypatch)) == pinned[recipe]


def test_a_changed_setting_changes_keys_from_the_affected_stage_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    after.mkdir()
    first = pins_of(keys_of("fashion_mnist", before, monkeypatch))
    changed = pins_of(keys_of("fashion_mnist", after, monkeypatch, ["training.epochs=99"]))
    same = {"decode", "hold_out", "canaries"}
    assert {stage for stage in first if first[stage] == changed[stage]} == same


def write(recipes: list[str]) -> None:
    """Pin the keys of new recipes, or of those that are meant to change, which the CHANGELOG then mentions."""
    pinned = json.loads(PINS.read_text()) if PINS.exists() else {}
    for name in recipes:
        recipe, settings = READ_LATER.get(name, (name, []))
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            pinned[name] = pins_of(keys_of(recipe, Path(folder), patch, settings))
    lines = [f" {json.dumps(recipe)}: {json.dumps(stages)}" for recipe, stages in sorted(pinned.items())]
    PINS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    import sys

    write(sys.argv[1:] or [*shipped_recipes(), *READ_LATER])
