from pathlib import Path

import pytest

from flows.cli.app import main
from flows.cli.overlap import overlap
from memlib.errors import UserError

SCENES = """
audit: captions
data: {{source: {{kind: captioned_scenes, num_examples: {count}, size: 16, seed: {seed}}}, image_size: 16}}
split: {{train_per_class: 2}}
training: {{epochs: 1}}
"""


def write(folder: Path, name: str, *, count: int, seed: int = 0) -> str:
    (folder / name).write_text(SCENES.format(count=count, seed=seed))
    return str(folder / name)


def test_a_larger_set_of_the_same_pairs_holds_all_of_the_smaller_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small, large = write(tmp_path, "small.yaml", count=12), write(tmp_path, "large.yaml", count=40)
    other, store = write(tmp_path, "other.yaml", count=40, seed=9), str(tmp_path / "store")
    overlap(small, large, output=tmp_path / "copies.csv", store=store)
    assert (
        f"12 of 12 examples of {small} have a copy in {large} (12 identical, 0 alike, 12 with a like caption)"
        in capsys.readouterr().out
    )
    lines = (tmp_path / "copies.csv").read_text().splitlines()
    assert lines[0] == "example_id,other_id,by,distance"
    assert lines[1] == "pair-0000000,pair-0000000,caption,0.0"
    assert len(lines) == 25
    overlap(small, other, shared=0.99, near=0.5, store=store)
    assert f"0 of 12 examples of {small} have a copy in {other}" in capsys.readouterr().out
    with pytest.raises(UserError, match="already exists"):
        overlap(small, large, output=tmp_path / "copies.csv", store=store)


def test_a_recipe_without_images_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = write(tmp_path, "small.yaml", count=12)
    assert main(["overlap", "exposure_smoke", small, "--store", str(tmp_path / "store")]) == 2
    assert "exposure_smoke has no images or points to compare" in capsys.readouterr().err
