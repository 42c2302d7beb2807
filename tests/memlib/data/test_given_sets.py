"""One comparison of declared sets for all audits: without a model, by names, dates, sizes, content and texts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from memlib.audits.membership.controls import said_of_draw
from memlib.audits.membership.recipe import Recipe
from memlib.data.given_sets import CompareSets, Difference, features_of
from memlib.data.splits import REFERENCE, TARGET, select
from memlib.data.stages import Split, TrainingData, decode
from memlib.recipes.files import load_recipe
from memlib.recipes.request import AuditRequest
from memlib.running.opening import is_named, opened
from memlib.running.runners import PlainRunner
from memlib.specs import CropSpec, DataSpec, GroupSpec, SplitSpec
from memlib.store import Store

COUNT = 80
Names = Callable[[int, bool], str]


def compared(folder: Path, first: NDArray[np.bool_], names: Names, brighter: float = 0.0, **split: Any) -> Difference:
    """Compare sets of images whose names, and brightness, may depend on the set."""
    return found_in(*data_of(folder, first, names, brighter, **split))


def data_of(
    folder: Path, first: NDArray[np.bool_], names: Names, brighter: float = 0.0, **split: Any
) -> tuple[PlainRunner, DataSpec, TrainingData]:
    rng, lines = np.random.default_rng(0), ["example_id,set"]
    for place in range(COUNT + 8):
        label, is_first = "ab"[place % 2], place < COUNT and bool(first[place])
        path = folder / "photos" / label / names(place, is_first)
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 200, (16, 16, 3)) + brighter * is_first
        Image.fromarray(pixels.astype(np.uint8)).save(path)
        which = "X" if place >= COUNT else "A" if is_first else "B"
        lines.append(f"{path.relative_to(folder / 'photos').as_posix()},{which}")
    (folder / "sets.csv").write_text("\n".join([*lines, ""]))
    runner = PlainRunner(Store(str(folder / "store")))
    spec = DataSpec(source={"kind": "image_folder", "path": str(folder / "photos")}, image_size=16)
    sets = SplitSpec(sets=str(folder / "sets.csv"), drawn_at_random=True, crop=CropSpec(mode="corner"), **split)
    shard = decode(runner, spec)
    return runner, spec, TrainingData(shard, runner.run(Split(sets, shard)))


def found_in(runner: PlainRunner, spec: DataSpec, data: TrainingData) -> Difference:
    return runner.run(CompareSets(spec.source, data, (TARGET, REFERENCE), seed=0)).content


def coins(seed: int = 0) -> NDArray[np.bool_]:
    sides = np.zeros(COUNT, dtype=bool)
    rng = np.random.default_rng(seed)
    for label in (0, 1):
        sides[rng.permutation(np.arange(label, COUNT, 2))[: COUNT // 4]] = True
    return sides


def plain(place: int, first: bool) -> str:
    return f"{(place * 37) % 101:03d}.png"


def dated(place: int, first: bool) -> str:
    return f"{2019 if first else 2021}-{1 + place % 12:02d}-{1 + place % 28:02d} {place}.png"


@pytest.mark.parametrize(
    ("names", "brighter", "most"),
    [(plain, 0.0, None), (plain, 30.0, "pixels"), (dated, 0.0, "dates"), (lambda place, first: f"{'q' * first}{place}.png", 0.0, "ids")],
    ids=["nothing", "brightness", "dates", "names"],
)  # fmt: skip
def test_sets_are_told_apart_by_what_differs(names: Names, brighter: float, most: str | None, tmp_path: Path) -> None:
    found = compared(tmp_path, coins(), names, brighter)
    assert found.contradicts == (most is not None)
    if most is not None:
        assert found.p_value == 0.001
        assert found.auc > 0.9
        assert f"most by {most}" in found.told or most == "dates"  # years are numbers of the name as well
    else:
        assert found.p_value > 0.05
    assert found.n == COUNT


def test_persons_are_compared_as_wholes(tmp_path: Path) -> None:
    """Forty images of four persons each: what one bright person tells in rows, four against four persons cannot."""
    persons = np.arange(COUNT) // 10
    first = persons % 2 == 0

    def names(place: int, is_first: bool) -> str:
        return f"person{persons[min(place, COUNT - 1)] if place < COUNT else 9}-{place}.png"

    found = compared(tmp_path, first, names, brighter=30.0, group=GroupSpec(pattern="person([0-9]+)"))
    assert found.n == 8
    assert found.auc == 1.0
    assert found.p_value > 0.005  # 4 of 8 persons can be drawn in 70 ways


def test_membership_and_deja_vu_judge_a_declaration_alike(tmp_path: Path) -> None:
    for number, (names, word) in enumerate([(plain, "nothing that is known"), (dated, "members differ")]):
        folder = tmp_path / str(number)
        runner, spec, data = data_of(folder, coins(), names)
        found = found_in(runner, spec, data)
        recipe = Recipe.model_validate(
            {
                "data": spec.model_dump(), "target": {"outputs": {"path": "o.csv"}, "members": "m.csv", "drawn": "fixed"},
                "shadows": {"count": 0}, "score": {"attacks": ["loss", "gap"], "headline": "loss"},
            }
        )  # fmt: skip
        rows = select(data.table, TARGET, REFERENCE)
        members = np.array([role == TARGET for role in rows["role"].to_pylist()], dtype=np.int8)
        features = features_of(rows["example_id"].to_pylist(), data, spec.source)
        said = list(said_of_draw(recipe, rows, members, features))
        assert len(said) == 1
        assert word in said[0]
        assert found.contradicts == (word == "members differ")
        plan = list(opened(request(folder)))
        assert plan[0].startswith("CAUTION: the sets are declared to be drawn at random, but" if found.contradicts else word)


def request(folder: Path) -> AuditRequest:
    """A déjà vu audit of the folder's sets, which were declared to be drawn at random."""
    settings = [
        f"data.source={{kind: image_folder, path: {folder / 'photos'}}}", "data.image_size=16", "split.train_per_class=null",
        "split.public_per_class=null", f"split.sets={folder / 'sets.csv'}", "split.drawn_at_random=true",
        "split.crop={mode: corner}", "decode.k=[3]",
    ]  # fmt: skip
    found = AuditRequest.read(load_recipe("smoke", settings)[0])
    assert is_named(found)
    return found
