"""Differentially private training with opacus: DP-SGD (Abadi 2016) and its cost in epsilon.

opacus and dp-accounting are optional extras and slow to import, so they are imported where they are used.
"""

import functools
import importlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from memlib.errors import UserError
from memlib.identity import derive_seed
from memlib.models.causal import Causal
from memlib.specs import PrivacySpec

FINE_FROM = 0.5  # noise below which privacy losses are so large that a coarser step suffices
FINE_STEP, COARSE_STEP = 1e-4, 1e-3


@dataclass(frozen=True)
class Spent:
    """The privacy guarantee of a training run."""

    noise: float  #: standard deviation of the noise, in units of the clipping norm.
    epsilons: tuple[float, ...]  #: epsilon spent by the end of each epoch, starting with epoch 1.
    delta: float  #: probability with which the epsilon guarantee may fail.
    accountant: str  #: the accountant that computed epsilon: rdp, prv or pld.
    sample_rate: float  #: probability that an example is in a batch.
    #: False when the accountant reports that a tighter bound may exist; epsilon is an upper bound in any case.
    tight: bool = True


@functools.lru_cache(maxsize=64)  # models of several seeds have the same plan
def plan(privacy: PrivacySpec, *, sample_rate: float, steps_per_epoch: int, epochs: int) -> Spent:
    """Compute the noise of a training run and the epsilon spent after each of its epochs.

    Args:
        privacy: epsilon or noise, delta, accountant.
        sample_rate: probability that an example is in a batch.
        steps_per_epoch, epochs: length of the training run.

    Raises:
        UserError: when epsilon is too small to be reached by any amount of noise.
    """
    steps = steps_per_epoch * epochs
    noise = privacy.noise
    if noise is None:
        assert privacy.epsilon is not None
        noise = _noise_for(privacy, sample_rate=sample_rate, steps=steps) if steps else 0.0
    lengths = [steps_per_epoch * epoch for epoch in range(1, epochs + 1)]
    if privacy.accountant == "pld":
        step = FINE_STEP if noise >= FINE_FROM else COARSE_STEP
        spent = [(epsilon, True) for epsilon in _pld(privacy, noise, step, sample_rate=sample_rate, lengths=lengths)]
    else:
        spent = [_epsilon(privacy, noise, sample_rate=sample_rate, steps=length) for length in lengths]
    tight = all(is_tight for _, is_tight in spent)
    return Spent(noise, tuple(epsilon for epsilon, _ in spent), privacy.delta, privacy.accountant, sample_rate, tight)


def _epsilon(privacy: PrivacySpec, noise: float, *, sample_rate: float, steps: int) -> tuple[float, bool]:
    """Return epsilon and whether it is tight; it is not when the best order lies at an end of the accountant's range."""
    accountant = _opacus("opacus.accountants").create_accountant(mechanism=privacy.accountant)
    accountant.history = [(noise, sample_rate, steps)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        epsilon = float(accountant.get_epsilon(delta=privacy.delta))
    return epsilon, not any("Optimal order" in str(warning.message) for warning in caught)


def _pld(privacy: PrivacySpec, noise: float, step: float, *, sample_rate: float, lengths: Sequence[int]) -> Iterator[float]:
    """Yield epsilon after several numbers of steps; the distribution of one step's privacy loss is computed only once.

    Args:
        privacy: delta.
        noise: standard deviation of the noise.
        step: interval to whose multiples privacy losses are rounded up.
        sample_rate: probability that an example is in a batch.
        lengths: numbers of steps.
    """
    if not lengths:
        return
    losses = _dp_accounting("dp_accounting.pld.privacy_loss_distribution")
    one = losses.from_gaussian_mechanism(
        standard_deviation=noise, value_discretization_interval=step, sampling_prob=sample_rate,
        neighboring_relation=_dp_accounting("dp_accounting").NeighboringRelation.ADD_OR_REMOVE_ONE,
    )  # fmt: skip
    nothing = losses.identity(value_discretization_interval=step)  # its composition rounds as dp_accounting's accountant does
    for length in lengths:
        yield float(nothing.compose(one.self_compose(length)).get_epsilon_for_delta(privacy.delta))


class _Remembered:
    """An accountant for dp_accounting's search that evaluates each noise only once, although the search asks again.

    Args:
        accounting: dp_accounting.
        epsilon_of: epsilon of the training run for a noise.
    """

    def __init__(self, accounting: ModuleType, epsilon_of: Callable[[float], float]) -> None:
        self.ledger, self._epsilon_of, self._noise = accounting.NoOpDpEvent(), epsilon_of, 0.0

    def compose(self, noise: float) -> "_Remembered":
        self._noise = noise
        return self

    def get_epsilon(self, delta: float) -> float:
        return self._epsilon_of(self._noise)


def _pld_noise(privacy: PrivacySpec, target: float, *, sample_rate: float, steps: int) -> float:
    """Search the noise of a training run for its epsilon."""
    accounting = _dp_accounting("dp_accounting")

    @functools.cache
    def epsilon_of(noise: float) -> float:
        return next(_pld(privacy, noise, COARSE_STEP, sample_rate=sample_rate, lengths=[steps]))

    low, guess = 0.05, 1.0
    if epsilon_of(guess) > target:  # the search would first evaluate the lower end, which takes seconds
        low, guess = guess, guess + 2 * (guess - low)
    found = accounting.calibrate_dp_mechanism(
        lambda: _Remembered(accounting, epsilon_of), lambda noise: noise, target, privacy.delta,
        accounting.LowerEndpointAndGuess(low, guess), tol=1e-3,
    )  # fmt: skip
    return float(found)


def _noise_for(privacy: PrivacySpec, *, sample_rate: float, steps: int) -> float:
    assert privacy.epsilon is not None
    message = f"training.privacy.epsilon {privacy.epsilon} is too small for {steps} steps"
    if privacy.accountant == "pld":
        try:
            return _pld_noise(privacy, privacy.epsilon, sample_rate=sample_rate, steps=steps)
        except _dp_accounting("dp_accounting").mechanism_calibration.NoBracketIntervalFoundError as error:
            raise UserError(message) from error
    search = _opacus("opacus.accountants.utils").get_noise_multiplier
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return float(
                search(
                    target_epsilon=privacy.epsilon, target_delta=privacy.delta, sample_rate=sample_rate, steps=steps,
                    accountant=privacy.accountant,
                )
            )  # fmt: skip
    except ValueError as error:
        raise UserError(f"{message} ({error})") from error


def poisson_sample(num_examples: int, sample_rate: float, *, seed: int, step: int) -> NDArray[np.int64]:
    """Draw the examples of a step independently of each other: sorted positions, a function of (seed, step)."""
    draws = np.random.default_rng(derive_seed(seed, "poisson", step)).random(num_examples)
    positions: NDArray[np.int64] = np.flatnonzero(draws < sample_rate)
    return positions


def use_private_layers(model: nn.Module) -> None:
    """Replace LSTM and GRU layers in place by opacus' equivalents, which give per-example gradients; keep weights and names.

    Raises:
        UserError: when another layer provides no per-example gradients.
    """
    if isinstance(model, Causal):
        model.look_up_each_row()
    layers = _opacus("opacus.layers")
    twins: dict[type[nn.Module], Any] = {nn.LSTM: layers.DPLSTM, nn.GRU: layers.DPGRU}
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.LSTM | nn.GRU):
                twin = twins[type(child)](
                    child.input_size, child.hidden_size, child.num_layers, bias=child.bias, batch_first=child.batch_first,
                    dropout=child.dropout,
                )  # fmt: skip
                twin.load_state_dict(child.state_dict())
                inner = {f"{name}.{old}": f"{name}.{new}" for old, new in twin.old_to_new.items()}
                parent.register_state_dict_post_hook(functools.partial(_forget_inner_names, inner))  # type: ignore[no-untyped-call]
                parent.register_load_state_dict_pre_hook(functools.partial(_know_inner_names, inner))  # type: ignore[no-untyped-call]
                setattr(parent, name, twin.to(next(child.parameters()).device))
    problems = _opacus("opacus.grad_sample").GradSampleModule.validate(model, strict=False)
    problems += _opacus("opacus.validators").ModuleValidator.validate(model, strict=False)
    if problems:
        raise _refusal(model, problems[0])


def _refusal(model: nn.Module, problem: Exception) -> UserError:
    """Return the error for a model that has no per-example gradients, with the alternatives."""
    lines = str(problem).strip().splitlines() or [type(problem).__name__]
    reason = lines[0][:200]
    if not isinstance(model, Causal):
        kinds = "lstm, gru, cnn, wavenet, encoder_decoder and mlp"
        return UserError(f"this model cannot be trained with training.privacy; {kinds} can ({reason})")
    if model.has_adapters:
        return UserError(
            "the adapters of this architecture cannot be trained with training.privacy and the installed opacus "
            f"({reason}); adapt other layers (model.lora.targets) or fine-tune another architecture"
        )
    return UserError(
        "the installed opacus cannot train all weights of this architecture with training.privacy "
        f"({reason}); model.lora trains adapters privately"
    )


def _forget_inner_names(inner: Mapping[str, str], parent: nn.Module, state: dict[str, Tensor], prefix: str, _: Any) -> None:
    """Drop opacus' inner names so that weights keep PyTorch's; opacus only does so where its layer is the whole model."""
    for old in inner:
        state.pop(f"{prefix}{old}", None)


def _know_inner_names(inner: Mapping[str, str], parent: nn.Module, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    for old, new in inner.items():
        if f"{prefix}{new}" in state:
            state[f"{prefix}{old}"] = state[f"{prefix}{new}"]


def make_private(
    model: nn.Module, optimizer: torch.optim.Optimizer, *, clip: float, noise: float, batch_size: int
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return the model with per-example gradients, and an optimizer that clips them and adds noise.

    Noise is drawn from torch's global generator, which the training loop seeds at every step.

    Args:
        model: a model prepared by `use_private_layers`.
        optimizer: the optimizer of the model's parameters.
        clip: maximum norm of an example's gradient.
        noise: standard deviation of the noise, in units of `clip`.
        batch_size: expected number of examples in a batch.
    """
    private = _opacus("opacus.grad_sample").GradSampleModule(model, batch_first=True, loss_reduction="mean")
    wrapped: torch.optim.Optimizer = _opacus("opacus.optimizers").DPOptimizer(
        optimizer, noise_multiplier=noise, max_grad_norm=clip, expected_batch_size=batch_size, loss_reduction="mean"
    )
    return private, wrapped


def check_gradients(model: Causal, objective: nn.Module, tokens: Tensor) -> None:
    """Take one private step on made-up windows, which changes the model's layers.

    Args:
        model: the model to train, which cannot be used afterwards.
        tokens: (2, length) int64, of a length other than 2.

    Raises:
        UserError: when opacus computes no per-example gradients for the architecture.
    """
    use_private_layers(model)
    learnt = [value for value in model.parameters() if value.requires_grad]
    try:
        forward, optimizer = make_private(model, torch.optim.SGD(learnt, lr=0.0), clip=1.0, noise=0.0, batch_size=len(tokens))
        forward.train()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch warns that tokens have no gradients
            objective(forward, [tokens], torch.zeros(len(tokens)))["loss"].backward()
        optimizer.step()
    except Exception as error:  # opacus and transformers pass on errors of any type
        raise _refusal(model, error) from error


def _dp_accounting(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(
            "training.privacy.accountant pld needs dp-accounting: pip install -e '.[privacy]' in memlib's folder"
        ) from error


def _opacus(name: str) -> ModuleType:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except ImportError as error:
        raise UserError("training.privacy needs opacus: pip install -e '.[privacy]' in memlib's folder") from error
