"""A source that joins several sources; images of a part can be changed as if another scanner had recorded them."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import scipy
from numpy.typing import NDArray

from memlib.data.examples import Example, Source, UnreadableImage
from memlib.errors import DataError
from memlib.identity import canonical_json
from memlib.specs import ChangeSpec, JoinedSource


class Joined:
    """A concatenation of the parts; example ids are <part>/<id>."""

    def __init__(self, sources: Mapping[str, Source], spec: JoinedSource) -> None:
        self._names, self._sources = list(sources), list(sources.values())
        self._changes = [spec.parts[name].change for name in self._names]
        self.class_names = list(self._sources[0].class_names)
        for name, source in sources.items():
            if hasattr(source, "point_dim"):
                raise DataError(
                    f"part {name} holds points; images are joined, and tables are one source: kind: table with files: "
                    "{members: a.csv, nonmembers: b.csv}"
                )
            seen, wanted = len(source.class_names), len(self.class_names)
            if seen != wanted:
                raise DataError(
                    f"part {name} has {seen} classes, but {self._names[0]} has {wanted}; all parts need the same classes"
                )
        remarks_of = [(name, getattr(source, "remarks", [])) for name, source in sources.items()]
        self.remarks = [f"part {name}: {remark}" for name, remarks in remarks_of for remark in remarks]
        self._ends = np.cumsum([len(source) for source in self._sources])

    @property
    def labels(self) -> list[int]:
        """The label of each image; an AttributeError unless all parts know their labels before decoding."""
        return [label for source in self._sources for label in source.labels]  # type: ignore[attr-defined]

    @property
    def attributes(self) -> dict[str, dict[str, str]]:
        """The values of the attributes that some parts know, by example id."""
        joined: dict[str, dict[str, str]] = {}
        for part, source in zip(self._names, self._sources, strict=True):
            for name, values in getattr(source, "attributes", {}).items():
                joined.setdefault(name, {}).update({f"{part}/{example}": value for example, value in values.items()})
        return joined

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Example:
        part = int(np.searchsorted(self._ends, index, side="right"))
        name, change = self._names[part], self._changes[part]
        try:
            example = self._sources[part][index - int(self._ends[part - 1] if part else 0)]
        except UnreadableImage as error:
            raise UnreadableImage(f"{name}/{error.example_id}", error.label, error.reason) from error
        image = example.image if change is None else changed_image(example.image, change)
        return replace(example, example_id=f"{name}/{example.example_id}", image=image)

    def content_digest(self) -> str:
        """Return the digests of all parts; the changes are in the spec."""
        digests = [source.content_digest() for source in self._sources]
        return canonical_json(list(zip(self._names, digests, strict=True)))


def changed_image(image: NDArray[np.uint8], change: ChangeSpec) -> NDArray[np.uint8]:
    """Return an image (height, width, 3) after the given change."""
    values = image.astype(np.float64) / 255
    if change.invert:
        values = 1 - values
    values = (values**change.gamma - 0.5) * change.contrast + 0.5 + change.brightness
    if change.blur:
        values = scipy.ndimage.gaussian_filter(values, sigma=(change.blur, change.blur, 0), mode="nearest")
    if change.pixelate > 1:
        side = change.pixelate
        rows, columns = (np.arange(0, length, side) for length in values.shape[:2])
        counts = [np.diff([*starts, length]) for starts, length in zip((rows, columns), values.shape[:2], strict=True)]
        means = np.add.reduceat(np.add.reduceat(values, rows, axis=0), columns, axis=1)
        means /= (counts[0][:, None] * counts[1])[..., None]
        values = means.repeat(counts[0], axis=0).repeat(counts[1], axis=1)
    changed: NDArray[np.uint8] = (values.clip(0, 1) * 255).round().astype(np.uint8)
    return changed
