"""Images in NumPy .npz files, such as those of MedMNIST."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from memlib.data.bounds import UNREADABLE_ZIP, check_arrays
from memlib.data.examples import NO_BOXES, Example, numbered_classes
from memlib.errors import DataError, UserError
from memlib.identity import file_digest
from memlib.specs import NpzSource


class NpzImages:
    """Images in the rows of an array; example ids are <array>-<row>."""

    def __init__(self, spec: NpzSource) -> None:
        self._spec = spec
        path = Path(spec.path)
        try:
            check_arrays(path)
            with np.load(path, allow_pickle=False) as file:
                missing = [name for name in (spec.images, spec.labels) if name not in file]
                if missing:
                    raise DataError(f"{path} has no array {missing[0]!r}; it has {', '.join(file.files)}")
                self._images: NDArray[np.uint8] = file[spec.images]
                labels = file[spec.labels]
        except UserError:
            raise
        except UNREADABLE_ZIP as error:
            raise DataError(f"cannot read arrays from {path} ({error})") from error
        if self._images.dtype != np.uint8 or self._images.ndim not in (3, 4):
            seen = f"{self._images.dtype} {self._images.shape}"
            raise DataError(f"{path}: {spec.images} should be (count, height, width[, 3]) uint8, not {seen}")
        if labels.size != len(self._images) or not np.issubdtype(labels.dtype, np.integer):
            raise DataError(
                f"{path}: {spec.labels} should hold {len(self._images)} class indices, but has shape {labels.shape}"
            )
        self.labels: list[int] = labels.reshape(-1).astype(np.int64).tolist()
        largest = max(self.labels, default=-1)
        if spec.class_names and len(spec.class_names) <= largest:
            raise DataError(f"{path} has {largest + 1} classes, but class_names lists {len(spec.class_names)}")
        self.class_names = list(spec.class_names) or numbered_classes(largest, str(path))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Example:
        image = self._images[index]
        if image.ndim == 2:
            image = np.repeat(image[..., None], 3, axis=2)
        return Example(f"{self._spec.images}-{index:07d}", image, self.labels[index], NO_BOXES)

    def content_digest(self) -> str:
        """Return the digest of the file."""
        return file_digest(Path(self._spec.path))
