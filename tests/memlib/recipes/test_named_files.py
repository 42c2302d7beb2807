"""Files that a recipe names beside its data are checked by validate, plan and run, before anything is started."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision

from flows.cli.app import main
from memlib.audits import AUDITS
from memlib.errors import UserError
from memlib.recipes.files import load_recipe, validate
from memlib.recipes.named_files import check_files, require_files


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def recipe(name: str, *settings: str) -> Any:
    content, _ = load_recipe(name, settings)
    return validate(AUDITS[content["audit"].replace("_", "-")].schema(content), content)


def own(weights: str, architecture: str = "resnet18") -> Any:
    return recipe(
        "deja_vu_own_model",
        f"encoders=[{{a: {{kind: torchvision, architecture: {architecture}, weights: {weights}, side: 32}}}}]",
    )


def test_sets_and_weights_that_cannot_be_used_are_refused_at_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sorted(check_files(own("a.pt"))) == ["sets: sets.csv does not exist yet", "weights: a.pt does not exist yet"]
    with pytest.raises(UserError, match=r"^sets: sets.csv does not exist$"):
        require_files(own("a.pt"))
    Path("sets.csv").write_text("example_id,set\n1,train\n2,test\n")
    with pytest.raises(UserError, match=r"split.sets puts examples in 'test'; sets are A .the model trained on it."):
        check_files(own("a.pt"))
    Path("sets.csv").write_text("example_id,set\n1,A\n2,B\n3,X\n")
    torch.save({"model": {"x": 1}}, "bad.pt")
    with pytest.raises(UserError, match="bad.pt does not hold a state dict"):
        check_files(own("bad.pt"))
    state = torchvision.models.resnet18(num_classes=3).state_dict()
    torch.save({"state_dict": {f"module.{name}": value for name, value in state.items()}}, "a.pt")
    assert check_files(own("a.pt")) == []
    with pytest.raises(UserError, match="no state dict in a.pt has the model's weights"):
        check_files(own("a.pt", "resnet34"))
    for command in (["validate"], ["plan"], ["run", "--store", "store"]):
        Path("mine.yaml").write_text("extends: deja_vu_own_model\nencoders: [{a: {kind: torchvision, architecture: resnet18, "
                                     "weights: bad.pt, side: 32}}]\n")  # fmt: skip
        assert main([command[0], "mine.yaml", *command[1:]]) == 2
        assert "bad.pt does not hold a state dict" in capsys.readouterr().err


def test_folders_and_factories_are_checked_without_running_code(folder: Path) -> None:
    assert check_files(recipe("exposure_own_model")) == ["path: model does not exist yet"]
    (folder / "model").mkdir()
    with pytest.raises(UserError, match="model"):
        check_files(recipe("exposure_own_model"))
    torch.save({"x": 1}, "model.pt")
    with pytest.raises(UserError, match="does not hold a state dict"):
        check_files(recipe("own_model", "trained.weights=model.pt"))
    assert check_files(recipe("smoke")) == []
