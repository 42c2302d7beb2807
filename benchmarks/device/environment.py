"""The environment of the checks: PyTorch, CUDA, the build of FAISS, and the GPU."""

from collections.abc import Iterator

import faiss
import torch

from benchmarks.device.checks import Check, Clock, Found, only_on_gpu


def checks(device: torch.device, clock: Clock) -> Iterator[Check]:
    """Yield the checks of the environment."""
    yield Check("PyTorch", pytorch)
    yield Check("FAISS", search_library)
    yield Check("GPU", lambda: gpu(device), only_on_gpu(device))


def pytorch() -> Found:
    """Return PyTorch's version and the libraries that it was built with."""
    cudnn = torch.backends.cudnn.version() if torch.cuda.is_available() else None
    text = f"{torch.__version__}, CUDA {torch.version.cuda}, cuDNN {cudnn}, {torch.get_num_threads()} threads"
    return Found(None, text, {"cudnn": cudnn, "threads": torch.get_num_threads()})


def search_library() -> Found:
    """Return FAISS's version, its build, and the number of GPUs that it sees."""
    options, gpus = faiss.get_compile_options().strip(), faiss.get_num_gpus()
    return Found(None, f"{faiss.__version__} ({options}), {gpus} GPUs", {"build": options, "faiss_gpus": gpus})


def gpu(device: torch.device) -> Found:
    """Multiply two matrices of whole numbers on the GPU, whose product is exact, and describe the GPU."""
    ones = torch.ones(512, 512, device=device)
    properties = torch.cuda.get_device_properties(device)
    free, total = torch.cuda.mem_get_info(device)
    text = (
        f"{torch.cuda.device_count()} x {properties.name}, compute capability {properties.major}.{properties.minor}, "
        f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free"
    )
    return Found(bool(((ones @ ones) == 512).all()), text, {"gpus": torch.cuda.device_count(), "free_bytes": free})
