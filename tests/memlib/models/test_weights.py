"""Weights in the forms in which trainers save them are those of the model; what they are not is said with a remedy."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from memlib.errors import UserError
from memlib.models.weights import weights_for
from memlib.specs.external import InFile

State = dict[str, Tensor]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))


STATE: State = net().state_dict()


def named(prefix: str) -> State:
    return {f"{prefix}{name}": value for name, value in STATE.items()}


FORMS: dict[str, Callable[[], Any]] = {
    "plain": lambda: STATE,
    "DataParallel": lambda: named("module."),
    "compiled": lambda: named("_orig_mod."),
    "both": lambda: named("module._orig_mod."),
    "AveragedModel": lambda: {"n_averaged": torch.tensor(3)} | named("module."),
    "Lightning": lambda: {
        "epoch": 3,
        "state_dict": named("model."),
        "hyper_parameters": {"lr": 0.1},
        "optimizer_states": [{}],
    },
    "wrapped": lambda: {"state_dict": STATE, "best_acc": 0.5},
    "wrapped twice": lambda: {"model": {"state_dict": STATE}, "epoch": 1},
    "lightly": lambda: named("backbone.") | {"projection_head.layers.0.weight": torch.zeros(2, 2)},
    "training script": lambda: {
        "model_state_dict": STATE,
        "optimizer_state_dict": {"state": {0: {"step": torch.tensor(1.0)}}},
    },
}


def saved(folder: Path, content: Any) -> str:
    torch.save(content, folder / "w.pt")
    return str(folder / "w.pt")


@pytest.mark.parametrize("form", FORMS)
def test_weights_are_read_from_every_known_form_with_a_warning_if_unusual(
    form: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="memlib"):
        found = weights_for(saved(tmp_path, FORMS[form]()), STATE.keys(), InFile())
    assert found.keys() == STATE.keys()
    assert all(torch.equal(found[name], STATE[name]) for name in STATE)
    assert bool(caplog.records) == (form != "plain")


AMBIGUOUS: dict[str, tuple[Callable[[], Any], InFile]] = {
    "DINO": (lambda: {"student": named("module."), "teacher": named("module.")}, InFile(state="teacher")),
    "MoCo": (
        lambda: {"state_dict": named("module.encoder_q.") | named("module.encoder_k.")},
        InFile(prefix="module.encoder_q."),
    ),
    "EMA": (lambda: {"state_dict": STATE, "state_dict_ema": STATE}, InFile(state="state_dict_ema")),
}


@pytest.mark.parametrize("form", AMBIGUOUS)
def test_the_recipe_must_choose_among_several_models_in_a_file(form: str, tmp_path: Path) -> None:
    content, where = AMBIGUOUS[form]
    path = saved(tmp_path, content())
    with pytest.raises(UserError, match="holds several state dicts of this model .*; choose one with state and prefix"):
        weights_for(path, STATE.keys(), InFile())
    assert weights_for(path, STATE.keys(), where).keys() == STATE.keys()


def test_weights_of_another_model_are_refused_with_the_names_that_were_found(tmp_path: Path) -> None:
    path = saved(tmp_path, {"state_dict": {"features.0.weight": torch.zeros(2)}, "epoch": 1})
    with pytest.raises(UserError, match=r"has the model's weights, 0.bias, .*; it has state_dict: features.0.weight \(1\)"):
        weights_for(path, STATE.keys(), InFile())
    with pytest.raises(UserError, match="it has none"):
        weights_for(path, STATE.keys(), InFile(state="ema"))
    more = saved(tmp_path, STATE | {"5.weight": torch.zeros(2)})
    with pytest.raises(UserError, match="no state dict in"):  # a trained layer would be left out
        weights_for(more, STATE.keys(), InFile())


def test_files_without_readable_weights_are_refused_with_a_remedy(tmp_path: Path) -> None:
    torch.jit.script(net()).save(str(tmp_path / "s.pt"))  # type: ignore[no-untyped-call]
    with pytest.raises(UserError, match=r"is a TorchScript archive, that is, code, .*torch.jit.load\(path\).state_dict"):
        weights_for(str(tmp_path / "s.pt"), STATE.keys(), InFile())
    (tmp_path / "p.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345")
    with pytest.raises(UserError, match="is a Git LFS pointer, not the file itself; fetch it with git lfs pull"):
        weights_for(str(tmp_path / "p.safetensors"), STATE.keys(), InFile())
    save_file(STATE, tmp_path / "w.safetensors")
    assert weights_for(str(tmp_path / "w.safetensors"), STATE.keys(), InFile()).keys() == STATE.keys()
    torch.save(net(), tmp_path / "whole.pt")
    with pytest.raises(UserError, match="holds pickled objects besides tensors"):
        weights_for(str(tmp_path / "whole.pt"), STATE.keys(), InFile())


def test_absent_state_and_prefix_are_left_out_of_the_spec() -> None:
    assert InFile().model_dump() == {}
    assert InFile(prefix="module.").model_dump() == {"prefix": "module."}
