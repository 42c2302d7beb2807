"""File names of saved weights."""


def weights_file(epoch: int) -> str:
    """Return the file name of the weights after `epoch` epochs."""
    return f"epoch-{epoch:05d}.safetensors"


def step_file(step: int) -> str:
    """Return the file name of the weights after `step` steps, within an epoch."""
    return f"step-{step:07d}.safetensors"
