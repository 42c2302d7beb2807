"""DP-SGD: its step is the clipped mean of a slow loop, its noise is the accountant's, its weights are plain ones."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from memlib.errors import UserError
from memlib.models.sequence import build_language_model
from memlib.objectives import build_objective
from memlib.specs import LanguageObjectiveSpec, LanguageSpec, OptimizerSpec, PrivacySpec, TrainingSpec
from memlib.training import privacy
from memlib.training.checkpoint import load_weights, save_weights
from memlib.training.loop import Training, TrainingSet
from memlib.training.privacy import make_private, plan, poisson_sample, use_private_layers

LANGUAGE = LanguageObjectiveSpec(kind="language")


def small(architecture: str, seed: int = 0) -> torch.nn.Module:
    spec = LanguageSpec.model_validate({"architecture": architecture, "width": 8, "layers": 2, "embedding": 4, "heads": 2})
    return build_language_model(spec, 6, 12, seed=seed)


def loss_of(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return build_objective(LANGUAGE)(model, [tokens], torch.zeros(len(tokens)))["loss"]


def clipped_sum(model: torch.nn.Module, tokens: torch.Tensor, clip: float) -> dict[str, torch.Tensor]:
    """Gradients example by example, each scaled down to the norm, added up."""
    total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for row in tokens:
        model.zero_grad()
        loss_of(model, row[None]).backward()
        norm = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters()))
        for name, p in model.named_parameters():
            total[name] += p.grad * min(1.0, clip / norm)
    return total


def test_a_windows_gradient_depends_on_no_other_window() -> None:
    """Pairs have targets of several lengths; a long target beside it must not reduce the weight of an example."""
    spec = LanguageSpec(architecture="encoder_decoder", width=8, layers=1, embedding=4)
    rows = torch.tensor([[1, 2, 3, 4, 5, 0, -1, -1], [1, 2, 3, 4, 5, 4, 3, 0], [2, 2, 2, 2, 0, -1, -1, -1]])
    found = []
    for others in ([0, 1], [0, 2]):
        model = build_language_model(spec, 6, 8, seed=0)
        use_private_layers(model)
        forward, _ = make_private(model, torch.optim.SGD(model.parameters(), lr=1.0), clip=1.0, noise=0.0, batch_size=2)
        loss_of(forward, rows[others]).backward()
        found.append(torch.cat([p.grad_sample[0].flatten() for p in model.parameters()]))
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize("architecture", ["lstm", "gru", "cnn", "wavenet"])
def test_a_step_without_noise_is_the_clipped_mean_of_a_loop(architecture: str) -> None:
    tokens = torch.from_numpy(np.random.default_rng(0).integers(0, 6, (7, 12)))
    plain, private = small(architecture), small(architecture)
    wanted = clipped_sum(plain, tokens, 0.3)
    use_private_layers(private)
    forward, optimizer = make_private(
        private, torch.optim.SGD(private.parameters(), lr=1.0), clip=0.3, noise=0.0, batch_size=10
    )
    before = {name: p.detach().clone() for name, p in private.named_parameters()}
    loss_of(forward, tokens).backward()
    optimizer.step()
    for name, p in private.state_dict().items():
        torch.testing.assert_close(before[name] - p, wanted[name] / 10, rtol=1e-4, atol=1e-6, msg=name)


def test_the_noise_has_the_requested_deviation() -> None:
    model = small("gru")
    use_private_layers(model)
    forward, optimizer = make_private(model, torch.optim.SGD(model.parameters(), lr=1.0), clip=1e-9, noise=2e9, batch_size=4)
    before = torch.cat([p.detach().flatten().clone() for p in model.parameters()])
    torch.manual_seed(0)
    loss_of(forward, torch.zeros(4, 12, dtype=torch.int64)).backward()
    optimizer.step()
    moved = torch.cat([p.detach().flatten() for p in model.parameters()]) - before
    assert float(moved.std()) == pytest.approx(2e9 * 1e-9 / 4, rel=0.1)


@pytest.mark.parametrize("accountant", ["rdp", "prv", "pld"])
def test_epsilon_of_one_full_batch_is_the_gaussian_mechanisms(accountant: str) -> None:
    """Balle and Wang 2018: the exact delta of the Gaussian mechanism at the accountant's epsilon is at most delta."""
    privacy = PrivacySpec(noise=2.0, delta=1e-5, accountant=accountant)
    (epsilon,) = plan(privacy, sample_rate=1.0, steps_per_epoch=1, epochs=1).epsilons
    phi = torch.special.ndtr
    a, b = torch.tensor([1 / 4 - epsilon * 2, -1 / 4 - epsilon * 2], dtype=torch.float64)
    delta = float(phi(a) - math.exp(epsilon) * phi(b))
    assert delta <= 1e-5
    assert delta > 1e-8  # not a bound that says nothing
    classical = math.sqrt(2 * math.log(1.25 / 1e-5)) / 2
    assert 0.8 * classical < epsilon < classical * 1.05


def test_a_budget_is_spent_by_the_end_and_not_before() -> None:
    spent = plan(PrivacySpec(epsilon=3.0), sample_rate=0.02, steps_per_epoch=50, epochs=4)
    assert 2.9 < spent.epsilons[-1] <= 3.0
    assert list(spent.epsilons) == sorted(spent.epsilons)
    assert spent.epsilons[0] < 2.5
    again = plan(PrivacySpec(noise=spent.noise), sample_rate=0.02, steps_per_epoch=50, epochs=4)
    assert again.epsilons == spent.epsilons


@pytest.mark.parametrize("optimizer", ["rmsprop", "sgd"])
def test_gradients_below_the_clip_under_equal_noise_train_alike(optimizer: str) -> None:
    ended = []
    for clip, noise in ((10.0, 0.003), (100.0, 0.0003)):
        how = OptimizerSpec(name=optimizer, learning_rate=1e-2, weight_decay=0, momentum=0, warmup_epochs=0)
        training = training_of(small("lstm"), spec_of(optimizer=how, privacy=PrivacySpec(noise=noise, clip=clip)))
        training.run()
        ended.append(training.model.state_dict())
    for name, value in ended[0].items():
        torch.testing.assert_close(value, ended[1][name])


def test_very_small_noise_has_a_finite_but_vacuous_epsilon() -> None:
    how = {"sample_rate": 0.04, "steps_per_epoch": 25, "epochs": 10}  # about those of exposure_private
    spent = [plan(PrivacySpec(noise=noise), **how).epsilons[-1] for noise in (0.1, 0.03, 0.01, 0.003)]
    assert spent == sorted(spent)
    assert spent[0] > 1e3
    assert 1e7 < spent[-1] < 1e8


def test_private_batches_are_poisson_samples_determined_by_seed_and_step() -> None:
    sizes = [len(poisson_sample(1000, 0.05, seed=1, step=step)) for step in range(200)]
    assert np.mean(sizes) == pytest.approx(50, abs=2)
    assert np.var(sizes) == pytest.approx(47.5, rel=0.4)
    first = poisson_sample(1000, 0.05, seed=1, step=3)
    np.testing.assert_array_equal(first, poisson_sample(1000, 0.05, seed=1, step=3))
    assert set(first) != set(poisson_sample(1000, 0.05, seed=2, step=3))


def spec_of(**changes: object) -> TrainingSpec:
    optimizer = OptimizerSpec(name="rmsprop", learning_rate=1e-3, weight_decay=0, warmup_epochs=0, schedule="constant")
    base = {"objective": LANGUAGE, "epochs": 2, "batch_size": 16, "augment": None, "optimizer": optimizer}
    return TrainingSpec.model_validate(base | {"privacy": PrivacySpec(noise=1.0)} | changes)


def training_of(model: torch.nn.Module, spec: TrainingSpec) -> Training:
    windows = np.random.default_rng(0).integers(0, 6, (64, 12)).astype(np.int32)
    data = TrainingSet(windows, np.arange(64), np.zeros(64, dtype=np.int64))
    return Training(model, build_objective(LANGUAGE), data, spec, input_size=12)


def test_a_private_training_resumes_to_the_same_weights_and_loads_as_a_plain_model(tmp_path: Path) -> None:
    whole = training_of(small("lstm"), spec_of())
    whole.run()
    assert whole.privacy_spent is not None
    assert len(whole.privacy_spent.epsilons) == 2
    part = training_of(small("lstm"), spec_of())
    part.run(stop_after=5)
    resumed = training_of(small("lstm", seed=9), spec_of())
    resumed.load_state(part.state())
    resumed.run()
    for name, value in whole.model.state_dict().items():
        torch.testing.assert_close(value, resumed.model.state_dict()[name], rtol=0, atol=0)
    save_weights(whole.model, tmp_path / "weights.safetensors")
    plain = small("lstm", seed=5)
    load_weights(plain, tmp_path / "weights.safetensors")
    tokens = torch.arange(12)[None] % 6
    torch.testing.assert_close(plain(tokens), whole.model.eval()(tokens))


def test_models_and_settings_that_cannot_be_private_are_refused() -> None:
    with pytest.raises(UserError, match="lstm, gru, cnn, wavenet, encoder_decoder and mlp can"):
        training_of(small("transformer"), spec_of())
    with pytest.raises(ValidationError, match="whole batches"):
        spec_of(objective={"kind": "vicreg"})
    with pytest.raises(ValidationError, match="either epsilon or noise"):
        PrivacySpec(epsilon=1.0, noise=1.0)
    with pytest.raises(ValidationError, match="use pld"):
        PrivacySpec(noise=0.1, accountant="prv")
    with pytest.raises(UserError, match=r"below 1/64 \(1/number of examples\)"):
        training_of(small("gru"), spec_of(privacy=PrivacySpec(noise=1.0, delta=0.1)))
    with pytest.raises(ValidationError, match="greater than or equal to"):
        PrivacySpec(noise=1e-200)
    with pytest.raises(ValidationError, match="16 or more"):
        spec_of(batch_size=8)
    with pytest.raises(UserError, match="too small"):
        plan(PrivacySpec(epsilon=1e-6), sample_rate=1.0, steps_per_epoch=1000, epochs=1000)
    with pytest.raises(UserError, match="too small"):
        plan(PrivacySpec(epsilon=1e-9, delta=1e-12, accountant="pld"), sample_rate=1.0, steps_per_epoch=10, epochs=1)


def test_pld_is_as_tight_as_prv_and_far_tighter_than_rdp_at_small_noise() -> None:
    how = {"sample_rate": 0.02, "steps_per_epoch": 50, "epochs": 2}
    found = {name: plan(PrivacySpec(noise=1.0, accountant=name), **how).epsilons[-1] for name in ("rdp", "prv", "pld")}
    assert found["pld"] == pytest.approx(found["prv"], rel=0.02)
    assert found["pld"] < found["rdp"]
    small = {name: plan(PrivacySpec(noise=0.1, accountant=name), **how) for name in ("rdp", "pld")}
    assert small["rdp"].epsilons[-1] > 3 * small["pld"].epsilons[-1]
    assert not small["rdp"].tight  # and who reads it is told
    assert small["pld"].tight


@pytest.mark.parametrize("noise", [1.2, 0.4])
def test_pld_spends_in_every_epoch_what_an_accountant_of_its_own_says(noise: float, monkeypatch: pytest.MonkeyPatch) -> None:
    accounting, pld = pytest.importorskip("dp_accounting"), pytest.importorskip("dp_accounting.pld")
    monkeypatch.setattr(privacy, "FINE_STEP", 0.002)  # fast
    monkeypatch.setattr(privacy, "COARSE_STEP", 0.01)
    spent = plan(PrivacySpec(noise=noise, accountant="pld"), sample_rate=0.1, steps_per_epoch=3, epochs=3)
    for epoch, epsilon in enumerate(spent.epsilons, 1):
        accountant = pld.PLDAccountant(value_discretization_interval=0.002 if noise > 0.5 else 0.01)
        accountant.compose(accounting.PoissonSampledDpEvent(0.1, accounting.GaussianDpEvent(noise)), 3 * epoch)
        assert epsilon == accountant.get_epsilon(1e-5)


@pytest.mark.parametrize("epsilon", [0.5, 3.0])  # found above noise 1 and below
def test_pld_finds_the_noise_that_dp_accounting_finds(epsilon: float, monkeypatch: pytest.MonkeyPatch) -> None:
    accounting, pld = pytest.importorskip("dp_accounting"), pytest.importorskip("dp_accounting.pld")
    monkeypatch.setattr(privacy, "COARSE_STEP", 0.05)  # fast
    found = plan(PrivacySpec(epsilon=epsilon, accountant="pld"), sample_rate=0.1, steps_per_epoch=4, epochs=1).noise
    expected = accounting.calibrate_dp_mechanism(
        lambda: pld.PLDAccountant(value_discretization_interval=0.05),
        lambda noise: accounting.SelfComposedDpEvent(
            accounting.PoissonSampledDpEvent(0.1, accounting.GaussianDpEvent(noise)), 4
        ),
        epsilon, 1e-5, accounting.LowerEndpointAndGuess(0.05, 1.0), tol=1e-3,
    )  # fmt: skip
    assert found == expected
    assert (found > 1) == (epsilon < 1)


def test_the_noise_that_pld_finds_spends_the_budget() -> None:
    spent = plan(PrivacySpec(epsilon=3.0, accountant="pld"), sample_rate=0.02, steps_per_epoch=50, epochs=2)
    assert 2.95 < spent.epsilons[-1] <= 3.0
    assert spent.noise < plan(PrivacySpec(epsilon=3.0), sample_rate=0.02, steps_per_epoch=50, epochs=2).noise
