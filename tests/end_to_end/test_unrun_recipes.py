"""Recipes that need data or machines we do not have, each trained for two steps on stand-ins of the right shape.

The architecture, the size of the images and the form of the source are the recipe's; numbers of images, classes and models are
not.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import memlib

BATCH = 8
TRAINED_ON = 2 * BATCH  # images: two steps


def images(shape: tuple[int, ...], seed: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(256, size=shape, dtype=np.uint8)


def write_npz(path: Path, *, side: int, classes: int, per_class: int, channels: int = 3) -> dict[str, str]:
    labels = np.arange(classes * per_class) % classes
    shape = (len(labels), side, side, *([channels] if channels == 3 else []))
    np.savez(path, train_images=images(shape), train_labels=labels)
    return {"kind": "npz", "path": str(path)}


def write_folder(root: Path, *, side: int, classes: int, per_class: int, seed: int = 0) -> None:
    for number, pixels in enumerate(images((classes * per_class, side, side, 3), seed)):
        folder = root / f"class_{number % classes}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{number}.png")


def write_boxes(root: Path, images: Path, side: int) -> None:
    """Write an XML file of ImageNet's form for each image, with a box in its upper left quarter."""
    for image in images.rglob("*.png"):
        path = root / image.parent.name / f"{image.stem}.xml"
        path.parent.mkdir(parents=True, exist_ok=True)
        box = "".join(
            f"<{name}>{value}</{name}>"
            for name, value in zip(("xmin", "ymin", "xmax", "ymax"), (1, 1, side // 2, side // 2), strict=True)
        )
        path.write_text(
            f"<annotation><size><width>{side}</width><height>{side}</height></size>"
            f"<object><name>thing</name><bndbox>{box}</bndbox></object></annotation>"
        )  # fmt: skip


FEW_NETS = {"nets.seeds": 1, "nets.controls": 1, "training.epochs": 1, "training.batch_size": BATCH}


def cifar10(folder: Path) -> dict[str, Any]:
    """ResNet-18 at a rate of 1e-5, probed with SVHN."""
    here = write_npz(folder / "cifar10.npz", side=32, classes=2, per_class=TRAINED_ON // 2 + 4)
    svhn = write_npz(folder / "svhn.npz", side=32, classes=2, per_class=8)
    split = {"split.train_per_class": TRAINED_ON // 2, "split.validation_per_class": 4}
    return FEW_NETS | split | {"data.source": here, "probe.data.source": svhn, "score.removed_pixels": [1]}


def celeba(folder: Path) -> dict[str, Any]:
    return cifar10(folder) | {"canary.count": 1, "score.removed_pixels": []}


def densenet(folder: Path) -> dict[str, Any]:
    changes = cifar10(folder)
    del changes["score.removed_pixels"]
    mnist = write_npz(folder / "mnist.npz", side=28, classes=2, per_class=8, channels=1)
    return changes | {"probe.data.source": mnist, "canary.count": 2, "influence.checkpoints": 1, "influence.epochs": 1}


def chexpert(folder: Path) -> dict[str, Any]:
    write_folder(folder / "train", side=320, classes=2, per_class=TRAINED_ON // 2 + 6)
    rows = [
        f"train/{image.parent.name}/{image.name},Frontal,{'1.0' if image.parent.name == 'class_1' else '0.0'}"
        for image in sorted((folder / "train").rglob("*.png"))
    ]
    (folder / "train.csv").write_text("Path,Frontal/Lateral,Consolidation\n" + "\n".join(rows) + "\n")
    split = {"split.train_per_class": TRAINED_ON // 2, "split.validation_per_class": 3, "split.held_out_per_class": 3}
    return FEW_NETS | split | {"data.source.path": str(folder / "train.csv"), "data.source.root": str(folder)}


def imagenet(folder: Path) -> dict[str, Any]:
    write_folder(folder / "train", side=256, classes=2, per_class=28)
    write_boxes(folder / "boxes", folder / "train", 256)
    return {
        "data.source.path": str(folder / "train"), "data.source.annotations": str(folder / "boxes"),
        "split.train_per_class": TRAINED_ON // 2, "split.public_per_class": 12, "training.batch_size": BATCH,
        "training.epochs": 1, "training.checkpoint_epochs": [], "training.optimizer.warmup_epochs": 0, "decode.k": [3],
        "decode.epochs": [], "training.precision": "float32",
    }  # fmt: skip


def acdc(folder: Path) -> dict[str, Any]:
    for seed, scanner in enumerate(("3T", "1.5T")):
        write_folder(folder / scanner, side=150, classes=5, per_class=12, seed=seed)
    parts = {
        f"data.source.parts.{part}.source.path": str(folder / scanner) for part, scanner in (("t3", "3T"), ("t15", "1.5T"))
    }
    few = {f"sets.{name}.per_class": 3 for name in ("query", "known", "withheld")}
    return parts | few | {"training.epochs": 1, "training.batch_size": BATCH, "seeds": 2, "verdict.models": 3}


STAND_INS = {
    "cifar10": cifar10,
    "celeba": celeba,
    "self_influence_canaries_densenet_2022": densenet,
    "chexpert": chexpert,
    "deja_vu_imagenet": imagenet,
    "forgetting_table_2": acdc,
}


@pytest.mark.slow
@pytest.mark.parametrize("recipe", STAND_INS)
def test_a_recipe_whose_data_are_not_at_hand_runs_on_stand_ins(recipe: str, tmp_path: Path) -> None:
    run = memlib.run(recipe, store=str(tmp_path / "store"), changes=STAND_INS[recipe](tmp_path), quiet=True)
    assert run.report.exists()
