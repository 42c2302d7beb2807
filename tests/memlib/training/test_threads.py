"""The number of threads of a training run: it follows from the size of a step, and what was granted is restored."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from memlib.models.classifiers import build_classifier
from memlib.models.encoder import build_encoder
from memlib.models.sequence import build_language_model
from memlib.specs import ClassifierSpec, LanguageSpec, ModelSpec
from memlib.training.threads import FEW_MULTIPLICATIONS, multiplications_of, threads_for

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def granted() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("size", "device", "threads"), [(0.9, "cpu", 1), (1.1, "cpu", 2), (0.9, "cuda", 2)])
def test_a_small_step_takes_one_thread_and_restores_the_granted_ones(size: float, device: str, threads: int) -> None:
    with pytest.raises(RuntimeError, match="within"), threads_for(size * FEW_MULTIPLICATIONS, torch.device(device)) as chosen:
        assert chosen == torch.get_num_threads() == threads
        raise RuntimeError("within")
    assert torch.get_num_threads() == 2


def test_one_granted_thread_stays_one() -> None:
    torch.set_num_threads(1)
    with threads_for(100 * FEW_MULTIPLICATIONS, CPU) as chosen:
        assert chosen == 1
    torch.set_num_threads(2)


def test_multiplications_of_layers_equal_counts_by_hand() -> None:
    mlp = build_classifier(ClassifierSpec(architecture="mlp", widths=(32, 8)), (1, 5, 5), 10, seed=0)
    weights_and_biases = 25 * 32 + 32 + 32 * 8 + 8 + 8 * 10 + 10
    assert multiplications_of(mlp, torch.zeros(1, 1, 5, 5)) == weights_and_biases
    convolution = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 2))
    by_hand = 36 * (4 * 3 * 9 + 4) + 36 * 8 + 4 * 36 * 2 + 2
    assert multiplications_of(convolution, torch.zeros(1, 3, 6, 6)) == by_hand
    lstm = build_language_model(LanguageSpec(width=16, embedding=8, layers=1), 20, 12, seed=0)
    recurrent = 4 * 16 * (8 + 16) + 2 * 4 * 16  # at one position
    assert multiplications_of(lstm, torch.zeros(1, 12, dtype=torch.long)) == recurrent + 12 * (16 * 20 + 20)


def test_counting_multiplications_changes_neither_the_model_nor_later_draws() -> None:
    model = nn.Sequential(
        build_encoder(ModelSpec(width=4, projector=(8,), input_size=8), num_classes=None, seed=0), nn.Dropout()
    )
    model[0].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    draws: list[Tensor] = []
    for count in (False, True):
        torch.manual_seed(3)
        if count:
            multiplications_of(model, torch.ones(1, 3, 8, 8))
        draws.append(torch.rand(4))
    assert torch.equal(*draws)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert [model.training, model[0].training, model[1].training] == [True, False, True]
    assert not model[1]._forward_hooks
