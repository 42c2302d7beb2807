"""Float32 that is float32, on GPUs too."""


def be_exact() -> None:
    """Have GPUs compute in float32 where a recipe says so; by default cuDNN rounds factors to 10 bits (TF32)."""
    import torch

    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
