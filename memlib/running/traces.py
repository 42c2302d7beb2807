"""Traces of examples in the files of a store: their ids in tables, arrays and JSON, and in texts that models see."""

import json
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from memlib.data.images.shards import WINDOWS
from memlib.data.images.stored import IMAGES
from memlib.sanitize import composed, folded
from memlib.store import Ref, Store

VOCABULARY, WORDS = "vocabulary.json", "words.json"
ID_COLUMNS = frozenset({"example_id", "held_out_id", "subject_id", "unit", "group", "person"})
LEAST_LETTERS, LEAST_DIGITS = 4, 7  # characters of an id that is searched in free text
TEXTS = frozenset({".json", ".jsonl", ".html", ".svg", ".txt", ".log", ".csv", ".md"})
WORDLESS = frozenset({".arrow", ".safetensors", ".png", ".bin", ".pt", ".model"})  # pixels and weights, which hold no ids
BATCH = 65_536  # windows, or rows


class UnknownFormat(ValueError):
    """A file of which it cannot be known whether it names an example."""


class Marks:
    """The ids of some examples and of the person to whom they belong.

    In columns of ids, ids of examples are compared as a whole. In free text, ids are searched between characters that are no
    letters or digits, unless they are so short that they would be found by chance; the id of a person also in columns of ids.
    Ids that differ in case, in outer blanks, or in how accents are encoded are the same, see `folded`.

    Args:
        ids: ids of the examples.
        person: id of the person, if it is not only an example that is searched for.
    """

    def __init__(self, ids: Collection[str], person: str | None = None) -> None:
        self.ids = frozenset(map(folded, ids if person is None else {*ids, person}))
        self._telling, self._person = _between_words(self.ids), _between_words([] if person is None else [folded(person)])
        self.longest = max(map(len, self.ids), default=0)

    def in_text(self, text: str) -> bool:
        """Return whether a text names one of the ids."""
        return self._telling is not None and self._telling.search(composed(text)) is not None

    def in_value(self, value: Any) -> bool:
        """Return whether plain JSON names one of the ids; texts may hold JSON, too."""
        if isinstance(value, str):
            return folded(value) in self.ids or self.in_text(value) or (value[:1] in ("{", "[") and self.in_json(value))
        if isinstance(value, Mapping):
            return any(self.in_text(str(name)) or self.in_value(inner) for name, inner in value.items())
        return isinstance(value, list | tuple) and any(map(self.in_value, value))

    def in_json(self, text: str) -> bool:
        """Return whether the text of a JSON file names one of the ids; a text that is no JSON is searched as it is."""
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return self.in_text(text)
        return self.in_text(text) if isinstance(value, str) else self.in_value(value)

    def without(self, value: Any, replacement: str) -> Any:
        """Return plain JSON with the ids replaced wherever `in_value` finds them."""
        if isinstance(value, str):
            return self._replaced(value, replacement) if self.in_value(value) else value
        if isinstance(value, Mapping):
            kept = {str(name): self.without(inner, replacement) for name, inner in value.items()}
            return {self._replaced(name, replacement) if self.in_text(name) else name: inner for name, inner in kept.items()}
        return [self.without(inner, replacement) for inner in value] if isinstance(value, list | tuple) else value

    def _replaced(self, text: str, replacement: str) -> str:
        if folded(text) in self.ids:
            return replacement
        if text[:1] in ("{", "["):
            try:
                return json.dumps(self.without(json.loads(text), replacement))
            except ValueError:
                pass
        return text if self._telling is None else self._telling.sub(replacement, composed(text))

    def in_table(self, read: Callable[[], pq.ParquetFile]) -> bool:
        """Return whether a table names one of the ids."""
        file = read()
        names = [field.name for field in file.schema_arrow if _has_text(field.type)]
        batches = file.iter_batches(BATCH, columns=names) if names else ()
        return any(self._in_column(name, batch.column(name)) for batch in batches for name in names)

    def _in_column(self, name: str, column: pa.Array) -> bool:
        while pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
            column = column.flatten()
        values = pc.unique(column.cast(pa.string())).drop_null()
        if name in ID_COLUMNS:
            texts = list(map(folded, values.to_pylist()))
            return not self.ids.isdisjoint(texts) or (self._person is not None and any(map(self._person.search, texts)))
        return any(self.in_text(value) or (value[:1] in ("{", "[") and self.in_json(value)) for value in values.to_pylist())


def _between_words(names: Collection[str]) -> re.Pattern[str] | None:
    """Return an expression that finds ids between other words, in any case; None if all of them are too short."""
    found = sorted(map(re.escape, filter(is_telling, names)), key=len, reverse=True)
    return re.compile(rf"(?<!\w)(?:{'|'.join(found)})(?!\w)", re.IGNORECASE) if found else None


def near(name: str, others: Iterable[str]) -> list[str]:
    """Return the ids that only accents, punctuation, leading zeros or a letter tell from a name: they may mean the same."""
    wanted, brief = folded(name), _brief(name)
    found = {other for other in others if folded(other) != wanted}
    return sorted(other for other in found if _brief(other) == brief or _is_one_letter_off(wanted, folded(other)))


def _brief(name: str) -> str:
    """Return the letters and digits of an id, without accents and leading zeros of numbers."""
    plain = re.sub(r"[\W_]+", "", unicodedata.normalize("NFKD", folded(name)))  # a combining accent is no word character
    return re.sub(r"(?<!\d)0+(?=\d)", "", plain)


def _is_one_letter_off(one: str, other: str) -> bool:
    """Return whether two ids differ in one letter: replaced, added or left out. Other digits are other ids."""
    if abs(len(one) - len(other)) > 1 or min(len(one), len(other)) < LEAST_LETTERS:
        return False
    start = next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    kept = one[start + (len(one) >= len(other)) :], other[start + (len(other) >= len(one)) :]
    return kept[0] == kept[1] and not (one[start : start + 1] + other[start : start + 1]).isdecimal()


def is_telling(name: str) -> bool:
    """Return whether an id is long enough to be searched in free text."""
    return len(name) >= (LEAST_DIGITS if name.isdecimal() else LEAST_LETTERS)


def _has_text(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _has_text(kind.value_type)
    if pa.types.is_dictionary(kind):
        return _has_text(kind.value_type)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def artifact_names(store: Store, ref: Ref, marks: Marks) -> bool:
    """Return whether an artifact names one of the ids, in its manifest, its files, or a text of which it is made.

    Raises:
        CorruptArtifact: when a file is damaged.
        UnknownFormat: when it has a file in a format that memlib does not write.
        Exception: when a file is not what its name says.
    """
    manifest, evicted = store.artifacts.manifest(ref), store.artifacts.evicted_files(ref)
    if marks.in_value([manifest.spec, manifest.facts]):
        return True
    names = [name for name in manifest.files if name not in evicted]
    if any(_file_names(store, ref, name, marks) for name in names):
        return True
    windows = next((name for name in (WINDOWS, IMAGES) if name in names), None)
    return windows is not None and VOCABULARY in names and _windows_name(store, ref, windows, marks)


def _file_names(store: Store, ref: Ref, name: str, marks: Marks) -> bool:
    suffix = Path(name).suffix
    if suffix in WORDLESS or Path(name).name in (VOCABULARY, WORDS):
        return False
    if suffix == ".npy" and _dtype(store, ref, name).kind not in "USO":
        return False
    path = store.artifacts.local_path(ref, name)
    if suffix == ".parquet":
        return marks.in_table(lambda: pq.ParquetFile(path))
    if suffix in (".npy", ".npz"):
        return any(marks.in_value(array.astype(str).reshape(-1).tolist()) for array in _texts_in(path, suffix))
    if suffix in TEXTS:
        return marks.in_json(path.read_text(encoding="utf-8"))
    raise UnknownFormat(f"file {name} is in a format that is not searched")


def _dtype(store: Store, ref: Ref, name: str) -> np.dtype[Any]:
    """Return the type of a stored array from its header, so that large arrays need not be fetched."""
    file = cast(BinaryIO, store.artifacts.opened(ref, name))
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(file)[2]


def _texts_in(path: Path, suffix: str) -> Iterator[NDArray[Any]]:
    """Yield the arrays of text in a file; arrays of Python objects are refused, as they would have to be unpickled."""
    loaded = np.load(path)
    for array in (loaded[name] for name in loaded.files) if suffix == ".npz" else (loaded,):
        if array.dtype.kind == "U":
            yield array


def _windows_name(store: Store, ref: Ref, name: str, marks: Marks) -> bool:
    """Return whether the text of an artifact's windows, or its words, name one of the ids."""
    symbols: list[str] = json.loads(store.artifacts.local_path(ref, VOCABULARY).read_text(encoding="utf-8"))
    unit = _unit_of(store.artifacts.manifest(ref).spec)
    if unit != "token" and any(is_telling(name) for name in marks.ids.intersection(symbols)):
        return True
    windows = np.load(store.artifacts.local_path(ref, name), mmap_mode="r")
    before, between = "", " " if unit == "word" else ""
    for start in range(0, len(windows), BATCH):
        flat = np.asarray(windows[start : start + BATCH]).reshape(-1)
        text = before + between.join(symbols[number] for number in flat[flat >= 0].tolist())
        if marks.in_text(text):
            return True
        before = text[-marks.longest - 1 :] + between
    return False


def _unit_of(spec: Any) -> str:
    """Return the unit of a text from the spec of the artifact that holds it; "" if the spec states none."""
    if not isinstance(spec, Mapping):
        return ""
    if isinstance(spec.get("unit"), str):
        return str(spec["unit"])
    return next(filter(None, map(_unit_of, spec.values())), "")


def rules_in(value: Any) -> Iterator[tuple[str, str]]:
    """Yield the rules by which plain JSON, such as a recipe, names persons: kind (pattern, path, person_column) and value."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if name == "group" and isinstance(inner, Mapping):
                yield from ((kind, inner[kind]) for kind in ("pattern", "path") if isinstance(inner.get(kind), str))
            elif name == "person_column" and isinstance(inner, str):
                yield name, inner
            else:
                yield from rules_in(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from rules_in(inner)


def examples_of(tables: Sequence[pa.Table], person: str, patterns: Collection[str], listed: Mapping[str, str]) -> set[str]:
    """Return the ids of a person's examples; those in a folder of her name are hers as well.

    Args:
        tables: tables with the column example_id and, if their examples are grouped, the column group.
        person: id of the person: the name that a rule gives her, or an id of one of her examples, for its whole group.
        patterns: regular expressions that find the name of a person in the ids of her examples.
        listed: names of persons by example id, from files of groups.
    """
    wanted = folded(person)
    rules = [re.compile(pattern) for pattern in patterns]
    found: set[str] = set()
    for table in tables:
        ids = table["example_id"].to_pylist()
        groups = table["group"].to_pylist() if "group" in table.column_names else [None] * len(ids)
        pairs = zip(ids, groups, strict=True)
        names = [(folded(example), None if group is None else folded(group)) for example, group in pairs]
        own = {group for name, group in names if group is not None and wanted in (name, group)}
        for example, (name, group) in zip(ids, names, strict=True):
            named = wanted in (name, group) or group in own or wanted in name.split("/")[:-1]
            if named or wanted in map(
                folded, filter(None, [listed.get(example), *(_named(rule, example) for rule in rules)])
            ):
                found.add(example)
    return found


def _named(rule: re.Pattern[str], example: str) -> str | None:
    match = rule.search(example)
    return None if match is None else match.group(1 if rule.groups else 0)
