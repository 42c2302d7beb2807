"""Shift of all seeds of a process, for `make test-rounding`.

Python imports this module at the start of each process that has this folder on its PYTHONPATH: pytest, the commands that
tests start, and Ray's workers. With MEMLIB_TEST_SEED=n, every seeded generator of NumPy and PyTorch draws from another
stream, so that a test that holds for one seed alone falls.
"""

import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

SHIFT = int(os.environ.get("MEMLIB_TEST_SEED") or 0)


class _Shifted:
    """Finder that lets Python load NumPy and PyTorch as usual, then shifts their seeds."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        shift = {"numpy.random": _shift_numpy, "torch": _shift_torch}.get(name)
        if shift is None:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            shift(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _shift_numpy(module: ModuleType) -> None:
    plain = module.default_rng

    def default_rng(seed: Any = None) -> Any:
        if seed is None or hasattr(seed, "spawn"):  # no seed, a SeedSequence, or a generator
            return plain(seed)
        return plain([*(seed if isinstance(seed, list | tuple) else [seed]), SHIFT])

    module.default_rng = default_rng


def _shift_torch(module: ModuleType) -> None:
    plain, generator = module.manual_seed, module.Generator

    class Generator(generator):
        def manual_seed(self, seed: int) -> Any:
            return super().manual_seed((int(seed) + SHIFT) % 2**63)

    module.manual_seed = lambda seed: plain((int(seed) + SHIFT) % 2**63)
    module.Generator = Generator


if SHIFT:
    sys.meta_path.insert(0, _Shifted())
