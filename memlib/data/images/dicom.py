"""Decoding of DICOM files, such as X-rays, with their window and photometric interpretation.

Source: DICOM PS3.3, C.7.6.3.1.2 (photometric interpretation), C.11.1 (modality LUT), C.11.2.1 (VOI LUT and window).
"""

import io
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memlib.data.bounds import most_pixels
from memlib.errors import DataError

FRAME_MACROS = {
    "PixelValueTransformationSequence": ("RescaleIntercept", "RescaleSlope"),
    "FrameVOILUTSequence": ("WindowCenter", "WindowWidth", "VOILUTFunction"),
}
MAGIC, AT = b"DICM", 128
FIRST_GROUPS = (b"\x02\x00", b"\x08\x00")  # of a data set without preamble: file meta information, identification
NEEDED = ("SOPClassUID", "Rows", "Columns", "BitsAllocated", "PixelData")


def is_dicom(data: bytes) -> bool:
    """Return True if the bytes are a DICOM file: "DICM" follows the preamble, or there is a data set without preamble."""
    return _has_preamble(data) or data[:2] in FIRST_GROUPS


def _has_preamble(data: bytes) -> bool:
    return data[AT : AT + len(MAGIC)] == MAGIC


def states_no_window(data: bytes) -> bool:
    """Return True for a DICOM file without preamble, or whose grey values are scaled by its stated bit depth (no window)."""
    try:
        import pydicom

        _check_inflated(data)
        file: Any = pydicom.dcmread(io.BytesIO(data), stop_before_pixels=True, force=True)
        return not _has_preamble(data) or (_is_plain(file) and _has_no_window(file))
    except Exception:  # the file is reported when it is decoded
        return False


def states_in_frames(data: bytes) -> bool:
    """Return True for a DICOM file that states scale or window for its frames, as enhanced CT, MR and tomosynthesis do."""
    try:
        import pydicom

        _check_inflated(data)
        return _take_from_frames(pydicom.dcmread(io.BytesIO(data), stop_before_pixels=True, force=True))
    except Exception:  # the file is reported when it is decoded
        return False


def _take_from_frames(file: Any) -> bool:
    """Take over what a file states for its first frame, or for all frames; return whether there was anything.

    Source: DICOM PS3.3, C.7.6.16.2.9 (pixel value transformation), C.7.6.16.2.10 (frame VOI LUT).
    """
    taken = False
    for place in ("PerFrameFunctionalGroupsSequence", "SharedFunctionalGroupsSequence"):
        groups = file.get(place)
        for macro, names in FRAME_MACROS.items():
            stated = groups[0].get(macro) if groups else None
            for name in names:
                if stated and stated[0].get(name) is not None and file.get(name) is None:
                    setattr(file, name, stated[0].get(name))
                    taken = True
    return taken


def _is_plain(file: Any) -> bool:
    """Return whether the stored values are what a picture shows: unsigned grey values that no modality LUT changes."""
    slope, intercept = file.get("RescaleSlope"), file.get("RescaleIntercept")
    return (
        str(file.get("PhotometricInterpretation")) in ("MONOCHROME1", "MONOCHROME2")
        and not file.get("PixelRepresentation")
        and not file.get("ModalityLUTSequence")
        and float(1 if slope is None else slope) == 1
        and float(0 if intercept is None else intercept) == 0
    )


def _has_no_window(file: Any) -> bool:
    return not file.get("VOILUTSequence") and (file.get("WindowCenter") is None or file.get("WindowWidth") is None)


def _without_preamble(data: bytes) -> Any:
    """Read a data set without preamble.

    Raises:
        ValueError: when the bytes are no picture, as pydicom reads any bytes as some data set.
    """
    import pydicom

    file: Any = pydicom.dcmread(io.BytesIO(data), force=True)
    if absent := [name for name in NEEDED if name not in file]:
        raise ValueError(f"it has no DICOM preamble, and no {absent[0]}")
    syntax = pydicom.uid.ImplicitVRLittleEndian if file.is_implicit_VR else pydicom.uid.ExplicitVRLittleEndian
    if file.file_meta.get("TransferSyntaxUID") is None:
        file.file_meta.TransferSyntaxUID = syntax
        values = (
            int(file.Rows) * int(file.Columns) * int(file.get("SamplesPerPixel") or 1) * int(file.get("NumberOfFrames") or 1)
        )
        if len(file.PixelData) not in (size := -(-values * int(file.BitsAllocated) // 8), size + size % 2):
            raise ValueError(f"it has no DICOM preamble, and {len(file.PixelData)} bytes of pixels where {size} were stated")
    return file


def read_dicom(data: bytes) -> tuple[NDArray[Any], tuple[float, float] | None, int, int]:
    """Decode the first picture of a DICOM file.

    Returns:
        RGB pixels (height, width, 3) uint8, or intensities (height, width), where larger is brighter; the intensities of
        black and white (by BitsStored if the file has no window), or None if the file does not state them; bits per channel;
        number of pictures in the file.

    Raises:
        DataError: when pydicom is not installed.
        ValueError, or another error of pydicom: for files that cannot be decoded.
    """
    try:
        import pydicom
        from pydicom.pixels.processing import apply_modality_lut
        from pydicom.pixels.utils import pixel_array
    except ImportError as error:
        raise DataError("DICOM files need pydicom: pip install -e '.[dicom]' in memlib's folder") from error
    _check_inflated(data)
    file: Any = pydicom.dcmread(io.BytesIO(data)) if _has_preamble(data) else _without_preamble(data)
    if int(file.Rows) * int(file.Columns) > most_pixels():
        raise ValueError(
            f"{file.Columns} x {file.Rows} pixels exceed the limit; if the size is right, raise MEMLIB_MAX_PIXELS"
        )
    _take_from_frames(file)
    _check_decoder(file)
    stored, bits = pixel_array(file, index=0), int(file.BitsStored)
    padded = _padded(stored, file)
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
    if padded.any() and not padded.all():
        values[padded] = values[~padded].min()  # as dark as the darkest pixel of the picture
    if window is None and _is_plain(file):
        if bits <= 8:
            return np.repeat(_eight_bits(values, bits)[..., None], 3, axis=2), None, bits, count
        window = (0.0, float(2**bits - 1))
    whole = np.array_equal(values, np.round(values))
    return values.astype(np.int32 if whole else np.float32), window, bits, count


def _padded(stored: NDArray[Any], file: Any) -> NDArray[np.bool_]:
    """Return which stored values only fill the frame around the picture.

    Source: DICOM PS3.3, C.7.5.1.1.2 (pixel padding value and range limit).
    """
    value = file.get("PixelPaddingValue")
    if value is None or stored.ndim != 2:
        return np.zeros(stored.shape, dtype=bool)
    limit, size = file.get("PixelPaddingRangeLimit"), 2 ** int(file.BitsAllocated)
    low, high = sorted(_as_stored(int(each), size, stored) for each in (value, value if limit is None else limit))
    padded: NDArray[np.bool_] = (stored >= low) & (stored <= high)
    return padded


def _as_stored(value: int, size: int, stored: NDArray[Any]) -> int:
    """Return a padding value as the pixels have it: files state signed ones as unsigned numbers, and the other way round."""
    is_signed = np.issubdtype(stored.dtype, np.signedinteger)
    value %= size
    return value - size if is_signed and value >= size // 2 else value


def states_padding(data: bytes) -> bool:
    """Return True for a DICOM file that states which value fills the frame around its picture."""
    try:
        import pydicom

        _check_inflated(data)
        return "PixelPaddingValue" in pydicom.dcmread(io.BytesIO(data), stop_before_pixels=True, force=True)
    except Exception:  # the file is reported when it is decoded
        return False


def _check_decoder(file: Any) -> None:
    """Raise DataError if the decoder of the file's compression is not installed, ValueError if there is none."""
    from pydicom.pixels.decoders.base import get_decoder

    syntax = file.file_meta.TransferSyntaxUID
    try:
        decoder = get_decoder(syntax)
    except NotImplementedError as error:
        known = syntax.name if syntax.name != str(syntax) else "which is unknown"
        raise ValueError(f"there is no decoder for its transfer syntax, {known}") from error
    if not (decoder.is_native or decoder.is_available):
        raise DataError(
            f"DICOM files compressed as {syntax.name} need a decoder: pip install -e '.[dicom]' in memlib's folder"
        )


DEFLATED = b"1.2.840.10008.1.2.1.99"  # transfer syntax
PIECE = 2**20


def _check_inflated(data: bytes) -> None:
    """Inflate a deflated file piece by piece, and refuse one larger than any picture; pydicom would inflate it whole."""
    end = _end_of_meta(data)
    if DEFLATED not in data[:end]:
        return
    most, size, inflating, rest = 6 * most_pixels() + PIECE, 0, zlib.decompressobj(-zlib.MAX_WBITS), data[end:]
    while rest and not inflating.eof:
        size += len(inflating.decompress(rest, PIECE))
        rest = inflating.unconsumed_tail
        if size > most:
            raise ValueError(f"it inflates to more than {most:,} bytes; if the size is right, raise MEMLIB_MAX_PIXELS")


def _end_of_meta(data: bytes) -> int:
    """Return where the file meta information (group 2, explicit VR) ends; the length that it states may be wrong."""
    at = AT + len(MAGIC) if _has_preamble(data) else 0
    while data[at : at + 2] == b"\x02\x00" and at + 12 <= len(data):
        is_long = data[at + 4 : at + 6] in _LONG
        start, length = (at + 12, data[at + 8 : at + 12]) if is_long else (at + 8, data[at + 6 : at + 8])
        at = start + int.from_bytes(length, "little")
    return at


_LONG = b"OB OW OF OD OL OV SQ UC UN UR UT SV UV".split()  # forms with 4 bytes of length
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
