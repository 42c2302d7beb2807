"""Models that were trained elsewhere: a factory of the user's and a file of weights, never unpickled."""

from typing import Any

import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from memlib.errors import UserError
from memlib.models.external import made
from memlib.models.vision import MEAN, STD
from memlib.specs import TrainedSpec


def load_own(spec: TrainedSpec, weights: str) -> nn.Module:
    """The factory's model with the weights of a file, in evaluation mode.

    Raises:
        UserError: when the factory, the file or their agreement fails; says which.
    """
    model = made(spec)
    if not isinstance(model, nn.Module):
        raise UserError(f"{spec.model} returned a {type(model).__name__}, not a torch module")
    state = _read_weights(weights)
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        problem = " ".join(str(error).split())
        raise UserError(f"the weights {weights} do not fit the model of {spec.model}: {problem[:300]}") from error
    return model.eval()


def _read_weights(path: str) -> dict[str, Tensor]:
    try:
        if path.endswith(".safetensors"):
            return dict(safetensors.torch.load_file(path))
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # safetensors and torch have errors of their own
        said = str(error).splitlines()[0]
        raise UserError(f"cannot read weights from {path} ({said}); a state dict as .safetensors or .pt is needed") from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise UserError(f"{path} does not hold a state dict (names and tensors)")
    return dict(state)


def take_own(spec: TrainedSpec, examples: NDArray[Any], device: torch.device) -> Tensor:
    """Stored examples as the model takes them: (batch, channels, height, width) float32, or points as they are."""
    values = torch.from_numpy(examples.copy()).float().to(device)
    if examples.ndim == 2:
        return values
    values = values.permute(0, 3, 1, 2)
    if spec.inputs == "raw":
        return values
    values = values / 255
    if spec.inputs == "unit":
        return values
    if values.shape[1] != 3:
        raise UserError("trained.inputs imagenet is for colour images; set data.channels to 3, or trained.inputs to unit")
    mean, std = (torch.tensor(part, device=device).view(1, 3, 1, 1) for part in (MEAN, STD))
    return (values - mean) / std


class AsLogits(nn.Module):
    """A model whose outputs are probabilities, as one of class scores."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        """Log-probabilities, which are class scores up to a constant."""
        outputs = self.model(inputs)
        if bool((outputs < 0).any()) or not torch.allclose(outputs.sum(dim=-1), torch.ones(()), atol=1e-3):
            raise UserError("trained.outputs says probabilities, but the model's outputs are not; set it to logits")
        return torch.log(outputs.clamp(min=1e-12))
