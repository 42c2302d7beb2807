"""Things that people bring: a file, a folder or a name of code, and what it is, as its content tells."""

import ast
import csv
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memlib.data.images.folder import IMAGE_SUFFIXES, ImageFolder
from memlib.data.opening import ParquetContent, content_of
from memlib.data.opening import reason as reason_of
from memlib.data.tables.reading import DECIMAL_COMMA, TableFile, read_table_file
from memlib.data.text.chats import is_chat
from memlib.errors import UserError
from memlib.specs import ImageFolderSource, TableSource
from memlib.specs.observing import NAMED

ThingKind = Literal[
    "images", "table", "scores", "outputs", "members", "embeddings", "texts", "weights", "estimator", "classifier",
    "language", "adapter", "encoder", "factory", "exported",
]  # fmt: skip
TABLES = (".csv", ".tsv", ".parquet", ".jsonl", ".ndjson", ".csv.xz", ".csv.gz", ".csv.bz2")
TEXTS = (".txt", ".md")
MAIL = (".mbox", ".eml")
CHATS = ("messages", "conversations")  # columns of chats in JSON lines
WEIGHTS = (".safetensors", ".pt", ".pth", ".ckpt", ".bin")
PICKLES = (".joblib", ".pkl", ".pickle")
XGBOOST = (".ubj", ".json")
ARRAYS = (".npy", ".npz")
MEMBER = ("member", "is_member", "membership", "in_train", "in_training", "trained_on", "is_train", "split", "set")
YES = frozenset({"yes", "true", "1", "in", "member", "members", "train", "training"})
NO = frozenset({"no", "false", "0", "out", "nonmember", "non-member", "non_member", "nonmembers", "test", "val", "validation",
                "holdout", "held_out", "heldout", "unseen"})  # fmt: skip
IDS = ("example_id", "id", "record_id", "row_id", "uid", "uuid", "image", "file", "filename")
PERSONS = ("person", "person_id", "patient", "patient_id", "subject", "subject_id", "user", "user_id", "customer",
           "customer_id", "client", "client_id", "participant", "participant_id", "employee", "employee_id", "author",
           "author_id", "writer", "speaker", "sender")  # fmt: skip
LABELS = ("label", "labels", "target", "y", "class", "outcome", "diagnosis", "income", "category", "species")
TOWARDS_OTHERS = ("loss", "nll", "neg_log", "negative_log", "perplexity", "ppl", "distance", "entropy", "error", "surprise",
                  "mse", "anomaly", "outlier")  # fmt: skip
NEGATED = ("neg_loss", "negative_loss", "neg_nll", "minus_loss")
SCORES = (*TOWARDS_OTHERS, "score", "logit", "log_prob", "logprob", "likelihood", "confidence", "conf", "prob", "lira",
          "rmia", "min_k", "mink", "zlib", "similarity")  # fmt: skip
OF_CLASSES = ("scores", "probabilities", "probs", "logits")  # columns of lists with a number for each class
MOST_FILES = 1_000_000  # of a folder that are looked at
MOST_CLASSES = 50  # values of a last column that is taken for the class
LONG = 40  # characters of a text that is no category, on average
EXPORTED = ("images.csv", "sets.csv", "recipe.yaml")  # files of a folder that memlib export wrote
OTHERS = frozenset({"nonmember", "nonmembers", "non", "test", "testing", "val", "valid", "validation", "holdout", "held",
                    "heldout", "unseen", "out", "other", "others", "eval", "dev", "control", "controls", "untrained",
                    "nontrain", "negative", "negatives"})  # fmt: skip
"""Words in names of files and folders that hold what a model was not trained on."""
INSIDE = frozenset({"train", "training", "trained", "member", "members", "in", "seen", "positive", "positives"})
"""Words in names of files and folders that hold what a model was trained on."""


@dataclass(frozen=True)
class Columns:
    """The columns of a table by what they hold."""

    names: tuple[str, ...]  #: all columns, in order.
    rows: int  #: number of rows.
    id: str | None = None  #: column of unique ids.
    person: str | None = None  #: column of persons.
    member: str | None = None  #: column that tells members from non-members.
    label: str | None = None  #: column of the class.
    scores: tuple[str, ...] = ()  #: columns of numbers that an attack may have computed.
    probabilities: tuple[str, ...] = ()  #: columns that add up to 1 in each row.
    text: str | None = None  #: column of texts.
    classes: tuple[str, ...] = ()  #: values of the class.
    delimiter: str = ","
    decimal: str = "."
    numbering: str | None = None  #: column that only numbers the rows, in their order.

    @property
    def features(self) -> tuple[str, ...]:
        """The columns that a model may see."""
        used = {self.id, self.person, self.member, self.label, self.text, self.numbering, *self.probabilities}
        return tuple(name for name in self.names if name not in used)


@dataclass(frozen=True)
class Thing:
    """A thing that was looked at."""

    kind: ThingKind
    path: str  #: the file or folder, or the name of the code.
    said: str  #: what it was taken for, in words.
    columns: Columns | None = None  #: of a table.
    parts: tuple[str, ...] = ()  #: of images: folders such as train and val.
    classes: tuple[str, ...] = ()  #: of images: names of the classes.
    counts: Mapping[str, int] = field(default_factory=dict)  #: of images: their number by part, "" without parts.

    @property
    def name(self) -> str:
        """The last part of the path."""
        return PurePosixPath(self.path.rstrip("/")).name or self.path

    def __str__(self) -> str:
        return f"{self.path}: {self.said}"


def looked_at(path: str) -> Thing:
    """Return what a file, a folder or a name of code is.

    Raises:
        UserError: when there is no such thing, or memlib does not know what it is.
    """
    place, low = Path(path).expanduser(), path.lower()
    if not path.strip() or place.resolve() == Path(place.anchor or "/"):
        raise UserError(f"{path!r} is no thing to look at; name a file or a folder of data or of a model")
    if place.is_dir():
        return _folder(path, place)
    if not place.exists() and "://" not in path:
        if re.fullmatch(NAMED, path) and ":" in path and "/" not in path:
            return Thing("factory", path, "a function that builds a model")
        raise UserError(f"there is no file or folder {path}; a function that builds a model is named package.module:function")
    if low.endswith((".jsonl", ".ndjson")) and (found := _chats(path)) is not None:
        return found
    if low.endswith(TABLES):
        return _table(path)
    if low.endswith(ARRAYS):
        return _array(path, place)
    if low.endswith(WEIGHTS):
        return Thing("weights", path, "weights of a network")
    if low.endswith(PICKLES) or (low.endswith(XGBOOST) and _is_xgboost(place)):
        return Thing("estimator", path, "a fitted classifier of points")
    if low.endswith(TEXTS):
        return Thing("texts", path, "text")
    if low.endswith(MAIL):
        raise UserError(f"{path} is mail, at which look does not look: write a recipe with data.source of kind mail")
    if low.endswith(".py"):
        raise UserError(f"{path} is code: name the function that builds the model, as in {_factory_in(place)}")
    raise UserError(
        f"{path} is of no kind that memlib knows; bring a table (CSV, Parquet), a folder of images or texts, weights "
        "(.safetensors, .pt), a fitted classifier (.joblib), a transformers folder, or scores with a column member"
    )


def is_of_others(path: str) -> bool:
    """Return whether the name of a file or a folder says that a model was not trained on its content."""
    return side_of(path) == "others"


def members_first(things: Iterable[Thing]) -> list[Thing]:
    """Return files or folders with those of members first and those of others last, by their names."""
    return sorted(things, key=lambda one: {"members": 0, "": 1, "others": 2}[side_of(one.path)])


def side_of(path: str) -> Literal["members", "others", ""]:
    """Return the side that the name of a file or a folder tells, or that of a folder above it; "" if none does.

    Example:
        >>> side_of("data/test/rows.csv"), side_of("train_2017.csv"), side_of("out_of_bag_removed.csv")
        ('others', 'members', '')
    """
    for part in reversed(PurePosixPath(path.rstrip("/")).parts[-2:]):
        words = re.findall("[a-z]+", PurePosixPath(part).stem.lower())
        if len(words) > 2:
            continue
        if not OTHERS.isdisjoint(words):
            return "others"
        if not INSIDE.isdisjoint(words):
            return "members"
    return ""


def _folder(path: str, place: Path) -> Thing:
    if all((place / name).is_file() for name in EXPORTED):
        return Thing("exported", path, "pictures that memlib export wrote, with their sets and recipe")
    config = place / "config.json"
    if config.is_file():
        return _of_transformers(path, config)
    if (place / "adapter_config.json").is_file():
        return Thing("adapter", path, "a LoRA adapter of a language model")
    try:
        every = (found for found in islice(place.rglob("*"), MOST_FILES) if found.is_file())
        names = [found for found in every if not any(part[0] == "." for part in found.relative_to(place).parts)]
    except OSError as error:
        raise UserError(f"cannot look through {path} ({error.strerror or error})") from error
    if any(found.suffix.lower() in IMAGE_SUFFIXES for found in names):
        return _images(path)
    if any(found.suffix.lower() in MAIL for found in names):
        raise UserError(f"{path} holds mail, at which look does not look: write a recipe with data.source of kind mail")
    if any(found.suffix.lower() in (*TEXTS, ".jsonl") for found in names):
        parts = sorted({found.relative_to(place).parts[0] for found in names})
        sides = {side_of(part) for part in parts}
        where = f" in {' and '.join(parts)}" if sides == {"members", "others"} else ""
        return Thing("texts", path, f"{len(names):,} files of text{where}", parts=tuple(parts) if where else ())
    raise UserError(f"{path} holds neither images in class folders nor texts nor a transformers model (config.json)")


def _of_transformers(path: str, config: Path) -> Thing:
    try:
        content = json.loads(config.read_text(encoding="utf-8"))
        names = " ".join(content.get("architectures") or ())
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise UserError(f"cannot read {config} ({type(error).__name__})") from error
    if "ForImageClassification" in names:
        return Thing("classifier", path, f"an image classifier of transformers ({names})")
    if "CausalLM" in names or "LMHead" in names:
        return Thing("language", path, f"a language model of transformers ({names})")
    return Thing("encoder", path, f"a model of transformers ({names or 'without a stated architecture'})")


def _images(path: str) -> Thing:
    try:
        source = ImageFolder(ImageFolderSource(kind="image_folder", path=path))
    except UserError as error:
        raise UserError(f"{path} holds images, but not in class folders ({error})") from error
    ids = [name for name, _ in source._items]
    parts = tuple(source._parts)
    sides = {name: side_of(name) for name in source.class_names}
    if not parts and set(sides.values()) == {"members", "others"}:
        raise UserError(
            f"{path}: {' and '.join(sides)} look like the sides of one data set, but their class folders differ "
            f"({_unlike(ids, list(sides)) or 'there are none'}): give each the same ones, or bring them as two folders"
        )
    counts = {part: sum(name.startswith(f"{part}/") for name in ids) for part in parts} or {"": len(ids)}
    where = " and ".join(f"{part} ({count:,})" for part, count in counts.items()) if parts else "class folders"
    said = f"{len(ids):,} images of {len(source.class_names)} classes in {where}"
    if parts and (lacking := _unlike(ids, parts)):
        said += f"; {lacking}, so that nothing can be tested of it"
    return Thing("images", path, said, parts=parts, classes=tuple(source.class_names), counts=counts)


def _unlike(ids: Sequence[str], sides: Sequence[str]) -> str:
    """Return the class folders that are not on all sides, in words; "" if all are."""
    classes = {
        side: {name.split("/")[1] for name in ids if name.startswith(f"{side}/") and name.count("/") > 1} for side in sides
    }
    every = set().union(*classes.values())
    lacking = [f"{side} has no {name}" for side in sides for name in sorted(every - classes[side])]
    return ", ".join(lacking[:3])


def _chats(path: str) -> Thing | None:
    """Return a file of JSON lines whose records are chats as texts; None for any other file."""
    try:
        with Path(path).open(encoding="utf-8-sig") as file:
            first = json.loads(file.readline())
            column = next((name for name in CHATS if isinstance(first, Mapping) and is_chat(first.get(name))), None)
            if column is None:
                return None
            rows = [first, *(json.loads(line) for line in file if line.strip())]
    except (OSError, ValueError, RecursionError):
        return None
    names = tuple(dict.fromkeys(name for row in rows if isinstance(row, Mapping) for name in row))
    person = next((name for name in names if name.lower() in ("user", "user_id", "person", "author", "customer")), None)
    member = "member" if "member" in names else None
    said = f"{len(rows):,} chats in column {column}" + (f", person in column {person}" if person else "")
    return Thing("texts", path, said, Columns(names, len(rows), text=column, person=person, member=member))


def _factory_in(place: Path) -> str:
    """Return the name of the first function of a module that takes no arguments."""
    try:
        body = ast.parse(place.read_text(encoding="utf-8")).body
    except (OSError, SyntaxError, ValueError):
        body = []
    functions = [node for node in body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    free = [node.name for node in functions if len(node.args.args) == len(node.args.defaults)]
    return f"{place.stem}:{(free or ['build'])[0]}"


def _is_xgboost(place: Path) -> bool:
    with place.open("rb") as file:
        start = file.read(4096)
    return place.suffix == ".ubj" or b'"learner"' in start


def _array(path: str, place: Path) -> Thing:
    try:
        found = np.load(place, allow_pickle=False)
        array = found if isinstance(found, np.ndarray) else found[next(iter(found.files))]
    except (OSError, ValueError, StopIteration) as error:
        raise UserError(f"cannot read the array {path} ({type(error).__name__})") from error
    if array.ndim == 1 and (array.dtype == bool or np.issubdtype(array.dtype, np.integer)):
        return Thing("members", path, f"a mask or list of members ({len(array):,} values)")
    if array.ndim == 2 and np.issubdtype(array.dtype, np.floating):
        return Thing("embeddings", path, f"{len(array):,} embeddings of {array.shape[1]:,} numbers")
    raise UserError(
        f"{path} holds an array of {array.dtype} with {array.ndim} dimensions; bring a mask of members, or a table"
    )


# -- tables -------------------------------------------------------------------------------------------------


def _table(path: str) -> Thing:
    if nested := _of_lists(path):
        return nested
    columns, kind = columns_of(path), "table"
    rest = [name for name in columns.features if name not in columns.scores] if not columns.scores else []
    what = f"{columns.rows:,} rows"
    if columns.probabilities:
        few = len(rest) == 0
        kind = "outputs" if few else "table"
        what += f" with a model's probabilities of {len(columns.probabilities)} classes"
    elif columns.text is not None and not rest:
        kind = "texts"
        what = f"{columns.rows:,} texts in column {columns.text}"
    elif columns.scores and not rest:
        kind = "scores"
        what += f" with scores ({', '.join(columns.scores)})"
    elif columns.member and not rest and not columns.label:
        kind = "members"
    if kind == "table":
        label = f", class {columns.label} ({len(columns.classes)} values)" if columns.label else ""
        what += f" of {len(columns.features)} columns{label}"
    named = {"member": columns.member, "person": columns.person, "id": columns.id, "numbers of rows": columns.numbering}
    said = "".join(f", {role} in column {name}" for role, name in named.items() if name)
    return Thing(kind, path, what + said, columns)  # type: ignore[arg-type]


def _of_lists(path: str) -> Thing | None:
    """Return a Parquet file with a list of numbers in each row, as outputs or embeddings; None for any other file.

    Raises:
        UserError: when it holds pictures, chats or other nested values.
    """
    if not path.endswith(".parquet") or "://" in path:
        return None
    try:
        file = ParquetContent(path, path)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise UserError(f"cannot read {path} ({reason_of(error)})") from error
    names, rows = tuple(file.schema.names), file.num_rows
    for one in file.schema:
        if pa.types.is_list(one.type) or pa.types.is_fixed_size_list(one.type) or pa.types.is_large_list(one.type):
            if pa.types.is_floating(one.type.value_type) and one.name.lower() in OF_CLASSES:
                columns = Columns(names, rows, next((name for name in IDS if name in names), None))
                return Thing("outputs", path, f"{rows:,} rows with a model's {one.name} by class", columns)
            if pa.types.is_floating(one.type.value_type):
                return Thing("embeddings", path, f"{rows:,} embeddings")
        if pa.types.is_nested(one.type) or pa.types.is_binary(one.type):
            raise UserError(
                f"{path} holds pictures, chats or the like in column {one.name}, at which look does not look; write a "
                "recipe by memlib init --for images or fine-tuning, with data.source of kind parquet or text_parquet"
            )
    return None


def columns_of(path: str) -> Columns:
    """Return the columns of a table by what they hold, from their names and values.

    Raises:
        UserError: when the table cannot be read.
    """
    delimiter = _delimiter(path)
    file = _read(path, Columns((), 0, delimiter=delimiter))
    texts, rows = file.texts, file.texts.num_rows
    if not rows:
        raise UserError(f"{path} has no rows")
    decimal = "," if delimiter == ";" and _has_decimal_commas(texts) else "."
    if decimal == ",":
        file = _read(path, Columns((), 0, delimiter=delimiter, decimal=decimal))
    table, names = file.table, tuple(name for name in texts.column_names if name not in file.index)
    by_name = {name.strip().lower(): name for name in names}
    known = {name: _values(texts[name]) for name in names}
    member = next((by_name[one] for one in MEMBER if one in by_name and _tells_members(known[by_name[one]])), None)
    unique = [name for name in names if len(known[name]) == rows and _is_name(table[name])]
    id_column = next((by_name[one] for one in IDS if by_name.get(one) in unique), None)
    numbering = id_column if id_column is not None and _counts(table[id_column]) else None
    id_column = None if numbering else id_column  # rows numbered in their order, which says who was in which file
    if member is None and "member" in by_name and "split" not in by_name:
        seen = ", ".join(sorted(known[by_name["member"]])[:3])
        raise UserError(f"{path}: column member holds {seen or 'nothing'}; write yes for members and no for all others")
    person = next((by_name[one] for one in PERSONS if one in by_name and len(known[by_name[one]]) < rows), None)
    label = next((by_name[one] for one in LABELS if one in by_name and len(known[by_name[one]]) <= 1000), None)
    rest = [name for name in names if name not in (member, id_column, person, label, numbering)]
    numbers = [name for name in rest if _is_number(table[name])]
    probabilities = _probabilities(table, numbers, known.get(label or "", set()))
    text = next((name for name in rest if name not in numbers and _is_long(texts[name])), None)
    scores = [name for name in numbers if name not in probabilities and any(one in name.lower() for one in SCORES)]
    if member and not (scores or probabilities or label) and 1 <= len(numbers) == len(rest) <= 2:
        scores = numbers  # a member column beside a number or two
    features = [name for name in rest if name not in (*probabilities, text) and name not in scores]
    if member is None or any(name in numbers for name in features) or len(features) > 2:
        features, scores = [name for name in rest if name not in (*probabilities, text)], []  # numbers that a model sees
    if label is None and len(features) > 2 and 2 <= len(known[features[-1]]) <= MOST_CLASSES:
        label = features[-1]
    return Columns(
        names, rows, id_column, person, member, label, tuple(scores), probabilities, text,
        in_order(known[label]) if label else (), delimiter, decimal, numbering,
    )  # fmt: skip


def in_order(classes: set[str]) -> tuple[str, ...]:
    """Return classes in order, whole numbers as numbers.

    Example:
        >>> in_order({"10", "9"}), in_order({"no", "10"})
        (('9', '10'), ('10', 'no'))
    """
    are_numbers = all(re.fullmatch(r"[+-]?[0-9]+", name) for name in classes)
    return tuple(sorted(classes, key=int) if are_numbers else sorted(classes))


def towards_others(score: str) -> bool:
    """Return whether larger numbers of a column, such as losses, point to non-members, by its name."""
    low = score.lower()
    return any(one in low for one in TOWARDS_OTHERS) and not any(one in low for one in NEGATED)


def is_telling(score: str) -> bool:
    """Return whether the name of a column says on which side larger numbers are."""
    return any(one in score.lower() for one in SCORES)


def _read(path: str, columns: Columns) -> TableFile:
    spec = TableSource(
        kind="table", path=path, label_column="", columns=("(none)",), delimiter=columns.delimiter,
        decimal=columns.decimal,  # type: ignore[arg-type]
    )  # fmt: skip
    return read_table_file(spec)


def _delimiter(path: str) -> str:
    """Return the character between the values of a CSV file, by its first line."""
    if path.lower().endswith((".parquet", ".jsonl", ".ndjson")):
        return ","
    try:
        text = content_of(path)[: 2**16].decode("utf-8-sig", "replace")
    except UserError:
        raise
    except Exception as error:  # each store has errors of its own
        raise UserError(
            f"cannot read {path} ({type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]})"
        ) from error
    first = next(csv.reader(io.StringIO(text), delimiter="\x00"), [""])[0] if text else ""
    return max((",", ";", "\t", "|"), key=first.count)


def _has_decimal_commas(texts: pa.Table) -> bool:
    columns = [texts[name] for name in texts.column_names if pa.types.is_string(texts.schema.field(name).type)]
    return any(pc.any(pc.match_substring_regex(column, DECIMAL_COMMA)).as_py() for column in columns)


def _values(column: pa.ChunkedArray) -> set[str]:
    return {str(value).strip() for value in pc.unique(column).to_pylist() if value is not None and str(value).strip()}


def _tells_members(values: set[str]) -> bool:
    low = {value.lower() for value in values}
    return low <= YES | NO and bool(low & YES) and bool(low & NO)


def _is_number(column: pa.ChunkedArray) -> bool:
    return bool(pa.types.is_integer(column.type) or pa.types.is_floating(column.type))


def _counts(column: pa.ChunkedArray) -> bool:
    """Return whether whole numbers count the rows, from any number on."""
    if pa.types.is_string(column.type) and pc.all(pc.match_substring_regex(column, r"^[0-9]{1,15}$")).as_py():
        column = column.cast(pa.int64())
    if not pa.types.is_integer(column.type) or column.null_count or len(column) < 2:
        return False
    return bool((np.diff(column.to_numpy()) == 1).all())


def _is_name(column: pa.ChunkedArray) -> bool:
    return bool(pa.types.is_integer(column.type) or pa.types.is_string(column.type) or pa.types.is_large_string(column.type))


def _is_long(column: pa.ChunkedArray) -> bool:
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return False
    lengths = pc.mean(pc.utf8_length(column)).as_py() or 0
    return lengths > LONG and (pc.mean(pc.cast(pc.match_substring(column, " "), pa.int8())).as_py() or 0) > 0.5


def _probabilities(table: pa.Table, numbers: Sequence[str], classes: set[str]) -> tuple[str, ...]:
    """Return the columns that are probabilities of classes: p0, p1, ..., or those named after the classes."""
    numbered = [name for name in numbers if re.fullmatch(r"(p|prob|proba|probability)[_ ]?\d+", name.lower())]
    named = [name for name in numbers if name in classes or name.lower().removeprefix("p_").removeprefix("prob_") in classes]
    for found in (numbered, named):
        if len(found) >= 2:
            values = np.column_stack([table[name].to_numpy().astype(float) for name in found])
            if np.isfinite(values).all() and values.min() >= 0 and np.allclose(values.sum(axis=1), 1, atol=1e-2):
                return tuple(found)
    return ()


def read_columns(path: str, columns: Columns) -> pa.Table:
    """Return the columns of a table, with numbers where all values of a column are."""
    return _read(path, columns).table


def written(table: Mapping[str, Sequence[Any]]) -> bytes:
    """Return a table as the bytes of a CSV file."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([list(table), *zip(*table.values(), strict=True)])
    return out.getvalue().encode()
