"""Full float32 precision on GPUs."""


def be_exact() -> None:
    """Disable TF32, so that float32 means float32 on GPUs; by default cuDNN rounds factors to 10-bit mantissas."""
    import torch

    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
