"""Counts of the tensor operations of a computation, which is not carried out where its tensors are on the meta device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from memlib.pricing.work import Work

FREE = frozenset((
    "view", "_unsafe_view", "t", "transpose", "permute", "expand", "slice",
    "select", "unsqueeze", "squeeze", "detach", "alias", "as_strided", "empty",
    "empty_like", "split", "unbind", "chunk", "_reshape_alias", "empty_strided", "new_empty",
    "unfold", "lift_fresh", "split_with_sizes", "is_pinned",
))  # fmt: skip  # operations that read and write nothing
CONVOLUTIONS = frozenset(("convolution", "_convolution", "convolution_backward", "cudnn_convolution", "mkldnn_convolution"))


class Counted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode under which all tensor operations are counted.

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
        self._products = self._convolutions = self._moved = 0.0
        self._calls = 0

    @property
    def work(self) -> Work:
        """The operations so far."""
        return Work(products=self._products, convolutions=self._convolutions, moved=self._moved, calls=float(self._calls))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call an operation and count it; one that consists of others, as they arrive in inference mode, by its parts."""
        with self:
            parts = func.decompose(*args, **(kwargs or {}))
        if parts is not NotImplemented:
            return parts
        out = func(*args, **(kwargs or {}))
        packet = func._overloadpacket
        name = packet.__name__
        if name in FREE:
            return out
        macs = flop_registry[packet](*args, **(kwargs or {}), out_val=out) / 2 if packet in flop_registry else 0.0
        if name in CONVOLUTIONS:
            self._convolutions += macs
        else:
            self._products += macs
        self._moved += bytes_of(one for one in tree_leaves((args, kwargs, out)) if isinstance(one, Tensor))
        self._calls += 1
        return out


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Return the size of tensors."""
    return sum(one.numel() * one.element_size() for one in tensors)


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
