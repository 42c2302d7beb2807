"""External models return class scores in many forms; anything else is refused with advice."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from memlib.errors import UserError
from memlib.models.external import classifiers
from memlib.models.external.classifiers import ClassScores, load_external
from memlib.models.external.factory import external_digest
from memlib.observe.models import check_varied, load_any, model_key
from memlib.observe.outputs import is_constant
from memlib.specs import ExternalClassifierSpec
from memlib.store import Attempt

SCORES = torch.tensor([[1.0, 2.0, 3.0], [3.0, 1.0, 0.0]])


class Answers(nn.Module):
    """A model with fixed outputs, whatever its inputs are."""

    def __init__(self, outputs: Any) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self, inputs: Tensor) -> Any:
        return self.outputs(inputs) if callable(self.outputs) else self.outputs


def shown(returned: Any, num_classes: int = 3, **spec: Any) -> Tensor:
    trained = ExternalClassifierSpec(model="mine:build", weights="w.safetensors", **spec)
    scores: Tensor = ClassScores(Answers(returned), trained, num_classes)(torch.zeros(2, 1, 4, 4))
    return scores


@pytest.fixture
def factory(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ExternalClassifierSpec]:
    """A module `mine` with a function `build`, and a recipe's section that names it."""

    def made(build: Callable[..., Any], **spec: Any) -> ExternalClassifierSpec:
        module = ModuleType("mine")
        module.build = build  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "mine", module)
        monkeypatch.setenv("MEMLIB_CODE", f"mine,{__name__}")
        return ExternalClassifierSpec.model_validate({"model": "mine:build", **spec})

    return made


@pytest.mark.parametrize("outputs", [SCORES, {"logits": SCORES, "aux": 1}, SimpleNamespace(logits=SCORES)])
def test_class_scores_are_taken_from_a_tensor_or_the_logits_of_a_container(outputs: Any) -> None:
    assert torch.equal(shown(outputs), SCORES)


@pytest.mark.parametrize(
    ("outputs", "said"),
    [
        ({"out": SCORES, "aux": SCORES}, "returns a dict with out, aux, which is not a tensor of class scores"),
        ((SCORES, SCORES), "returns a tuple, which is not a tensor"),
        (None, "returns a NoneType"),
        (SCORES[None], "a tensor of 1 x 2 x 3 float32 for 2 examples; class scores are a tensor of 2 x 3 floats"),
        (SCORES[:1], "a tensor of 1 x 3 float32 for 2 examples"),
        (SCORES.argmax(dim=1), "a tensor of 2 int64"),
        (SCORES.long(), "a tensor of 2 x 3 int64"),
        (SCORES[:, :2], "returns 2 scores per example, but the data have 3 classes; leave out the classes"),
        (
            torch.cat([SCORES, SCORES], dim=1),
            "returns 6 scores per example, but the data have 3 classes; list in trained.classes",
        ),
        (lambda inputs: nn.Linear(7, 3)(inputs), r"cannot take examples of shape \(1, 4, 4\) \(RuntimeError: mat1"),
        (lambda inputs: sys.exit(3), r"cannot take examples of shape \(1, 4, 4\) \(SystemExit: 3"),
    ],
)
def test_outputs_that_are_not_class_scores_are_refused(outputs: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        shown(outputs)


def test_probabilities_become_logarithms_and_other_scores_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    probabilities = SCORES.softmax(dim=1)
    assert torch.allclose(shown(probabilities, outputs="probabilities"), probabilities.log())
    with pytest.raises(UserError, match="percentages; divide them by 100"):
        shown(probabilities * 100, outputs="probabilities")
    with pytest.raises(UserError, match="set it to logits"):
        shown(SCORES - 2, outputs="probabilities")
    with pytest.raises(UserError, match="set it to logits"):
        shown(SCORES, outputs="probabilities")
    assert torch.equal(shown(probabilities), probabilities)  # the logits of two examples may sum to 1 by chance
    monkeypatch.setattr(classifiers, "SURE", len(probabilities))
    with pytest.raises(UserError, match="returns probabilities, which sum to 1; set trained.outputs to probabilities"):
        shown(probabilities)


def test_an_external_model_may_have_more_classes_than_the_data() -> None:
    assert torch.equal(shown(SCORES, num_classes=2, classes=[2, 0]), SCORES[:, [2, 0, 1]])
    loss = nn.functional.cross_entropy
    found = loss(shown(SCORES, num_classes=2, classes=[2, 0]), torch.tensor([0, 1]))
    assert torch.allclose(found, loss(SCORES, torch.tensor([2, 0])))  # a softmax over all that the model knows
    with pytest.raises(UserError, match="names 2 outputs up to 3; the data have 2 classes, and mine:build has 3 outputs"):
        shown(SCORES, num_classes=2, classes=[3, 0])
    with pytest.raises(UserError, match="names 2 outputs up to 1; the data have 3 classes"):
        shown(SCORES, num_classes=3, classes=[1, 0])
    with pytest.raises(ValueError, match="lists an output twice"):
        ExternalClassifierSpec(model="a:b", classes=(1, 1))


def test_classes_enter_the_key_of_an_external_model_only_if_given(
    factory: Callable[..., ExternalClassifierSpec], tmp_path: Path
) -> None:
    save_file({}, tmp_path / "w.safetensors")
    spec = factory(lambda: nn.Identity(), version="1")
    assert '"classes"' not in external_digest(spec)
    assert external_digest(spec) != external_digest(spec.model_copy(update={"classes": (0, 1)}))


def test_a_factory_may_load_the_weights_itself(factory: Callable[..., ExternalClassifierSpec]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    spec = factory(lambda: model, version="2026-11")
    assert spec.is_whole
    assert not factory(lambda: model).is_whole
    forward, take = load_any(spec, 0, 3, torch.device("cpu"))
    examples = np.full((2, 4, 4, 1), 255, dtype=np.uint8)
    assert torch.equal(forward(take(examples, torch.device("cpu")))[0], model(torch.ones(2, 16)))
    assert model_key(spec) != model_key(spec.model_copy(update={"version": "2026-12"}))


def test_a_factory_that_ends_the_process_is_named(factory: Callable[..., ExternalClassifierSpec]) -> None:
    spec = factory(lambda: sys.exit("no GPU here"))
    with pytest.raises(UserError, match="mine:build failed with {}: SystemExit: no GPU here"):
        load_external(spec, "w.safetensors")


def test_a_pickled_model_is_refused_without_advice_to_run_it(
    factory: Callable[..., ExternalClassifierSpec], tmp_path: Path
) -> None:
    torch.save(Answers(SCORES), tmp_path / "model.pt")
    with pytest.raises(UserError) as raised:
        load_external(factory(lambda: nn.Identity()), str(tmp_path / "model.pt"))
    said = str(raised.value)
    assert "holds pickled objects besides tensors, which memlib does not execute" in said
    assert "state dict" in said
    assert not {"weights_only", "add_safe_globals", "arbitrary code"} & set(said.replace("`", " ").split())


def test_constant_scores_are_refused_of_external_and_warned_about_for_trained_models() -> None:
    scores = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32)
    assert not is_constant(scores)
    assert not is_constant(scores[:, :1])
    scores[1] = 0.1 + np.float32(1e-8)
    assert is_constant(scores)
    attempt = object.__new__(Attempt)
    warned: list[str] = []
    object.__setattr__(attempt, "warn", warned.append)
    with pytest.raises(UserError, match="returns the same scores for all 5 examples"):
        check_varied(ExternalClassifierSpec(model="mine:build"), scores, attempt)
    check_varied("train abc", scores, attempt)  # type: ignore[arg-type]
    assert warned == ["train abc gives all 5 examples the same scores: it has learnt nothing about them"]
