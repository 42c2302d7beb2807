"""DICOM files made by the tests; pydicom's own windowing is the oracle."""

import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from memlib.data.data_summary import preview
from memlib.data.datasets import open_source
from memlib.data.images.pictures import DEEP, FRAMES, SEVERAL, STATED_DEPTH, oddities_of
from memlib.errors import UserError
from memlib.specs import ImageFolderSource, IntensitySpec

pydicom = pytest.importorskip("pydicom", reason="DICOM files need pydicom")
VALUES = (np.arange(12 * 16, dtype=np.uint16).reshape(12, 16) * 21).astype(np.uint16)  # 0 to 4011


def dicom(pixels: NDArray[Any], kind: str = "MONOCHROME2", *, bits: int = 12, signed: bool = False, **said: Any) -> bytes:
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

    meta = FileMetaDataset()
    meta.TransferSyntaxUID, meta.MediaStorageSOPClassUID = ExplicitVRLittleEndian, SecondaryCaptureImageStorage
    meta.MediaStorageSOPInstanceUID = generate_uid()
    file = FileDataset(None, {}, file_meta=meta, preamble=b"\0" * 128)
    file.SOPClassUID, file.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    file.Rows, file.Columns = pixels.shape[-2:] if pixels.shape[-1] != 3 else pixels.shape[-3:-1]
    file.SamplesPerPixel = 3 if pixels.shape[-1] == 3 else 1
    if file.SamplesPerPixel == 3:
        file.PlanarConfiguration = 0
    file.PhotometricInterpretation, file.PixelRepresentation = kind, int(signed)
    file.BitsAllocated = pixels.dtype.itemsize * 8
    file.BitsStored, file.HighBit = bits, bits - 1
    for name, value in said.items():
        setattr(file, name, value)
    file.PixelData = pixels.tobytes()
    data = io.BytesIO()
    file.save_as(data, enforce_file_format=True)
    return data.getvalue()


def read(path: Path, *files: bytes, window: IntensitySpec | None = None) -> Any:
    (path / "a").mkdir(exist_ok=True)
    for number, data in enumerate(files):
        (path / "a" / f"{number}.dcm").write_bytes(data)
    return open_source(ImageFolderSource(kind="image_folder", path=str(path)), window)


def grey(values: NDArray[Any], low: float, high: float) -> NDArray[np.uint8]:
    scaled = ((values.astype(np.float64) - low) / (high - low)).clip(0, 1) * 255
    return np.repeat(scaled.round().astype(np.uint8)[..., None], 3, axis=2)


def test_scale_and_window_that_a_file_states_for_its_frames_are_read(tmp_path: Path) -> None:
    from pydicom.dataset import Dataset

    scale, window, groups = Dataset(), Dataset(), Dataset()
    scale.RescaleSlope, scale.RescaleIntercept = 2, -1000
    window.WindowCenter, window.WindowWidth, window.VOILUTFunction = 500, 3000, "LINEAR_EXACT"
    groups.PixelValueTransformationSequence, groups.FrameVOILUTSequence = [scale], [window]
    plain, enhanced = dicom(VALUES), dicom(VALUES, SharedFunctionalGroupsSequence=[groups])
    (tmp_path / "plain").mkdir()
    (tmp_path / "enhanced").mkdir()
    assert np.array_equal(read(tmp_path / "plain", plain)[0].image, grey(VALUES, 0, 4095))
    source = read(tmp_path / "enhanced", enhanced)
    assert np.array_equal(source[0].image, grey(2.0 * VALUES - 1000, -1000, 2000))
    assert source.content_digest().endswith(":4")  # versions before ignored them
    assert oddities_of(enhanced) == (STATED_DEPTH, FRAMES)


def test_the_dicom_window_is_that_of_the_file_unless_the_recipe_names_one(tmp_path: Path) -> None:
    from pydicom.pixels.processing import apply_windowing

    data = dicom(VALUES, WindowCenter=2000, WindowWidth=1000)
    source = read(tmp_path, data)
    oracle = apply_windowing(VALUES, pydicom.dcmread(io.BytesIO(data)))  # 0 to 4095
    assert np.abs(source[0].image[..., 0] - oracle / 4095 * 255).max() <= 1
    assert source[0].oddities[0] == DEEP
    assert np.array_equal(read(tmp_path, data, window=IntensitySpec(low=100, high=900))[0].image, grey(VALUES, 100, 900))


def test_dicom_values_without_a_window_are_scaled_by_the_depth_of_the_source(tmp_path: Path) -> None:
    source = read(tmp_path, dicom(VALUES), dicom(VALUES // 8))
    assert np.array_equal(source[0].image, grey(VALUES, 0, 4095))
    assert np.array_equal(source[1].image, grey(VALUES // 8, 0, 4095))


@pytest.mark.parametrize("window", [{}, {"WindowCenter": 2000, "WindowWidth": 1000}])
def test_monochrome1_images_show_the_smallest_value_white(tmp_path: Path, window: dict[str, int]) -> None:
    there = tmp_path / "2"
    there.mkdir()
    inverted = (4095 - VALUES).astype(np.uint16)
    found = read(tmp_path, dicom(VALUES, "MONOCHROME1", **window))[0].image
    straight = read(there, dicom(inverted, **(window and {"WindowCenter": 4095 - 2000 + 1, "WindowWidth": 1000})))[0].image
    assert np.array_equal(found, straight)
    assert found[0, 0, 0] == 255


def test_hounsfield_units_require_a_window_in_the_recipe(tmp_path: Path) -> None:
    data = dicom((VALUES // 4).astype(np.uint16), RescaleSlope=2, RescaleIntercept=-1024, RescaleType="HU")
    with pytest.raises(UserError, match=r"range from -1024 to 980: .*data.intensities"):
        _ = read(tmp_path, data)[0]
    found = read(tmp_path, data, window=IntensitySpec(low=-1000, high=400))[0].image
    assert np.array_equal(found, grey(VALUES // 4 * 2.0 - 1024, -1000, 400))


def test_colour_signed_and_multi_frame_dicom_files_are_read(tmp_path: Path) -> None:
    colours = np.random.default_rng(0).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    signed = VALUES.astype(np.int16) - 2000
    source = read(
        tmp_path, dicom(colours, "RGB", bits=8), dicom(np.stack([VALUES, VALUES // 2]), NumberOfFrames=2),
        dicom(signed, signed=True, WindowCenter=0, WindowWidth=4001),
    )  # fmt: skip
    assert np.array_equal(source[0].image, colours)
    assert source[1].oddities[:2] == (SEVERAL, DEEP)
    assert np.array_equal(source[1].image, grey(VALUES, 0, 4095))
    assert np.array_equal(source[2].image, grey(signed, -2000.5, 1999.5))


def test_dicom_lookup_tables_are_applied(tmp_path: Path) -> None:
    from pydicom.dataset import Dataset

    table = Dataset()
    table.LUTDescriptor, table.LUTData = [4096, 0, 16], (np.arange(4096, dtype="<u2")[::-1] * 16).astype("<u2").tobytes()
    source = read(tmp_path, dicom(VALUES, VOILUTSequence=[table]))
    expected = (4095.0 - VALUES) * 16 / 65535 * 255
    assert np.abs(source[0].image[..., 0] - expected).max() <= 1


def test_damaged_dicom_files_are_named_and_other_files_stay_readable(tmp_path: Path) -> None:
    whole = dicom(VALUES)
    source = read(tmp_path, whole[:-50], whole[:200])
    for place in range(2):
        with pytest.raises(ValueError, match=f"a/{place}.dcm: cannot be decoded"):
            _ = source[place]
    (tmp_path / "a" / "2.png").write_bytes(b"")
    Image.new("RGB", (8, 8)).save(tmp_path / "a" / "2.png")
    assert read(tmp_path)[2].image.shape == (8, 8, 3)


def test_a_deflated_file_that_inflates_beyond_any_picture_is_refused_before_it_is_inflated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tracemalloc

    from memlib.data.images.dicom import read_dicom, states_no_window

    plain = dicom(VALUES)
    file = pydicom.dcmread(io.BytesIO(plain))
    file.file_meta.TransferSyntaxUID = pydicom.uid.DeflatedExplicitVRLittleEndian
    written = io.BytesIO()
    file.save_as(written, enforce_file_format=True)
    assert np.array_equal(read_dicom(written.getvalue())[0], read_dicom(plain)[0])
    file.add_new(0x00091010, "UT", " " * 50_000_000)
    bomb = io.BytesIO()
    file.save_as(bomb, enforce_file_format=True)
    assert len(bomb.getvalue()) < 1_000_000
    monkeypatch.setenv("MEMLIB_MAX_PIXELS", "1000000")
    tracemalloc.start()
    with pytest.raises(ValueError, match="inflates to more than"):
        read_dicom(bomb.getvalue())
    assert tracemalloc.get_traced_memory()[1] < 20_000_000
    tracemalloc.stop()
    file.remove_private_tags()
    length = bomb.getvalue().index(b"\x02\x00\x00\x00UL") + 8
    lying = bomb.getvalue()[:length] + bytes(4) + bomb.getvalue()[length + 4 :]  # it says that its meta information is empty
    with pytest.raises(ValueError, match="inflates to more than"):
        read_dicom(lying)
    for hostile in (bomb.getvalue(), lying, bomb.getvalue()[132:]):  # the last one without preamble
        tracemalloc.start()
        with pytest.raises(ValueError, match="inflates to more than"):
            read_dicom(hostile)
        assert not states_no_window(hostile)  # asked for the digest, before anything is decoded
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
        tracemalloc.stop()


def compressed(data: bytes, syntax: str) -> bytes:
    """Return a DICOM file compressed by gdcm, which loses nothing."""
    gdcm = pytest.importorskip("gdcm", reason="compressed DICOM files need python-gdcm")
    with tempfile.TemporaryDirectory() as folder:
        before, after = f"{folder}/before.dcm", f"{folder}/after.dcm"
        Path(before).write_bytes(data)
        reader, change, writer = gdcm.ImageReader(), gdcm.ImageChangeTransferSyntax(), gdcm.ImageWriter()
        reader.SetFileName(before)
        assert reader.Read()
        change.SetTransferSyntax(gdcm.TransferSyntax(getattr(gdcm.TransferSyntax, syntax)))
        change.SetInput(reader.GetImage())
        assert change.Change()
        writer.SetFileName(after)
        writer.SetFile(reader.GetFile())
        writer.SetImage(change.GetOutput())
        assert writer.Write()
        return Path(after).read_bytes()


@pytest.mark.parametrize("syntax", ["JPEGLSLossless", "JPEGLosslessProcess14_1", "JPEGLosslessProcess14", "RLELossless"])
def test_compressed_dicom_files_are_read_without_loss(tmp_path: Path, syntax: str) -> None:
    data = dicom(VALUES, WindowCenter=2000, WindowWidth=4000)
    source = read(tmp_path, data, compressed(data, syntax))
    assert np.array_equal(source[0].image, source[1].image)


def test_a_missing_dicom_decoder_raises_one_line_with_a_pip_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pydicom.pixels.decoders.base import Decoder

    source = read(tmp_path, compressed(dicom(VALUES), "JPEGLSLossless"))
    monkeypatch.setattr(Decoder, "is_available", property(lambda decoder: False))
    with pytest.raises(
        UserError, match=r"^DICOM files compressed as JPEG-LS Lossless .* need a decoder: pip install -e '"
    ) as e:
        _ = source[0]
    assert "\n" not in str(e.value)


def test_remarks_group_images_by_their_scaling(tmp_path: Path) -> None:
    files = [dicom(VALUES), dicom(VALUES // 4, bits=10), dicom(VALUES, WindowCenter=2000, WindowWidth=4000)]
    (tmp_path / "a").mkdir()
    Image.fromarray(VALUES).save(tmp_path / "a" / "deep.png")
    (line,) = preview(read(tmp_path, *files))
    for group in (
        "1 image: scaled as 12 bits that their file states",
        "1 image: scaled as 10 bits that their file states",
        "1 image: scaled by the window that their file states",
        "1 image: scaled as 12 bits, which hold the source's largest value",
    ):
        assert group in line


@pytest.mark.parametrize("kind", ["MONOCHROME2", "MONOCHROME1"])
@pytest.mark.parametrize(
    ("fill", "said"),
    [
        (4095, {"PixelPaddingValue": 4095}),
        (0, {"PixelPaddingValue": 0}),
        (4090, {"PixelPaddingValue": 4080, "PixelPaddingRangeLimit": 4095}),
    ],
)
def test_values_that_fill_the_frame_become_dark(tmp_path: Path, kind: str, fill: int, said: dict[str, int]) -> None:
    """The picture beside the frame is what it is without one, and the frame is as dark as its darkest pixel."""
    picture = 500 + VALUES[:, 4:] // 2
    framed = np.full(VALUES.shape, fill, dtype=np.uint16)
    framed[:, 4:] = picture
    for name, data in (("framed", dicom(framed, kind, **said)), ("plain", dicom(picture, kind))):
        (tmp_path / name).mkdir()
        read(tmp_path / name, data)
    source, other = read(tmp_path / "framed", dicom(framed, kind, **said)), read(tmp_path / "plain", dicom(picture, kind))
    seen, alone = source[0].image, other[0].image
    assert np.array_equal(seen[:, 4:], alone)
    assert (seen[:, :4] == alone.min()).all()
    assert source.content_digest().endswith(":5")


def test_a_padding_value_may_be_stated_with_the_other_sign(tmp_path: Path) -> None:
    picture = (VALUES.astype(np.int16) // 4) - 300
    picture[:, :4] = -2000
    pixels = dicom(picture, bits=16, signed=True, WindowCenter=200, WindowWidth=1000, PixelPaddingValue=-2000)
    seen = read(tmp_path, pixels)[0].image
    assert (seen[:, :4] == seen[:, 4:].min()).all()
