from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from memlib.identity import derive_seed
from memlib.models.image_text import ImageText, build_image_text
from memlib.objectives import build_objective
from memlib.objectives.base import BatchPart
from memlib.objectives.ssl import covariance_loss, invariance_loss, pair_loss, variance_loss
from memlib.specs import ContrastiveSpec, ImageTextSpec, OptimizerSpec, PairTrainingSpec, SupervisedSpec, VICRegSpec
from memlib.specs.captions import PADDING, UNKNOWN
from memlib.training.loop import Training, TrainingSet, Worker
from tests.forks import together


def slow_vicreg(a: np.ndarray, b: np.ndarray) -> tuple[float, float, float]:
    """Bardes 2022, Eqs. 1 to 6, written out one number at a time."""
    n, d = a.shape
    invariance = sum((a[i, j] - b[i, j]) ** 2 for i in range(n) for j in range(d)) / (n * d)
    variance = covariance = 0.0
    for z in (a, b):
        mean = z.mean(axis=0)
        for j in range(d):
            variance += max(0.0, 1 - np.sqrt(((z[:, j] - mean[j]) ** 2).sum() / (n - 1) + 1e-4)) / d / 2
        for j in range(d):
            for k in range(d):
                if j != k:
                    covariance += (((z[:, j] - mean[j]) * (z[:, k] - mean[k])).sum() / (n - 1)) ** 2 / d
    return invariance, variance, covariance


def test_vicreg_equals_its_formula() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 7, 5)) * 0.6
    expected = slow_vicreg(a, b)
    x, y = torch.from_numpy(a), torch.from_numpy(b)
    assert invariance_loss(x, y).item() == pytest.approx(expected[0])
    assert ((variance_loss(x) + variance_loss(y)) / 2).item() == pytest.approx(expected[1])
    assert (covariance_loss(x) + covariance_loss(y)).item() == pytest.approx(expected[2])
    objective = build_objective(VICRegSpec(kind="vicreg"))
    terms = objective(torch.nn.Identity(), [x.float(), y.float()], torch.zeros(7))
    assert terms["loss"].item() == pytest.approx(25 * expected[0] + 25 * expected[1] + expected[2], rel=1e-5)


def test_collapsed_embeddings_cost_the_whole_hinge_and_spread_decorrelated_ones_nothing() -> None:
    same = torch.ones(8, 4)
    assert variance_loss(same).item() == pytest.approx(0.99)
    spread = torch.tensor([[1.0, 1], [1, -1], [-1, 1], [-1, -1]]) * 2
    assert variance_loss(spread).item() == 0
    assert covariance_loss(spread).item() == 0


def test_bfloat16_embeddings_get_a_float32_covariance() -> None:
    objective = build_objective(VICRegSpec(kind="vicreg"))
    view = torch.randn(64, 16).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert all(term.dtype == torch.float32 for term in objective(torch.nn.Identity(), [view, view], view).values())


def test_the_supervised_loss_is_cross_entropy() -> None:
    scores, labels = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0])
    terms = build_objective(SupervisedSpec(kind="supervised"))(torch.nn.Identity(), [scores], labels)
    assert terms["loss"].item() == pytest.approx((np.log(1 + np.exp(-2)) + np.log(1 + np.exp(1))) / 2, rel=1e-6)
    assert terms["training_accuracy"].item() == 0.5


SIDE, WORDS, LENGTH, SHARED_STEPS = 16, 12, 5, 2
IMAGE = {"backbone": "small_vit", "patch_size": 8, "width": 4, "input_size": SIDE, "projector": [8]}
PLAIN = OptimizerSpec(name="sgd", learning_rate=0.05, momentum=0, weight_decay=0, warmup_epochs=0, schedule="constant")


def make_model(architecture: str = "bag", seed: int = 0) -> ImageText:
    spec = ImageTextSpec.model_validate({"image": IMAGE, "text": {"architecture": architecture, "width": 8, "layers": 1}})
    return build_image_text(spec, num_words=WORDS, length=LENGTH, seed=seed)


def make_data(count: int = 24) -> TrainingSet:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, size=(count, SIDE, SIDE, 3), dtype=np.uint8)
    words = rng.integers(2, WORDS, size=(count, LENGTH))
    words[:, 3:] = PADDING
    return TrainingSet(images, np.arange(count), words)


def make_training(*, worker: Worker | None = None, **changes: Any) -> Training:
    spec = PairTrainingSpec(**({"epochs": 4, "batch_size": 8, "optimizer": PLAIN} | changes))
    return Training(make_model(), build_objective(spec.objective), make_data(), spec, input_size=SIDE, worker=worker)


def random_pairs(count: int = 6, dim: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return F.normalize(torch.randn(count, dim), dim=1) * 5, F.normalize(torch.randn(count, dim), dim=1)


def test_loss_is_the_mean_of_both_ways_to_pick_a_partner() -> None:
    """As in the pseudo-code of Radford 2021, Fig. 3, with a loop over the pairs."""
    images, texts = random_pairs()
    losses = []
    for one in range(len(images)):
        by_image = [float(images[one] @ text) for text in texts]
        by_text = [float(image @ texts[one]) for image in images]
        losses += [np.log(np.exp(scores).sum()) - scores[one] for scores in (by_image, by_text)]
    loss = pair_loss(images, texts, torch.eye(len(images), dtype=torch.bool))
    assert float(loss) == pytest.approx(np.mean(losses), rel=1e-5)


def test_copies_of_a_pair_are_partners_of_each_other() -> None:
    images, texts = random_pairs(4)
    images[1], texts[1] = images[0], texts[0]
    same = torch.eye(4, dtype=torch.bool)
    told_apart = pair_loss(images, texts, same)
    same[0, 1] = same[1, 0] = True
    scores = images @ texts.T
    target = torch.tensor([[0.5, 0.5, 0, 0], [0.5, 0.5, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    by_hand = -(target * scores.log_softmax(dim=1)).sum(dim=1).mean() / 2
    by_hand += -(target * scores.T.log_softmax(dim=1)).sum(dim=1).mean() / 2
    assert float(pair_loss(images, texts, same)) == pytest.approx(float(by_hand), rel=1e-5)
    assert float(by_hand) == pytest.approx(
        float(told_apart), rel=1e-5
    )  # equal copies have equal scores: only gradients differ


def test_captions_that_are_equal_in_a_batch_share_the_target() -> None:
    model, objective = make_model(), build_objective(ContrastiveSpec())
    images = torch.rand(4, 3, SIDE, SIDE)
    words = torch.tensor([[2, 3, 0, 0, 0], [2, 3, 0, 0, 0], [4, 5, 0, 0, 0], [6, 2, 3, 0, 0]])
    same = torch.eye(4, dtype=torch.bool)
    same[0, 1] = same[1, 0] = True
    loss = objective(model, [images], words)["loss"]
    assert torch.allclose(loss, pair_loss(*model(images, words), same))


def test_masks_are_drawn_for_the_global_batch_and_spare_padding() -> None:
    objective: Any = build_objective(ContrastiveSpec(masked=0.5))
    words = torch.randint(2, WORDS, (64, LENGTH))
    words[:, 3:] = PADDING
    objective.part = BatchPart(7, 3, 64, slice(None))
    whole = objective._masked(words)
    objective.part = BatchPart(7, 3, 64, slice(32, 64))
    assert torch.equal(objective._masked(words[32:]), whole[32:])
    changed = whole != words
    assert bool((whole[changed] == UNKNOWN).all())
    assert not bool(changed[:, 3:].any())
    assert 0.4 < float(changed[:, :3].float().mean()) < 0.6
    rng = torch.Generator().manual_seed(derive_seed(7, "masked words", 3))
    assert torch.equal(changed[:, :3], (torch.rand((64, LENGTH), generator=rng) < 0.5)[:, :3])
    objective.eval()
    assert torch.equal(objective._masked(words), words)


@pytest.mark.parametrize("architecture", ["bag", "transformer"])
def test_padding_does_not_change_a_text(architecture: str) -> None:
    model = make_model(architecture).eval()
    short, padded = torch.tensor([[2, 3]]), torch.tensor([[2, 3, 0, 0, 0]])
    assert torch.allclose(model.encode_texts(short), model.encode_texts(padded), atol=1e-6)
    assert not torch.allclose(model.encode_texts(short), model.encode_texts(torch.tensor([[2, 4]])), atol=1e-4)


def test_a_transformer_reads_the_order_of_words_and_a_bag_does_not() -> None:
    one, other = torch.tensor([[2, 3, 4]]), torch.tensor([[4, 3, 2]])
    bag, transformer = make_model("bag").eval(), make_model("transformer").eval()
    assert torch.allclose(bag.encode_texts(one), bag.encode_texts(other), atol=1e-6)
    assert not torch.allclose(transformer.encode_texts(one), transformer.encode_texts(other), atol=1e-6)


def test_temperature_begins_where_the_recipe_says_and_stays_at_a_hundredth() -> None:
    training = make_training(objective={"temperature": 0.5}, optimizer=PLAIN.model_copy(update={"learning_rate": 1e3}))
    model: Any = training.model
    assert float(model.log_scale.detach().exp()) == pytest.approx(2.0)
    with torch.no_grad():
        model.log_scale.fill_(10.0)
    training.objective.after_step(model)
    assert float(model.log_scale.detach().exp()) == pytest.approx(100.0, rel=1e-5)


def test_the_loss_falls_and_a_resumed_training_equals_an_uninterrupted_one() -> None:
    whole, losses = make_training(epochs=20), []
    whole.run(after_epoch=lambda _, means: losses.append(means["loss"]))
    assert losses[-1] < losses[0]
    first = make_training(epochs=20)
    first.run(stop_after=7)
    resumed = make_training(epochs=20)
    resumed.load_state(first.state())
    resumed.run()
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name]), name


def train_shared(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    training = make_training(worker=Worker(rank, 2, group=dist.group.WORLD), objective={"masked": 0.3})
    training.run(stop_after=SHARED_STEPS)
    if rank == 0:
        torch.save(training.model.state_dict(), f"{folder}/shared.pt")
    dist.destroy_process_group()


@pytest.mark.long
def test_two_workers_train_the_same_model_as_one(tmp_path: Path) -> None:
    """Each caption is compared with the images of the global batch, not with those of its worker alone."""
    together(train_shared, str(tmp_path))
    alone = make_training(objective={"masked": 0.3})
    before = {name: tensor.clone() for name, tensor in alone.model.state_dict().items()}
    alone.run(stop_after=SHARED_STEPS)
    shared = torch.load(tmp_path / "shared.pt", weights_only=True)
    assert all(not torch.equal(before[name], shared[name]) for name in ("log_scale", "text.words.weight"))
    for name, tensor in alone.model.state_dict().items():
        assert torch.allclose(tensor, shared[name], rtol=0, atol=1e-5), name
