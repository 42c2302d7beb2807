"""The arithmetic of stages in this process: float32 as such on GPUs, and a stated number of threads."""

from collections.abc import Iterator
from contextlib import contextmanager

from memlib.pipeline.stage import AnyStage
from memlib.specs import Resources
from memlib.specs.cores import threads

TRAINING = "train"  # resources of all models whose own stage has none


def be_exact() -> None:
    """Disable TF32, so that float32 means float32 on GPUs; by default cuDNN rounds factors to 10-bit mantissas."""
    import torch

    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False


@contextmanager
def exact(threads: int) -> Iterator[None]:
    """Compute with a number of threads in the block, and with full float32 precision; the threads are restored afterwards."""
    import torch

    before = torch.get_num_threads()
    be_exact()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def settings_of(resources: Resources, stage: AnyStage) -> str:
    """Return the name under which a stage's resources are set: its own, or for models also that of all training."""
    own = stage.declared.name
    return TRAINING if stage.place == "fleet" and own not in resources.stages else own


def threads_of(resources: Resources, stage: AnyStage, parts: int) -> int:
    """Return the threads of a stage that is one of the parts of a step: those of every placement."""
    return threads() if stage.where == "driver" else resources.threads(settings_of(resources, stage), parts)
