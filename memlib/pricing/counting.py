"""Counts of the tensor operations of a computation, which is not carried out where its tensors are on the meta device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from memlib.pricing.work import Work

FREE = frozenset(
    {
        "view",
        "_unsafe_view",
        "t",
        "transpose",
        "permute",
        "expand",
        "slice",
        "select",
        "unsqueeze",
        "squeeze",
        "detach",
        "alias",
        "as_strided",
        "empty",
        "empty_like",
        "split",
        "unbind",
        "chunk",
        "_reshape_alias",
        "empty_strided",
        "new_empty",
        "unfold",
        "lift_fresh",
        "split_with_sizes",
        "is_pinned",
    }
)  # operations that read and write nothing
CONVOLUTIONS = frozenset(("convolution", "_convolution", "convolution_backward", "cudnn_convolution", "mkldnn_convolution"))


class Counted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode under which all tensor operations are counted, and the bytes that are alive at one time.

    Example:
        >>> import torch
        >>> from memlib.pricing.counting import counting
        >>> with counting() as counted, torch.device("meta"):
        ...     _ = torch.empty(8, 100) @ torch.empty(100, 10)
        >>> counted.work.products, counted.work.calls
        (8000.0, 1.0)
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.work = Work()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call an operation and count it."""
        out = func(*args, **(kwargs or {}))
        packet = func._overloadpacket
        name = packet.__name__
        if name not in FREE:
            macs = flop_registry[packet](*args, **(kwargs or {}), out_val=out) / 2 if packet in flop_registry else 0.0
            moved = sum(
                one.numel() * one.element_size() for one in tree_leaves((args, kwargs, out)) if isinstance(one, Tensor)
            )
            is_convolution = name in CONVOLUTIONS
            products, convolutions = (0.0, macs) if is_convolution else (macs, 0.0)
            self.work += Work(products=products, convolutions=convolutions, moved=moved, calls=1.0)
        return out


@contextmanager
def counting() -> Iterator[Counted]:
    """Count the operations that are called in the block; autocast, which the meta device lacks, is left out."""
    autocast = torch.autocast
    torch.autocast = lambda *_, **__: nullcontext()  # type: ignore[assignment, misc]
    try:
        with Counted() as mode:
            yield mode
    finally:
        torch.autocast = autocast  # type: ignore[misc]


def saved_bytes(compute: Callable[[], Any]) -> int:
    """Return the bytes of the tensors that a computation keeps for its backward pass, each counted once."""
    seen: dict[int, int] = {}
    kept: list[Tensor] = []  # so that no address is used twice

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in seen:
            seen[storage._cdata] = storage.nbytes()
            kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        compute()
    return sum(seen.values())
