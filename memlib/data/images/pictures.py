"""Decoding of images to pixels, or to intensities that are scaled once for the whole source.

Known oddities of an image are corrected and counted: it is rotated as EXIF says, transparency is drawn on white, and only
the first of several pictures is used. Images with any other problem are refused with a message.
"""

import io
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from memlib.data.bounds import check_pixels
from memlib.data.images.dicom import is_dicom, read_dicom, states_in_frames, states_no_window, states_padding
from memlib.data.opening import LFS, POINTER
from memlib.errors import UserError

LEAST_SIDE, MOST_SLENDER = 4, 50  # minimum shorter side in pixels, and maximum aspect ratio, of an image
ORIENTATION = 0x0112  # EXIF's tag
ROTATED = "rotated as EXIF says"
SEVERAL = "the first of several pictures"
TRANSPARENT = "drawn on white, as it is transparent"
DEEP = "more than 8 bits a channel"
DEEP_COLOUR = "more than 8 bits a channel, in colour or transparent"
WHITE_IS_ZERO = "inverted, as its zeros are white"
STATED_DEPTH = "scaled by the depth that it states, or without preamble (DICOM)"
DEEP_TIFF_COLOUR = "more than 8 bits a channel in colour (TIFF), which is refused"
ROTATED_BOXES = "boxes of an image that is rotated as EXIF says, which are refused"
FRAMES = "scaled as its first frame states (DICOM)"
PADDED = "values that fill the frame around a picture (DICOM), shown as its darkest pixel"
DICOM_ODDITIES = {STATED_DEPTH: states_no_window, FRAMES: states_in_frames, PADDED: states_padding}
FRACTIONS = "boxes that end within a pixel, rounded outwards"
CAPITALS = "names of XML elements in capitals"
READINGS = (
    (":5", frozenset({CAPITALS, PADDED})),
    (":4", frozenset({FRAMES, DEEP_TIFF_COLOUR, ROTATED_BOXES})),
    (":3", frozenset({DEEP_COLOUR, WHITE_IS_ZERO, STATED_DEPTH, FRACTIONS})),
    (":2", frozenset({ROTATED, TRANSPARENT, DEEP})),
)
"""Marks of the digests of sources, newest first, each with the oddities that versions before the mark decoded differently."""
FORMATS = ("PNG", "JPEG", "MPO", "GIF", "BMP", "TIFF", "WEBP", "PPM", "JPEG2000", "AVIF")  # Pillow's names
QUOTED = re.compile(r"""b?(['"`]).*\1""")
BAND = 256  # rows
warnings.filterwarnings("ignore", module=r"(PIL|pydicom)\b")  # they quote the file, and `check_pixels` refuses large pictures
PHOTOMETRIC, BITS_PER_SAMPLE = 262, 258  # TIFF's tags
DEEP_MODES = ("RGB", "LA", "RGBA")  # Pillow's modes of which it keeps 8 of 16 bits
DEEP_TIFF = (*DEEP_MODES, "RGBX", "CMYK")
INTENSITIES = ("I", "F")  # Pillow's modes with 16 or 32 bits or floats, including I;16 and its variants
TRANSPOSITIONS: Mapping[int, Image.Transpose] = MappingProxyType(
    {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_270,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_90,
    }
)


class Undecodable(ValueError):
    """Error for data that cannot be decoded or is not an image; the message says why."""


@dataclass(frozen=True)
class Picture:
    """A decoded image."""

    #: (height, width, 3) uint8 RGB; or, where more than 8 bits are stored, intensities (height, width) uint16, int32 or
    #: float32, whose range is known only for the source as a whole.
    pixels: NDArray[Any]
    stored_size: tuple[int, int]  #: width and height as stored, before EXIF rotation.
    orientation: int  #: EXIF orientation, 1 if there is none.
    bits: int  #: bits per channel, as stored.
    oddities: tuple[str, ...]  #: descriptions of what was corrected.
    window: tuple[float, float] | None = None  #: intensities of black and white, if the file states them.


def read_picture(data: bytes | Image.Image) -> Picture:
    """Decode an image of any mode: grey, CMYK, palette, transparent, 16 bit, floats.

    Args:
        data: encoded bytes, or an image opened by the caller, whose orientation is assumed to be corrected already.

    Raises:
        Undecodable: for truncated or otherwise undecodable data, and for data that is not a picture.
    """
    try:
        if isinstance(data, bytes) and is_dicom(data):
            return _read_dicom(data)
        if isinstance(data, bytes) and data.startswith(LFS):
            raise Undecodable(POINTER)
        opened = isinstance(data, Image.Image)
        image = data if isinstance(data, Image.Image) else open_image(io.BytesIO(data))
        check_pixels(image)
        _check_shape(image.size)
        if _is_deep_tiff(image):
            raise Undecodable("stores more than 8 bits a channel in colour (TIFF), of which 8 would be lost; save it as PNG")
        deep = data if isinstance(data, bytes) and _is_deep_colour(image) else None
        return _read(image, 1 if opened else _orientation(image), deep)
    except (Undecodable, UserError):
        raise
    except UnidentifiedImageError as error:  # Pillow's message holds a memory address that differs each time
        raise Undecodable("cannot be decoded (not a known image format)") from error
    except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError, ... for broken files
        raise Undecodable(f"cannot be decoded ({_said(error)})") from error


def open_image(file: Any) -> Image.Image:
    """Open an image by Pillow, of the formats of image files alone: others' readers run programs, as Ghostscript for EPS.

    Args:
        file: path, or file opened for reading.

    Raises:
        UnidentifiedImageError, OSError, ValueError, ...: what Pillow raises for files that it cannot read.
    """
    Image.init()
    return Image.open(file, formats=[name for name in FORMATS if name in Image.OPEN])


def _said(error: Exception) -> str:
    """Return what an error of a decoder says, without what it may quote of the file: text in quotes, or after a colon."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return QUOTED.sub("...", lines[0].partition(":")[0])


def oddities_of(data: bytes | Image.Image) -> tuple[str, ...]:
    """Return the oddities that `read_picture` would correct, as far as the header shows them; none if it is unreadable."""
    try:
        if isinstance(data, bytes) and is_dicom(data):
            return tuple(what for what, tells in DICOM_ODDITIES.items() if tells(data))
        image = data if isinstance(data, Image.Image) else open_image(io.BytesIO(data))
        is_deep = _is_deep_colour(image)
        more = (DEEP_TIFF_COLOUR,) if _is_deep_tiff(image) else ()
        return (*_oddities(image, _orientation(image), is_deep=is_deep), *more)
    except Exception:  # the file is reported when it is decoded
        return ()


def _read_dicom(data: bytes) -> Picture:
    pixels, window, bits, count = read_dicom(data)
    size = (pixels.shape[1], pixels.shape[0])
    _check_shape(size)
    oddities = [what for what, seen in ((SEVERAL, count > 1), (DEEP, bits > 8)) if seen]
    return Picture(pixels, size, 1, bits, tuple(oddities), window)


def _check_shape(size: tuple[int, int]) -> None:
    short, long = sorted(size)
    if short < LEAST_SIDE or long > MOST_SLENDER * short:
        raise Undecodable(f"is {size[0]} x {size[1]} pixels, too small or too elongated for a picture")


def _is_deep_colour(image: Image.Image) -> bool:
    """Return True if Pillow would keep only 8 of 16 bits; the image must not be loaded beyond its header."""
    tiles: Any = getattr(image, "tile", None)
    return bool(image.format == "PNG" and image.mode in DEEP_MODES and tiles and str(tiles[0][3]).endswith(";16B"))


def _is_deep_tiff(image: Image.Image) -> bool:
    """Return True for a TIFF in colour of which Pillow would keep only 8 of more bits a channel."""
    tags: Any = getattr(image, "tag_v2", {})
    return image.format == "TIFF" and image.mode in DEEP_TIFF and max(np.atleast_1d(tags.get(BITS_PER_SAMPLE, 8))) > 8


def _oddities(image: Image.Image, orientation: int, *, is_deep: bool) -> tuple[str, ...]:
    oddities = []
    if orientation in TRANSPOSITIONS:
        oddities.append(ROTATED)
    if _has_several(image):
        oddities.append(SEVERAL)
    if image.has_transparency_data:
        oddities.append(TRANSPARENT)
    if image.mode.startswith(INTENSITIES):
        oddities.append(DEEP)
        tags: Any = getattr(image, "tag_v2", {})
        if image.mode.startswith("I;16") and tags.get(PHOTOMETRIC) == 0:
            oddities.append(WHITE_IS_ZERO)
    if is_deep:
        oddities.append(DEEP_COLOUR)
    return tuple(oddities)


def _has_several(image: Image.Image) -> bool:
    """Return whether a file holds more than one picture; not how many, for which some formats must be read whole."""
    if image.format != "TIFF":
        return bool(getattr(image, "is_animated", False))
    try:
        image.seek(1)
    except EOFError:
        return False
    image.seek(0)
    return True


def _orientation(image: Image.Image) -> int:
    try:
        orientation = image.getexif().get(ORIENTATION, 1)
    except Exception:  # treat damaged EXIF, on which Pillow may raise anything, as missing
        return 1
    return orientation if orientation in TRANSPOSITIONS else 1


def _read(image: Image.Image, orientation: int, deep: bytes | None) -> Picture:
    oddities, size = _oddities(image, orientation, is_deep=deep is not None), image.size
    if deep is not None:
        return Picture(_deep_colours(deep, orientation), size, orientation, 16, oddities)
    if SEVERAL in oddities:
        image.seek(0)
    image.load()
    if orientation in TRANSPOSITIONS:
        image = image.transpose(TRANSPOSITIONS[orientation])
    if image.mode.startswith(INTENSITIES):
        values = _intensities(image)
        values = (2**16 - 1 - values.astype(np.int32)).astype(np.uint16) if WHITE_IS_ZERO in oddities else values
        return Picture(values, size, orientation, 32 if image.mode in INTENSITIES else 16, oddities)
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
    return Picture(np.asarray(image if image.mode == "RGB" else image.convert("RGB")), size, orientation, 8, oddities)


def _deep_colours(data: bytes, orientation: int) -> NDArray[np.uint16]:
    """Return the intensities (height, width) or (height, width, 3) of a PNG file with 16 bits per channel, drawn on white."""
    import torch
    from torchvision.io import ImageReadMode, decode_png

    encoded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    values: NDArray[np.uint16] = decode_png(encoded, mode=ImageReadMode.UNCHANGED).numpy()
    colours, alpha = values[: len(values) - 1 + len(values) % 2], values[-1:] if len(values) % 2 == 0 else None
    if alpha is not None and bool((alpha < 2**16 - 1).any()):
        white = next(2**bits - 1 for bits in (8, 10, 12, 14, 16) if colours.max(initial=0) < 2**bits)
        for top in range(0, colours.shape[1], BAND):  # floats of the whole picture would take eight times its room
            band = slice(top, top + BAND)
            share = alpha[:, band] / (2**16 - 1)
            colours[:, band] = (colours[:, band] * share + white * (1 - share)).round().astype(np.uint16)
    seen = colours.transpose(1, 2, 0)
    seen = TURNED[orientation](seen) if orientation in TURNED else seen
    return np.ascontiguousarray(seen if seen.shape[2] == 3 else seen[:, :, 0])


TURNED: Mapping[int, Callable[[NDArray[Any]], NDArray[Any]]] = MappingProxyType(
    {
        2: np.fliplr,
        3: lambda picture: np.rot90(picture, 2),
        4: np.flipud,
        5: lambda picture: picture.transpose(1, 0, 2),
        6: lambda picture: np.rot90(picture, 3),
        7: lambda picture: np.rot90(picture, 2).transpose(1, 0, 2),
        8: np.rot90,
    }
)
"""Changes of an array that correct EXIF's orientations, as TRANSPOSITIONS do for Pillow's images."""


def _intensities(image: Image.Image) -> NDArray[Any]:
    values = np.asarray(image)
    if values.dtype.kind == "f":
        values = values.astype(np.float32)
        if not np.isfinite(values).all():
            raise Undecodable("has values that are not finite")
    return values


def turned_boxes(boxes: NDArray[np.int64], stored_size: tuple[int, int], orientation: int) -> NDArray[np.int64]:
    """Transform boxes of the stored picture to boxes of the picture after EXIF rotation.

    Args:
        boxes: (num_boxes, 4) half-open rectangles x0, y0, x1, y1.
        stored_size: width and height of the stored picture.
        orientation: EXIF orientation.
    """
    width, height = stored_size
    x0, y0, x1, y1 = boxes.T
    left, top = (width - x1, width - x0), (height - y1, height - y0)
    turned = {
        1: (x0, y0, x1, y1),
        2: (left[0], y0, left[1], y1),
        3: (left[0], top[0], left[1], top[1]),
        4: (x0, top[0], x1, top[1]),
        5: (y0, x0, y1, x1),
        6: (top[0], x0, top[1], x1),
        7: (top[0], left[0], top[1], left[1]),
        8: (y0, left[0], y1, left[1]),
    }
    return np.stack(turned[orientation], axis=1)
