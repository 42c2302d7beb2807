"""Array-like access to stored images, even if they are stored in blocks, or as PNG or JPEG files."""

import io
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike, NDArray
from PIL import Image

from memlib.specs.cores import cores

Storage = Literal["raw", "png", "jpeg"]
IMAGES, ENCODED = "images.npy", "images.arrow"
QUALITY = 95  # of JPEG files; colours are kept at full resolution
BATCH = 16  # files per Arrow record batch, which is read as a whole, and maximum per task of a thread
FEW = 8  # up to this number of files, threads are not worthwhile


def are_images(examples: "NDArray[Any] | ReadRows") -> bool:
    """Return True if stored examples are images (num, height, width, channels), False for points (num, dim)."""
    return len(examples.shape) == 4


class ReadRows(ABC):
    """An array-like whose rows are read on access."""

    def __len__(self) -> int:
        return self.shape[0]

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole array."""

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """The type of the array's elements."""

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @abstractmethod
    def read(self, rows: NDArray[np.int64], found: NDArray[Any]) -> None:
        """Read rows, each in [0, len(self)), into the array `found`."""

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(self)))
        wanted = np.asarray(rows)
        if wanted.dtype == bool:
            wanted = np.flatnonzero(wanted)
        flat = np.where(wanted < 0, wanted + len(self), wanted).reshape(-1).astype(np.int64)
        if len(flat) and (flat.min() < 0 or flat.max() >= len(self)):
            first = wanted.reshape(-1)[(flat < 0) | (flat >= len(self))][0]
            raise IndexError(f"row {first} is out of range for {len(self)} examples")
        found = np.empty((len(flat), *self.shape[1:]), dtype=self.dtype)
        self.read(flat, found)
        return found.reshape(*wanted.shape, *self.shape[1:])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self[:], dtype=dtype)


class Blocks(ReadRows):
    """Images stored in consecutive blocks, each of which is opened on first access.

    Args:
        counts: number of images of each block.
        read: function that opens a block, memory-mapped.
    """

    def __init__(self, counts: Sequence[int], read: Callable[[int], NDArray[Any]]) -> None:
        self._starts, self._read = np.cumsum([0, *counts]), read
        self._open: dict[int, NDArray[Any]] = {}

    def _block(self, number: int) -> NDArray[Any]:
        if number not in self._open:
            self._open[number] = self._read(number)
        return self._open[number]

    def __len__(self) -> int:
        return int(self._starts[-1])

    def are_in_few(self, rows: NDArray[np.int64], most: int) -> NDArray[np.bool_]:
        """Return a mask of the rows in at most `most` evenly spaced blocks, so that reading them opens only these blocks."""
        count = len(self._starts) - 1
        chosen = np.unique(np.linspace(0, count - 1, min(most, count)).astype(int))
        return np.isin(np.searchsorted(self._starts, rows, side="right") - 1, chosen)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of all blocks together."""
        return (len(self), *self._block(0).shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the first block."""
        return self._block(0).dtype

    def read(self, rows: NDArray[np.int64], found: NDArray[Any]) -> None:
        """Read rows, block by block."""
        blocks = np.searchsorted(self._starts, rows, side="right") - 1
        for number in np.unique(blocks):
            here = blocks == number
            found[here] = self._block(int(number))[rows[here] - self._starts[number]]


class Ranges(ReadRows):
    """Images of a file, each read by its byte range; unlike whole artifacts, the bytes are not verified against a digest.

    Args:
        file: a file written by `storing`.
        name: name of the file.
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file, self._batches = file, None
        self._shape: tuple[int, ...]
        if name == ENCODED:
            self._batches = pa.ipc.open_file(pa.PythonFile(file, mode="r"))
            side, channels = _image_shape(self._batches.schema)
            first = self._batches.get_batch(0).num_rows
            count = first * (self._batches.num_record_batches - 1)
            count += self._batches.get_batch(self._batches.num_record_batches - 1).num_rows
            self._shape, self._dtype = (count, side, side, channels), np.dtype(np.uint8)
            return
        version = np.lib.format.read_magic(file)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        self._shape, _, self._dtype = read_header(file)
        self._start = file.tell()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole file."""
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the pixels."""
        return self._dtype

    def read(self, rows: NDArray[np.int64], found: NDArray[Any]) -> None:
        """Read rows one by one."""
        for place, row in enumerate(rows.tolist()):
            if self._batches is None:
                size = found[place].nbytes
                self._file.seek(self._start + row * size)
                data = self._file.read(size)
                found[place] = np.frombuffer(data, dtype=self._dtype).reshape(self._shape[1:])
            else:
                found[place] = _decoded(self._batch(row // BATCH)["image"][row % BATCH].as_buffer(), self._shape[1:])

    def _batch(self, number: int) -> pa.RecordBatch:
        assert self._batches is not None
        batch = self._batches.get_batch(number)
        batch.validate(full=True)  # Arrow itself would follow damaged offsets beyond the file's bytes and end the process
        return batch


def _image_shape(schema: pa.Schema) -> tuple[int, int]:
    metadata = schema.metadata
    return int(metadata[b"side"]), int(metadata[b"channels"])


def _decoded(file: pa.Buffer, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    if not file.size:
        return np.zeros(shape, dtype=np.uint8)
    with Image.open(pa.BufferReader(file), formats=("PNG", "JPEG")) as image:
        return np.asarray(image).reshape(shape)


class Encoded(ReadRows):
    """Images stored as PNG or JPEG files in one Arrow file, which is memory-mapped; images are decoded on access.

    Args:
        path: an Arrow file with the column `image` (binary; empty for an unreadable image, which is returned black) and the
            side and channels of all images in its metadata.
    """

    def __init__(self, path: Path) -> None:
        with pa.memory_map(str(path)) as source:
            table = pa.ipc.open_file(source).read_all()
        self._files = table["image"]
        side, channels = _image_shape(table.schema)
        self._image_shape = (side, side, channels)

    @cached_property
    def _threads(self) -> int:
        return int(os.environ.get("OMP_NUM_THREADS") or 0) or cores()  # set by Ray to the cores of a part

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape (number of images, side, side, channels)."""
        return (len(self._files), *self._image_shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the pixels, uint8."""
        return np.dtype(np.uint8)

    def read(self, rows: NDArray[np.int64], found: NDArray[Any]) -> None:
        """Decode rows, in parallel if there are several cores."""

        def decode(places: range) -> None:
            for place in places:
                found[place] = _decoded(self._files[int(rows[place])].as_buffer(), self._image_shape)

        every = range(len(rows))
        if len(rows) <= FEW or self._threads == 1:
            decode(every)
            return
        size = min(BATCH, -(-len(rows) // self._threads))
        with ThreadPoolExecutor(self._threads) as pool:
            list(pool.map(decode, (every[start : start + size] for start in every[::size])))


@dataclass(frozen=True)
class Storing:
    """Functions that store examples in a file."""

    #: store an example at a position and return b"", or return it encoded, to be passed to `add`; thread-safe.
    keep: Callable[[int, NDArray[Any]], bytes]
    #: append an encoded example; called once per example, in order, with b"" for unencoded or unreadable ones.
    add: Callable[[bytes], None]


def create_array(path: Path, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
    """Create a file (.npy) for an array, and return the array, mapped into memory.

    Raises:
        OSError: when the disk has no room for it; a full disk that is noticed by writing to the memory ends the process.
    """
    array = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    if array.nbytes:
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array


@contextmanager
def storing(folder: Path, shape: tuple[int, ...], storage: Storage) -> Iterator[Storing]:
    """Open a file for writing examples, which `read_images` can read afterwards.

    Args:
        shape: (num_examples, side, side, channels) for images, uint8, or (num_examples, dim) for points, float32.
        storage: encoding of images; points are raw.
    """
    if storage == "raw":
        dtype = np.uint8 if len(shape) == 4 else np.float32
        pixels = create_array(folder / IMAGES, dtype, shape)

        def keep(position: int, example: NDArray[Any]) -> bytes:
            pixels[position] = example
            return b""

        yield Storing(keep, lambda file: None)
        pixels.flush()  # type: ignore[attr-defined]
        return
    metadata = {"side": str(shape[1]), "channels": str(shape[3])}
    schema = pa.schema([pa.field("image", pa.binary())], metadata=metadata)
    with pa.OSFile(str(folder / ENCODED), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        waiting: list[bytes] = []

        def send() -> None:
            if waiting:
                writer.write_batch(pa.record_batch([pa.array(waiting, pa.binary())], schema=schema))
                waiting.clear()

        def add(file: bytes) -> None:
            waiting.append(file)
            if len(waiting) == BATCH:
                send()

        yield Storing(lambda position, image: _encoded(image, storage), add)
        send()


def _encoded(image: NDArray[np.uint8], storage: Storage) -> bytes:
    """Encode an image (side, side, channels) as a PNG or JPEG file."""
    with io.BytesIO() as file:
        picture = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
        if storage == "png":
            picture.save(file, "PNG")
        else:
            picture.save(file, "JPEG", quality=QUALITY, subsampling=0)
        return file.getvalue()


def read_images(path: Path, name: str = IMAGES) -> NDArray[Any]:
    """Return the stored examples, memory-mapped.

    Images are (num_examples, size, size, channels) uint8, points (num_examples, dim) float32, windows of a text (num_windows,
    window) integers.

    Args:
        path: path of the file, or of a copy under another name.
        name: original name of the file.
    """
    if name == ENCODED:
        return Encoded(path)  # type: ignore[return-value]
    images: NDArray[Any] = np.load(path, mmap_mode="r")
    return images
