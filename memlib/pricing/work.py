"""The work of a stage, in amounts that do not depend on a machine, and the rates at which a machine does it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

from pydantic import Field, FiniteFloat

from memlib.store.records import Record

SPENT = ("products", "convolutions", "moved", "calls", "searched", "pixels", "plain", "written")
"""The amounts that take time; each has a rate of its name."""
CONVOLVED = 0.8
"""Time of a network's multiply-add in float32, in that of the convolution that is measured; of seven trainings."""


@dataclass(frozen=True)
class Work:
    """An amount of work. Amounts are added; of memory, mapped files and images, the larger of both."""

    products: float = 0.0  #: multiply-adds in matrix products.
    convolutions: float = 0.0  #: multiply-adds in convolutions.
    moved: float = 0.0  #: bytes that tensor operations read and write.
    calls: float = 0.0  #: tensor operations.
    searched: float = 0.0  #: multiply-adds of a search for neighbours.
    pixels: float = 0.0  #: pixels of image files that are decoded.
    plain: float = 0.0  #: all other work, in seconds of a core of the machine that `REFERENCE` describes.
    written: float = 0.0  #: bytes that are written to the store.
    memory: float = 0.0  #: peak bytes beyond those of a process that has loaded its libraries.
    mapped: float = 0.0  #: bytes of mapped files, which a process's peak contains while the machine has room for them.
    images: float = 0.0  #: bytes of stored images that it maps, and that stay mapped for the process's later steps.
    half: bool = False  #: whether products and convolutions are computed in bfloat16 or float16.

    def __add__(self, other: Work) -> Work:
        added = {name: getattr(self, name) + getattr(other, name) for name in SPENT}
        most = {name: max(getattr(self, name), getattr(other, name)) for name in ("memory", "mapped", "images")}
        return Work(**added, **most, half=self.half or other.half)

    def __mul__(self, times: float) -> Work:
        """Return the work of `times` repetitions, one after another."""
        return replace(self, **{name: getattr(self, name) * times for name in SPENT})

    def as_json(self) -> dict[str, Any]:
        """Return the amounts that are not 0."""
        return {name: value for name, value in asdict(self).items() if value}


Rate = Annotated[FiniteFloat, Field(gt=0)]


class Rates(Record):
    """Amounts of work that a core of a machine, or a GPU, does per second; see `memlib.pricing.measuring`."""

    products: Rate
    products_half: Rate
    convolutions: Rate
    convolutions_half: Rate
    moved: Rate
    calls: Rate
    searched: Rate
    pixels: Rate
    plain: Rate
    written: Rate

    def seconds(self, work: Work) -> float:
        """Return the seconds that some work takes on one core, or on the GPU."""
        half = "_half" if work.half else ""
        rates = {name: getattr(self, name) for name in SPENT}
        rates |= {name: getattr(self, name + half) for name in ("products", "convolutions")}
        rates["convolutions"] /= 1.0 if work.half else CONVOLVED
        return float(sum(getattr(work, name) / rates[name] for name in SPENT))
