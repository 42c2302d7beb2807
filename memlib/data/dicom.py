"""Decoding of DICOM files, such as X-rays, with their window and photometric interpretation.

Source: DICOM PS3.3, C.7.6.3.1.2 (photometric interpretation), C.11.1 (modality LUT), C.11.2.1 (VOI LUT and window).
"""

import io
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memlib.data.bounds import most_pixels
from memlib.errors import UserError

MAGIC, AT = b"DICM", 128


def is_dicom(data: bytes) -> bool:
    """Return True if the bytes are a DICOM file, in which "DICM" follows the preamble."""
    return data[AT : AT + len(MAGIC)] == MAGIC


def read_dicom(data: bytes) -> tuple[NDArray[Any], tuple[float, float] | None, int, int]:
    """Decode the first picture of a DICOM file.

    Returns:
        RGB pixels (height, width, 3) uint8, or intensities (height, width), where larger is brighter; the intensities of
        black and white, or None if the file does not state them; bits per channel; number of pictures in the file.

    Raises:
        UserError: when pydicom is not installed.
        ValueError, or another error of pydicom: for files that cannot be decoded.
    """
    try:
        import pydicom
        from pydicom.pixels.processing import apply_modality_lut
        from pydicom.pixels.utils import pixel_array
    except ImportError as error:
        raise UserError("DICOM files need pydicom: pip install 'memlib[dicom]'") from error
    _check_inflated(data)
    file: Any = pydicom.dcmread(io.BytesIO(data))
    if int(file.Rows) * int(file.Columns) > most_pixels():
        raise ValueError(
            f"{file.Columns} x {file.Rows} pixels exceed the limit; if the size is right, raise MEMLIB_MAX_PIXELS"
        )
    stored, bits = pixel_array(file, index=0), int(file.BitsStored)
    count = int(file.get("NumberOfFrames") or 1)
    kind = str(file.PhotometricInterpretation)
    if kind == "PALETTE COLOR":
        from pydicom.pixels.processing import apply_color_lut

        colours = apply_color_lut(stored, file)
        return _eight_bits(colours, int(file.RedPaletteColorLookupTableDescriptor[2])), None, 8, count
    if stored.ndim == 3:
        return _eight_bits(stored, bits), None, bits, count
    values = np.asarray(apply_modality_lut(stored, file), dtype=np.float64)
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if file.PixelRepresentation else (0, 2**bits - 1)
    ends = np.asarray(apply_modality_lut(np.array([low, high], dtype=stored.dtype), file), dtype=np.float64)
    values, window = _windowed(values, file)
    if kind == "MONOCHROME1":  # the smallest value is white
        total = float(ends.sum()) if window is None or window[1] != LUT_TOP else LUT_TOP
        values, window = total - values, None if window is None else (total - window[1], total - window[0])
    whole = np.array_equal(values, np.round(values))
    return values.astype(np.int32 if whole else np.float32), window, bits, count


DEFLATED = b"1.2.840.10008.1.2.1.99"  # transfer syntax
PIECE = 2**20


def _check_inflated(data: bytes) -> None:
    """Inflate a deflated file piece by piece, and refuse one that is larger than any picture; pydicom would inflate it "
    "whole."""
    length = AT + len(MAGIC)
    end = length + 12 + int.from_bytes(data[length + 8 : length + 12], "little")  # (0002,0000): length of the group
    if DEFLATED not in data[:end]:
        return
    most, size, inflating, rest = 6 * most_pixels() + PIECE, 0, zlib.decompressobj(-zlib.MAX_WBITS), data[end:]
    while rest and not inflating.eof:
        size += len(inflating.decompress(rest, PIECE))
        rest = inflating.unconsumed_tail
        if size > most:
            raise ValueError(f"it inflates to more than {most:,} bytes; if the size is right, raise MEMLIB_MAX_PIXELS")


LUT_TOP = 65535.0  # white of images with a VOI lookup table


def _windowed(values: NDArray[np.float64], file: Any) -> tuple[NDArray[np.float64], tuple[float, float] | None]:
    """Apply the file's VOI lookup table, if any; return the intensities, and the stated window (black, white) or None."""
    if file.get("WindowCenter") is not None and file.get("WindowWidth") is not None:
        centre, width = (float(np.atleast_1d(file[name].value)[0]) for name in ("WindowCenter", "WindowWidth"))
        if str(file.get("VOILUTFunction") or "LINEAR") == "LINEAR":  # C.11.2.1.2.1
            centre, width = centre - 0.5, max(width - 1, 1e-6)
        return values, (centre - width / 2, centre + width / 2)
    if file.get("VOILUTSequence"):
        from pydicom.pixels.processing import apply_voi

        bits = int(file.VOILUTSequence[0].LUTDescriptor[2])
        looked_up = np.asarray(apply_voi(values.astype(np.int64), file), dtype=np.float64)
        return np.round(looked_up / (2**bits - 1) * LUT_TOP), (0.0, LUT_TOP)
    return values, None


def _eight_bits(colours: NDArray[Any], bits: int) -> NDArray[np.uint8]:
    pixels: NDArray[np.uint8] = (colours.astype(np.float64) / (2**bits - 1) * 255).round().astype(np.uint8)
    return pixels
