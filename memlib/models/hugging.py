"""Folders of Hugging Face's transformers: the library, and checks of a folder before anything is allocated for it."""

import contextlib
import importlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, TypeVar

import safetensors

from memlib.errors import UserError

Out = TypeVar("Out")
PANIC = "pyo3_runtime"  # module of the exception for a panic in Rust, which is no Exception


def transformers_for(folder: str, what: str) -> Any:
    """Return the transformers library, after a check that the folder's config fits its weights.

    Args:
        folder: folder with config.json and *.safetensors.
        what: kind of model, for messages: "Hugging Face model".

    Raises:
        UserError: when the library is not installed, there is no config, or the config declares more than the weights hold.
    """
    try:
        transformers = importlib.import_module("transformers")
    except ImportError as error:
        raise UserError(f"a {what} needs transformers: pip install 'memlib[huggingface]'") from error
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()  # else it prints tables of what is refused in a line below
    if not (Path(folder) / "config.json").is_file():
        raise UserError(f"there is no {what} in {folder} (no config.json)")
    with loading(folder, what):
        _check_declared(Path(folder))
    return transformers


@contextlib.contextmanager
def loading(folder: str, what: str) -> Iterator[None]:
    """Raise a UserError of one line for whatever transformers and its libraries raise in the block."""
    try:
        yield
    except UserError:
        raise
    except BaseException as error:
        if not (isinstance(error, Exception) or type(error).__module__ == PANIC):
            raise
        raise UserError(f"cannot load the {what} in {folder} ({first_line(error)})") from error


def within(seconds: float, what: str, function: Callable[[], Out]) -> Out:
    """Return what a function returns; call it in a thread of its own, and give it up after some time.

    An expression in a tokenizer can take for ever; the libraries that match it do not hold Python's lock.

    Args:
        seconds: limit of the call.
        what: what is called, for the message.
        function: the function.

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


def _check_declared(folder: Path) -> None:
    """Raise UserError if the config declares more layers than the weights have tensors, or sizes beyond all their numbers.

    transformers builds the declared modules one by one, and some tensors in memory, before it compares them with the weights.
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
        return  # transformers says which file it misses
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    for name, value in _integers(config):
        most = max(tensors, FEW_LAYERS) if name.endswith(("layers", "layer")) else numbers
        if value > most and name not in NOT_SIZES and not name.endswith("_id"):
            weights = f"its weights are {tensors:,} tensors with {numbers:,} numbers"
            raise UserError(f"config.json in {folder} declares {name} {value:,}, but {weights}")


FEW_LAYERS = 64  # so many are built in no time, whether they have weights or not
NOT_SIZES = frozenset(
    {"max_position_embeddings", "model_max_length", "n_positions", "n_ctx", "seq_length", "sliding_window", "rope_theta",
     "original_max_position_embeddings", "max_length", "max_seq_len", "max_sequence_length", "total_flos"}
)  # fmt: skip
"""Integers of configs for which no weights need exist."""


def _integers(config: Any, name: str = "") -> Iterator[tuple[str, int]]:
    """Yield the integers in a config with the keys that hold them."""
    if isinstance(config, Mapping):
        for key, value in config.items():
            yield from _integers(value, str(key))
    elif isinstance(config, list):
        for value in config:
            yield from _integers(value, name)
    elif isinstance(config, int) and not isinstance(config, bool):
        yield name, config
