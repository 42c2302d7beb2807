"""Import of Hugging Face's transformers, and checks of a model's folder before memory is allocated for the model."""

import contextlib
import importlib
import json
import math
import shlex
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, TypeVar

import safetensors

from memlib.data.opening import check_regular, located
from memlib.errors import UserError
from memlib.sanitize import one_line
from memlib.store.records import Unreadable, json_once

Out = TypeVar("Out")
PANIC = "pyo3_runtime"  # module of the exception for a panic in Rust, which is no Exception
MODEL, ENCODER, OPEN_CLIP = "Hugging Face model", "Hugging Face encoder", "open_clip model"
CLASSIFIER = "Hugging Face image classifier"
CONFIGS = dict.fromkeys((MODEL, ENCODER, CLASSIFIER), "config.json") | {OPEN_CLIP: "open_clip_config.json"}
PICKLES = dict.fromkeys((MODEL, ENCODER, CLASSIFIER), "pytorch_model*.bin") | {OPEN_CLIP: "*.bin"}
CLASSES = {
    MODEL: "AutoModelForCausalLM",
    ENCODER: "AutoModel",
    CLASSIFIER: "AutoModelForImageClassification",
}  # of transformers, which load them
ADAPTER = "LoRA adapter"
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MERGE_BY_PEFT = (
    "merge it with its base model by peft (merge_and_unload, then save_pretrained), and name the folder of the result"
)


def transformers_for(folder: str, what: str) -> Any:
    """Return the transformers library, after a check that the folder's config fits its weights.

    Args:
        folder: folder with config.json and *.safetensors.
        what: kind of model, for messages: MODEL or ENCODER.

    Raises:
        UserError: when the library is not installed, the folder holds no whole model as safetensors, or its config declares
            more than the weights hold.
    """
    try:
        transformers = importlib.import_module("transformers")
    except ImportError as error:
        raise UserError(f"a {what} needs transformers: pip install -e '.[huggingface]' in memlib's folder") from error
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()  # else it prints tables of what is refused in a line below
    check_folder(folder, what)
    with loading(folder, what):
        numbers = check_declared(Path(folder), what)
    if numbers:
        _check_tensors(transformers, folder, what, numbers)
    return transformers


def check_folder(folder: str, what: str) -> None:
    """Check that a folder holds a whole model, with weights not only in pickles, and no adapter.

    transformers would load an adapter's base model from the place that the adapter's file names.

    Args:
        what: kind of model: MODEL, ENCODER or OPEN_CLIP.

    Raises:
        UserError: when a check fails; the message says what to do.
    """
    root = Path(folder)
    for path in sorted(path for path in root.glob("*") if path.is_file()):
        check_regular(*located(str(path)))
    whole = (root / CONFIGS[what]).is_file()
    if (root / ADAPTER_CONFIG).is_file():
        if what != MODEL:
            raise UserError(f"{folder} holds a {ADAPTER}; {MERGE_BY_PEFT}")
        if whole:
            raise UserError(
                f"{folder} holds a model and a {ADAPTER}; move {ADAPTER_CONFIG} and {ADAPTER_WEIGHTS} to a folder of their "
                "own, and name it in adapter, beside path"
            )
        raise UserError(
            f"{folder} holds a {ADAPTER} and no whole model; set path to the folder of its base model{_base_of(root)}, and "
            f"adapter to {folder}"
        )
    if not whole:
        raise UserError(f"there is no {what} in {folder} (no {CONFIGS[what]})")
    _check_weights(root, folder)
    pickles = sorted(root.glob(PICKLES[what]))
    if pickles and not any(root.glob("*.safetensors")):
        name = json.dumps(folder)
        if what == OPEN_CLIP:
            program = _conversion(pickles[0], root / "open_clip_model.safetensors")
        else:
            program = f"from transformers import {CLASSES[what]} as M; M.from_pretrained({name}).save_pretrained({name})"
        raise UserError(
            f"{folder} has its weights only in {pickles[0].name}, a pickle, which is not opened, as it may run code. If you "
            f"trust the file, convert it: python -c {shlex.quote(program)}"
        )


def _check_weights(root: Path, folder: str) -> None:
    """Check that weights are regular files of the folder itself, of which memlib takes digests and which it measures.

    Raises:
        UserError: for a pipe or a device in place of a file, and for an index that names files elsewhere.
    """
    for path in sorted(root.glob("*.safetensors*")):
        if not path.is_file():
            raise UserError(f"{path.name} in {folder} is not a regular file; put the file itself there")
    for path in sorted(root.glob("*.safetensors.index.json")):
        try:
            named = read_json(path)["weight_map"].values()
            other = next((one for one in named if not _is_weights(root, one)), None)
        except (AttributeError, KeyError, OSError, RecursionError, TypeError, ValueError) as error:
            raise UserError(f"{path.name} in {folder} is no index of weights ({type(error).__name__})") from error
        if other is not None:
            raise UserError(
                f"{path.name} in {folder} names {one_line(str(other))!r}, which is no file *.safetensors of that folder; put "
                "all weights there"
            )


def _is_weights(root: Path, name: Any) -> bool:
    is_plain = isinstance(name, str) and "/" not in name and not name.startswith(".") and name.endswith(".safetensors")
    return is_plain and (root / name).is_file()


def adapter_files(folder: str) -> dict[str, Path]:
    """Return the files of a LoRA adapter that are read, by name.

    Raises:
        UserError: when the folder holds no adapter as safetensors; the message says what to do.
    """
    root = Path(folder)
    files = {name: root / name for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS)}
    pickle = root / "adapter_model.bin"
    if files[ADAPTER_CONFIG].is_file() and not files[ADAPTER_WEIGHTS].is_file() and pickle.is_file():
        program = _conversion(pickle, files[ADAPTER_WEIGHTS])
        raise UserError(
            f"{folder} has its weights only in {pickle.name}, a pickle, which is not opened, as it may run code. If you "
            f"trust the file, convert it: python -c {shlex.quote(program)}"
        )
    for name, path in files.items():
        if not path.is_file():
            raise UserError(f"there is no {ADAPTER} in {folder}, the folder that adapter names: {name} is missing")
    return files


def _conversion(pickle: Path, target: Path) -> str:
    """Return a program that writes the tensors of a pickle as safetensors."""
    names = json.dumps(str(pickle)), json.dumps(str(target))
    return (
        "import torch; from safetensors.torch import save_file; "
        f"save_file({{k: v.contiguous() for k, v in torch.load({names[0]}, weights_only=True).items()}}, {names[1]})"
    )


def read_json(path: Path) -> Any:
    """Return the content of a JSON file of a model's folder.

    Raises:
        UserError: when an object has a key twice, of which libraries take the last.
        OSError: when the file cannot be read.
        ValueError: when the content is not JSON.
    """
    try:
        return json_once(path.read_text(encoding="utf-8"))
    except Unreadable as error:
        raise UserError(f"{path.name} in {path.parent} names a key twice; keep one of the values") from error


def _base_of(root: Path) -> str:
    """Return the base model that an adapter's config names, in parentheses for a message; it is never opened."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        named = read_json(root / ADAPTER_CONFIG).get("base_model_name_or_path")
        return f" ({str(named)[:200]})" if named else ""
    return ""


@contextlib.contextmanager
def loading(folder: str, what: str) -> Iterator[None]:
    """Convert any error that transformers and its libraries raise in the block to a UserError of one line."""
    try:
        yield
    except UserError:
        raise
    except BaseException as error:
        if not (isinstance(error, Exception) or type(error).__module__ == PANIC):
            raise
        raise UserError(f"cannot load the {what} in {folder} ({first_line(error)})") from error


def within(seconds: float, what: str, function: Callable[[], Out]) -> Out:
    """Call a function in a separate thread, with a time limit, and return its result.

    A regular expression of a tokenizer can take for ever to match; the libraries that match it do not hold Python's lock.

    Args:
        what: description of the function, for the message.

    Raises:
        UserError: when the time is over; the call itself cannot be ended before the process does.
    """
    answer: Future[Out] = Future()

    def work() -> None:
        try:
            answer.set_result(function())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    if not wait([answer], seconds).done:
        raise UserError(f"{what} has taken more than {seconds:.0f} s for a text; check its expressions")
    return answer.result()


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:300]


def check_declared(folder: Path, what: str) -> int:
    """Return the number of numbers in the weights; 0 if there are no weights, which the libraries then report.

    Libraries build the declared modules one by one, and some tensors in memory, before they compare them with the weights.

    Args:
        folder: the model's folder.
        what: kind of model: MODEL, ENCODER or OPEN_CLIP.

    Raises:
        UserError: when the config declares more layers than the weights have tensors, or sizes beyond all their numbers.
    """
    tensors, numbers = 0, 0
    for path in sorted(folder.glob("*.safetensors")):
        with safetensors.safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - it is no mapping
                size = 1
                for length in file.get_slice(name).get_shape():
                    size *= length
                tensors, numbers = tensors + 1, numbers + size
    if not tensors:
        return 0
    config = read_json(folder / CONFIGS[what])
    for name, value in _integers(config):
        most = max(tensors, FEW_LAYERS) if name.endswith(("layers", "layer")) else numbers
        if value > most and name not in NOT_SIZES and not name.endswith("_id"):
            weights = f"its weights are {tensors:,} tensors with {numbers:,} numbers; take both from the same model"
            raise UserError(f"{CONFIGS[what]} in {folder} declares {name} {value:,}, but {weights}")
    return numbers


def _check_tensors(transformers: Any, folder: str, what: str, numbers: int) -> None:
    """Raise UserError if one tensor of the declared model, such as a table of positions, is larger than all its weights.

    transformers allocates and fills tensors whose shapes differ from the weights' before it names them.
    """
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        import torch  # not needed by plans

        with torch.device("meta"):
            model = getattr(transformers, CLASSES[what]).from_config(config, trust_remote_code=False)
        sizes = {name: tuple(value.shape) for name, value in (*model.named_parameters(), *model.named_buffers())}
    except Exception:  # whoever loads the model says what is wrong
        return
    for name, shape in sizes.items():
        if (size := math.prod(shape)) > max(numbers, FEW_NUMBERS):
            raise UserError(
                f"config.json in {folder} declares the tensor {name} of shape {shape}, {size:,} numbers, but its weights are "
                f"{numbers:,} numbers; take both files from the same model"
            )


FEW_NUMBERS = 2**22  # so many are allocated in no time
FEW_LAYERS = 64  # so many are built in no time, whether they have weights or not
NOT_SIZES = frozenset(
    {"max_position_embeddings", "model_max_length", "n_positions", "n_ctx", "seq_length", "sliding_window", "rope_theta",
     "original_max_position_embeddings", "max_length", "max_seq_len", "max_sequence_length", "total_flos"}
)  # fmt: skip
"""Integers of configs for which no weights need exist."""


def _integers(config: Any, name: str = "") -> Iterator[tuple[str, int]]:
    """Yield the key and value of each integer in a config."""
    if isinstance(config, Mapping):
        for key, value in config.items():
            yield from _integers(value, str(key))
    elif isinstance(config, list):
        for value in config:
            yield from _integers(value, name)
    elif isinstance(config, int) and not isinstance(config, bool):
        yield name, config
