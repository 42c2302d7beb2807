"""Calls of users' factories of external models, and digests of external models for keys; this module imports no PyTorch."""

import inspect
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memlib.errors import UserError
from memlib.identity import canonical_json, file_digest
from memlib.models.external.estimator_files import read_estimator
from memlib.models.hugging import (
    CLASSIFIER,
    ENCODER,
    MODEL,
    OPEN_CLIP,
    adapter_files,
    check_folder,
    loading,
    read_json,
    transformers_for,
)
from memlib.pipeline.user_code import load, source_file, version_of
from memlib.specs import ExternalClassifierSpec, HuggingFaceSpec, ProtocolSpec
from memlib.specs.encoders import (
    EncoderSpec,
    FactoryEncoder,
    OpenClipEncoder,
    SuppliedEmbeddings,
    TimmEncoder,
    TorchvisionEncoder,
    TransformersEncoder,
)
from memlib.specs.observing import is_path

NOT_READ = (".bin", ".pt", ".pth", ".md")  # files of a Hugging Face folder that are never read


def made(spec: ExternalClassifierSpec | ProtocolSpec | FactoryEncoder, *, is_trained: bool = True) -> Any:
    """Call the user's factory and return its result; or read the model that a file or a folder holds.

    Args:
        is_trained: whether a folder's model has the weights of the folder; a factory's has those that it gives.

    Raises:
        UserError: when the factory cannot be found or fails, or the file or folder cannot be read.
    """
    if isinstance(spec, ExternalClassifierSpec) and is_path(spec.model):
        return read_estimator(spec.model) if Path(spec.model).is_file() else _image_classifier(spec.model, is_trained)
    factory = load(spec.model)
    try:
        return factory(**spec.options)
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        raise UserError(f"{spec.model} failed with {spec.options}: {type(error).__name__}: {error}") from error


def _image_classifier(folder: str, is_trained: bool) -> Any:
    """Return an image classifier of transformers, with the folder's weights or with random weights."""
    if not Path(folder).is_dir():
        raise UserError(f"there is no file or folder {folder}; trained.model is package.module:factory, a file or a folder")
    transformers = transformers_for(folder, CLASSIFIER)
    kind = transformers.AutoModelForImageClassification
    with loading(folder, CLASSIFIER):
        if is_trained:
            return kind.from_pretrained(folder, local_files_only=True, trust_remote_code=False, use_safetensors=True)
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        return kind.from_config(config, trust_remote_code=False)


def external_digest(spec: ExternalClassifierSpec | ProtocolSpec | FactoryEncoder, *weights: str) -> str:
    """Return the digest, for use in keys, of a model's weights, its settings, and its factory's version or source code.

    Raises:
        UserError: when there is neither version nor readable source code, or a file of weights is missing.
    """
    version = spec.version
    if isinstance(spec, ExternalClassifierSpec) and is_path(spec.model):
        used = spec.model_dump(mode="json", exclude={"model", "version"})
        is_folder = Path(spec.model).is_dir()
        return canonical_json([used, _folder_digest(spec.model, CLASSIFIER) if is_folder else _digest_of(spec.model)])
    if version is None:
        source = source_file(spec.model) or _source_of(load(spec.model))
        if source is None:
            raise UserError(f"the source of {spec.model} cannot be read; declare a version")
        version = version_of(spec.model.partition(":")[0], Path(source))
    digests = [_digest_of(path) for path in weights]
    used = spec.model_dump(mode="json", exclude={"weights", "files", "version"})
    return canonical_json([used, version, digests])


def _digest_of(path: str) -> str:
    if not Path(path).is_file():
        raise UserError(f"there is no file {path}")
    return file_digest(Path(path))


def _source_of(factory: Any) -> str | None:
    try:
        return inspect.getsourcefile(inspect.unwrap(factory))
    except TypeError:  # a partial, or something built in
        return None


def external_language_digest(spec: HuggingFaceSpec | ProtocolSpec) -> str:
    """Return the digest of an external sequence model, for use in keys.

    Raises:
        UserError: when a file is missing.
    """
    if isinstance(spec, ProtocolSpec):
        return external_digest(spec, *spec.files)
    digest = _folder_digest(spec.path, MODEL)
    return digest if spec.adapter is None else canonical_json([digest, _digests(adapter_files(spec.adapter))])


def encoder_digest(spec: EncoderSpec) -> str:
    """Return the digest of an encoder, or of embeddings that its owner computed, for use in keys.

    Raises:
        UserError: when a file is missing.
    """
    match spec:
        case FactoryEncoder():
            return external_digest(spec) if spec.weights is None else external_digest(spec, spec.weights)
        case TransformersEncoder():
            digest = _folder_digest(spec.path, ENCODER)
            prepared = _prepared(spec.path)
            marks = {
                ":scaled": scale_of(spec.path) != 1.0, ":shifted": is_shifted(prepared) or divides_twice(prepared),
                ":padded": reads_padding(str(_json_in(spec.path, "config.json").get("model_type"))),
            }  # fmt: skip
            return digest + "".join(mark for mark, holds in marks.items() if holds)  # before, these were not read
        case OpenClipEncoder():
            return _folder_digest(spec.path, OPEN_CLIP)
        case TorchvisionEncoder() | TimmEncoder():
            path, used = spec.weights, spec.model_dump(mode="json", exclude={"weights"})
        case SuppliedEmbeddings():
            path, used = spec.path, spec.model_dump(mode="json", exclude={"path"})
    if not Path(path).is_file():
        raise UserError(f"there is no file {path}")
    return canonical_json([used, file_digest(Path(path))])


def scale_of(folder: str) -> float:
    """Return the number by which an image processor multiplies pixels in [0, 1]: 1, or 255 if it takes 0 to 255.

    Raises:
        UserError: when the folder's preprocessor_config.json states a scale that is no number above 0, or names a key twice.
    """
    prepared = _prepared(folder)
    if not prepared.get("do_rescale", True):
        return 255.0
    factor = prepared.get("rescale_factor", 1 / 255)
    if not isinstance(factor, int | float) or isinstance(factor, bool) or not 0 < factor < math.inf:
        raise UserError(f"preprocessor_config.json in {folder} states rescale_factor {factor!r}; it needs a number above 0")
    return 1.0 if math.isclose(255 * factor, 1.0, rel_tol=1e-6) else 255 * factor


def is_shifted(prepared: Mapping[str, Any]) -> bool:
    """Return whether an image processor subtracts 1 from scaled pixels, as those of EfficientNet and ALIGN may."""
    return bool(prepared.get("rescale_offset")) and bool(prepared.get("do_rescale", True))


def divides_twice(prepared: Mapping[str, Any]) -> bool:
    """Return whether an image processor divides by image_std once more, as EfficientNet's does unless told otherwise."""
    is_efficient_net = str(prepared.get("image_processor_type")).startswith("EfficientNet")
    return bool(prepared.get("include_top", is_efficient_net))


def reads_padding(model_type: str) -> bool:
    """Return whether a type of text model reads the padding, and so was trained on texts of full length alone."""
    return model_type in ("siglip", "siglip2")


def _prepared(folder: str) -> Mapping[str, Any]:
    return _json_in(folder, "preprocessor_config.json")


def _json_in(folder: str, name: str) -> Mapping[str, Any]:
    """Return the JSON object in a file; if it cannot be read, an empty dict: who loads the encoder says why."""
    try:
        found = read_json(Path(folder) / name)
    except UserError:
        raise
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, Mapping) else {}


def read_files(folder: str) -> dict[str, Path]:
    """Return the files at the top level of a Hugging Face model's folder by name, except the kinds that are never read.

    Raises:
        UserError: when the folder holds no model.
    """
    return {name: path for name, path in _files_below(folder, MODEL).items() if "/" not in name}


def released_files(path: Path) -> tuple[dict[str, str], list[str]]:
    """Return the digests (sha256) of a model's files by name, and the files of its folder that audits never read.

    Args:
        path: a file, or a folder as of Hugging Face.

    Raises:
        UserError: when there is no such file or folder, or the folder is empty.
    """
    if path.is_file():
        return {path.name: file_digest(path)}, []
    if not path.is_dir():
        raise UserError(f"there is no file or folder {path}")
    read = {name: file_digest(file) for name, file in _read_below(path).items()}
    if not read:
        raise UserError(f"{path} holds no file that an audit reads; name the file or folder of the model")
    skipped = sorted(
        file.relative_to(path).as_posix() for file in path.rglob("*") if file.suffix in NOT_READ and file.is_file()
    )
    return read, skipped


def _folder_digest(folder: str, what: str) -> str:
    """Return the digest of a Hugging Face model's files, except the kinds that are never read."""
    return canonical_json(_digests(_files_below(folder, what)))


def _digests(files: Mapping[str, Path]) -> list[list[str]]:
    return [[name, file_digest(path)] for name, path in files.items()]


def _files_below(folder: str, what: str) -> dict[str, Path]:
    check_folder(folder, what)
    return _read_below(Path(folder))


def _read_below(root: Path) -> dict[str, Path]:
    """Return the files below a folder by name, except hidden ones and those of the kinds that are never read."""
    files = {path.relative_to(root): path for path in root.rglob("*") if path.is_file() and path.suffix not in NOT_READ}
    read = {name: path for name, path in files.items() if not any(part.startswith(".") for part in name.parts)}
    return {name.as_posix(): read[name] for name in sorted(read)}
