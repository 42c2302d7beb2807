"""Questions to the things that people bring: a recipe that is answered at once, and one of the full audit."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from memlib.errors import UserError
from memlib.looking.texts import Documents, read_texts, with_texts
from memlib.looking.things import (
    NO,
    YES,
    Columns,
    Thing,
    in_order,
    is_of_others,
    is_telling,
    members_first,
    read_columns,
    towards_others,
    written,
)
from memlib.recipes.yaml import inherited, read_yaml

Drawn = Literal["coins", "fixed", "unknown"]
Recipe = dict[str, Any]
QUICK, FULL = 8, 16  # shadow models
FOREST: Recipe = {"kind": "forest", "trees": 100}
WITHOUT: Recipe = {"attacks": ["loss", "gap"], "headline": "loss"}
BESIDE: Recipe = {"attacks": ["calibrated_loss", "loss", "gap"], "headline": "calibrated_loss"}
GIVEN: Recipe = {"attacks": ["scores"], "headline": "scores"}
OF_TEXTS = ("min_k", "zlib", "loss")
TRAINING: Recipe = {
    "objective": {"kind": "supervised"}, "epochs": 30, "batch_size": 64, "augment": None,
    "optimizer": {"learning_rate": 0.001, "weight_decay": 0, "warmup_epochs": 0, "schedule": "constant"},
}  # fmt: skip
EXAMPLES, OUTPUTS, LIST, DOCUMENTS = "examples.csv", "outputs.csv", "members.csv", "documents.jsonl"
PERSONS_FILE = "persons.csv"
IN_ORDER = "the model is asked about the numbers of the columns in their order"
SIDES = ("members", "nonmembers")  # names of two files of one table


@dataclass(frozen=True)
class Said:
    """Declarations and names that are given beside the things."""

    drawn: Drawn = "unknown"  #: how the members were chosen.
    label: str = ""  #: column of the class; "": as its name tells.
    score: str = ""  #: column of the scores; "": the first one.


@dataclass(frozen=True)
class Asked:
    """An audit that the things allow, or what they lack."""

    question: str  #: what is asked, or what is missing, in a sentence.
    quick: Recipe | None = None  #: the recipe that trains little; None if nothing can be answered at once.
    full: Recipe | None = None  #: the recipe of the full audit; None if it would add nothing.
    name: str = "membership"  #: name of the recipe's file.
    files: Mapping[str, bytes] = field(default_factory=dict)  #: files to be written that the recipes name, by name.
    remarks: tuple[str, ...] = ()  #: further lines.
    seconds: float | None = None  #: CPU seconds of the full audit's training; None if only its first part can tell.


def asked(things: Sequence[Thing], said: Said, folder: str) -> Asked:
    """Return what can be asked of things.

    Args:
        folder: folder in which files that are written will lie.

    Raises:
        UserError: when the things do not belong together, or something is missing that only the user knows.
    """
    _refuse_several(things)
    things = with_texts(_with_outputs(things, said))
    tables = _of(things, "table", "outputs", "scores")
    if exported := _of(things, "exported"):
        return _of_embeddings(exported[0], things)
    if _of(things, "language", "adapter") or (_of(things, "texts") and not tables):
        return _of_texts(things, said, folder)
    if _of(things, "images"):
        return _of_images(things, said)
    if tables and all(one.kind == "scores" for one in tables):
        return _of_scores(tables, things, said, folder)
    if tables and all(one.kind == "outputs" for one in tables):
        return _of_outputs(tables, things, said, folder)
    if tables:
        return _of_tables(_of(things, "table"), things, said, folder)
    return _lacking(things)


def _refuse_several(things: Sequence[Thing]) -> None:
    """Refuse several models of one kind, of which one would be passed over."""
    for kinds in (("weights", "classifier", "estimator"), ("factory", "classifier"), ("adapter",)):
        if len(found := _of(things, *kinds)) > 1:
            raise UserError(f"{found[0].path} and {found[1].path} are two models; bring the one that is to be audited")
    if len(found := _of(things, "language")) > 2:
        raise UserError(f"{len(found)} language models; bring the model, and the one from which it was fine-tuned, if any")


def _with_outputs(things: Sequence[Thing], said: Said) -> list[Thing]:
    """Return things in which a table with a column of numbers for each class of another table is known as outputs, and one
    with a score and members, without a model, as scores.
    """
    tables = _of(things, "table")
    classes = {one.path: set(one.columns.classes) for one in tables if one.columns is not None and one.columns.classes}
    found = []
    for one in things:
        others = [names for path, names in classes.items() if path != one.path]
        columns = one.columns
        if one.kind == "table" and columns is not None:
            few = len(set(columns.names) - {columns.id}) <= max((len(names) for names in others), default=0) + 1
            if few and any(names <= set(columns.names) for names in others):
                one = replace(one, kind="outputs", said=f"{columns.rows:,} rows with a model's probabilities by class")
            named = tuple(name for name in columns.features if is_telling(name))
            if columns.member and len(things) == 1 and (named or said.score):
                one = replace(one, kind="scores", columns=replace(columns, scores=named or (said.score,)))
        found.append(one)
    return found


def _of(things: Sequence[Thing], *kinds: str) -> list[Thing]:
    return [one for one in things if one.kind in kinds]


def _lacking(things: Sequence[Thing]) -> Asked:
    """Say what is missing where a model, embeddings or a list stand alone."""
    if _of(things, "embeddings"):
        return Asked(
            "Embeddings alone cannot be compared: memlib export writes the pictures that are to be embedded, by a recipe of "
            "memlib init --for encoders; bring the folder that it writes, and the embeddings as Parquet"
        )
    return Asked(
        "Of a model alone nothing can be asked, as there is nothing to compare its answers with: bring what it was trained "
        "on and examples like these that it was not trained on (two files, two folders, or a column member)"
    )


def _membership(said: Said, data: Recipe, target: Recipe, shadows: int, **more: Any) -> Recipe:
    """Return a recipe of a membership audit."""
    share = more.pop("share", 0.5)
    given = {"drawn": said.drawn, **({"coins": share} if said.drawn == "coins" and abs(share - 0.5) > 0.05 else {})}
    counted = {"count": shadows, "chunk": QUICK, "share": share} if shadows else {"count": 0}
    title = "Who was in the training set?"
    return {
        "audit": "membership", "title": title, "data": data, **more, "target": {**target, **given}, "shadows": counted,
    }  # fmt: skip


# -- scores and outputs, with nothing else ------------------------------------------------------------------


def _of_scores(tables: Sequence[Thing], things: Sequence[Thing], said: Said, folder: str) -> Asked:
    """Ask whether scores tell members, by a table with a column of members, or by two tables."""
    known_columns = _columns(tables[0])
    known = known_columns.scores
    column = said.score or known[0]
    if column not in known_columns.names:
        raise UserError(f"{tables[0].path} has no column {column!r}; it has {', '.join(known_columns.names)}")
    label = said.label or known_columns.label
    listed = _examples(tables, things, folder, {column: column, **({label: label} if label else {})})
    outputs = {
        "path": listed.path, "kind": "scores", "scores_column": column, "id_column": listed.ids,
        "larger": "nonmembers" if towards_others(column) else "members",
    }  # fmt: skip
    target, source = {"outputs": outputs, "members": listed.members}, {"kind": "ids", "path": listed.path}
    source |= {"id_column": listed.ids, **({"label_column": label} if label else {})}
    quick = _membership(said, {"source": source}, target, 0, score=GIVEN, **listed.split)
    smaller = "smaller" if outputs["larger"] == "nonmembers" else "larger"
    said_by = ", as its name says" if is_telling(column) else ", as nothing says otherwise"
    remarks = [f"{column} counts as {smaller} for members{said_by}; target.outputs.larger in the recipe changes that"]
    if others := [name for name in known if name != column]:
        remarks.append(f"not tested: {', '.join(others)}; --score names another one")
    return Asked(
        f"Do the scores in column {column} tell members from non-members?", quick, files=listed.files, remarks=tuple(remarks)
    )


def _of_outputs(tables: Sequence[Thing], things: Sequence[Thing], said: Said, folder: str) -> Asked:
    """Ask whether a model's probabilities tell members, without the examples themselves."""
    columns = _columns(tables[0])
    label = said.label or columns.label
    if label is None or not columns.probabilities:
        raise UserError(f"{tables[0].path} has no column of the true class; name it with --label, or bring the examples")
    classes = _classes(tables[0], label)
    listed = _examples(tables, things, folder, {label: "label", **classes})
    source = {"kind": "ids", "path": listed.path, "id_column": listed.ids, "label_column": listed.label or label}
    target = {"outputs": {"path": listed.path, "id_column": listed.ids}, "members": listed.members}
    return Asked(
        "Who was in the training set of the model, by its probabilities alone?",
        _membership(said, {"source": source}, target, 0, score=WITHOUT, **listed.split),
        files=listed.files,
        remarks=(*_said_of(classes), "bring the examples themselves for attacks with shadow models, which find more"),
    )


@dataclass(frozen=True)
class _Listed:
    """A table of examples with a list of members."""

    path: str
    ids: str  #: column of ids.
    members: str  #: file of the list of members.
    split: Recipe  #: setting of the groups, if there are persons.
    files: Mapping[str, bytes]  #: the table, if it is to be written.
    label: str = ""  #: column of the class in a written table.


def _examples(tables: Sequence[Thing], things: Sequence[Thing], folder: str, kept: Mapping[str, str]) -> _Listed:
    """Return a table as it is, if it has ids and members under the names that recipes read; otherwise one to be written.

    Args:
        kept: columns to keep besides ids, persons and members, with their names in a written table.
    """
    first, columns = tables[0], _columns(tables[0])
    lists = _of(things, "members")
    if len(tables) == 1 and columns.member is None and not lists:
        raise UserError(
            f"{first.path} does not say who was a member: add a column member (yes or no), bring a list of the members, or "
            "members and non-members as two files"
        )
    is_plain = columns.delimiter == "," and columns.decimal == "." and all(old == new for old, new in kept.items())
    has_names = columns.id in ("id", "example_id") and columns.person in (None, "person")
    if len(tables) == 1 and is_plain and has_names and (lists or columns.member == "member"):
        assert columns.id is not None
        split = {"split": {"group": {"path": first.path}}} if columns.person else {}
        return _Listed(first.path, columns.id, lists[0].path if lists else first.path, split, {})
    sides = _sides(tables)
    parts = [read_columns(one.path, _columns(one)) for one in sides]
    table: dict[str, list[Any]] = {"example_id": _ids(sides, parts)}
    wanted = {**kept, **({columns.person: "person"} if columns.person else {})}
    for old, new in wanted.items():
        table[new] = [value for part in parts for value in part[old].to_pylist()]
    path, by_list = f"{folder}/{EXAMPLES}", bool(lists) and len(tables) == 1
    if not by_list:
        table["member"] = ["yes" if one else "no" for one in _member_of(sides, parts)]
    split = {"split": {"group": {"path": path}}} if columns.person else {}
    members = lists[0].path if by_list else path
    return _Listed(path, "example_id", members, split, {EXAMPLES: written(table)}, "label" if "label" in table else "")


def _ids(sides: Sequence[Thing], parts: Sequence[pa.Table]) -> list[str]:
    """Return the ids of rows; where the owner has none, ids that say nothing, not even the order of the rows."""
    columns = _columns(sides[0])
    if columns.id is not None and len(sides) == 1:
        return [str(value) for value in parts[0][columns.id].to_pylist()]
    count = sum(part.num_rows for part in parts)
    return [hashlib.sha256(f"row {row}".encode()).hexdigest()[:12] for row in range(count)]


def _member_of(sides: Sequence[Thing], parts: Sequence[pa.Table]) -> list[bool]:
    """Return whether each row is a member: by its column or, with two tables, by its table."""
    if len(sides) > 1:
        return [place == 0 for place, part in enumerate(parts) for _ in range(part.num_rows)]
    column = _columns(sides[0]).member
    assert column is not None
    values = ["" if value is None else str(value).strip().lower() for value in parts[0][column].to_pylist()]
    if blank := values.count(""):
        raise UserError(f"{sides[0].path}: column {column} is empty in {blank:,} rows; write yes or no in each")
    if unknown := set(values) - YES - NO:
        raise UserError(f"{sides[0].path}: column {column} has {sorted(unknown)[0]!r}; write yes or no")
    return [value in YES for value in values]


def _sides(tables: Sequence[Thing]) -> list[Thing]:
    """Return two tables with the members' first: as they are given, unless their names say otherwise.

    Raises:
        UserError: for more than two tables, or two with different columns.
    """
    if len(tables) == 2 and Path(tables[0].path).resolve() == Path(tables[1].path).resolve():
        raise UserError(f"{tables[0].path} is named twice; name the rows that the model was not trained on as well")
    if len(tables) > 2:
        raise UserError(f"{len(tables)} tables; bring one with a column member, or one of members and one of non-members")
    if len(tables) == 2 and set(_columns(tables[0]).names) != set(_columns(tables[1]).names):
        differ = set(_columns(tables[0]).names) ^ set(_columns(tables[1]).names)
        raise UserError(f"{tables[0].path} and {tables[1].path} differ in the column {sorted(differ)[0]!r}")
    return members_first(tables) if len(tables) == 2 else list(tables)


def _columns(table: Thing) -> Columns:
    assert table.columns is not None, "tables have columns"
    return table.columns


def _classes(table: Thing, label: str) -> dict[str, str]:
    """Return the columns of probabilities, each with the name of its class."""
    columns = _columns(table)
    if label not in columns.names:
        raise UserError(f"{table.path} has no column {label!r}; it has {', '.join(columns.names)}")
    if label != columns.label:
        values = {str(value) for value in read_columns(table.path, columns)[label].to_pylist()}
        columns = replace(columns, classes=in_order(values))
    if len(columns.classes) != len(columns.probabilities):
        raise UserError(
            f"{table.path} has probabilities of {len(columns.probabilities)} classes, but {len(columns.classes)} in the "
            "column of the class; name another one with --label"
        )
    stems = {name.lower().removeprefix("prob_").removeprefix("p_"): name for name in columns.probabilities}
    if all(one.lower() in stems for one in columns.classes):
        return {stems[one.lower()]: one for one in columns.classes}
    return dict(zip(columns.probabilities, columns.classes, strict=True))


def _said_of(classes: Mapping[str, str]) -> list[str]:
    """Return a remark on columns that are called otherwise than their classes."""
    pairs = [f"{old} is class {new}" for old, new in classes.items() if old != new]
    return [", ".join(pairs[:4]) + (", ..." if len(pairs) > 4 else "")] if pairs else []


# -- tables -------------------------------------------------------------------------------------------------


def _of_tables(tables: Sequence[Thing], things: Sequence[Thing], said: Said, folder: str) -> Asked:
    """Ask who was in the training set of a model of tables: by the model, or by its outputs, in a file or in the tables."""
    sides = _sides(tables)
    columns = _columns(sides[0])
    label = said.label or columns.label
    if label is None or label not in columns.names:
        raise UserError(f"which column of {sides[0].path} is the class? name it with --label: {', '.join(columns.names)}")
    source, listed, files = _table_source(sides, things, label, folder)
    models, outputs = _of(things, "estimator", "weights", "factory"), _of(things, "outputs")
    remarks = [] if len(sides) == 1 else [f"{sides[0].path} holds the members, {sides[1].path} the non-members"]
    if listed is None:
        return _without_members(source, remarks)
    target: Recipe = {"members": listed}
    model: Recipe | None = FOREST
    if outputs:
        named = _columns(outputs[0]).id or _columns(outputs[0]).numbering
        target["outputs"] = {"path": outputs[0].path, "id_column": named if columns.id else None}
    elif columns.probabilities:
        target["outputs"] = {"path": f"{folder}/{OUTPUTS}"}
        remarks += _said_of(_classes(sides[0], label))
        files |= {OUTPUTS: _outputs_of(sides, label)}
    elif models:
        target["trained"], model = _trained(models), None
        remarks.append(IN_ORDER)
        source |= {"standardize": False}
    else:
        return _without_model(source, remarks)
    rows = [_columns(one).rows for one in sides]
    share = _share(rows[0], sum(rows)) if len(rows) == 2 else 0.5
    more = {"share": share, **({"model": model} if model else {}), **_split_of(columns, folder)}
    data = {"source": source, "unreadable": "leave_out"}
    return Asked(
        "Who was in the training set of the model?",
        _membership(said, data, target, QUICK, score=BESIDE, **more),
        _membership(said, data, target, FULL, **more),
        files=files,
        remarks=tuple(remarks),
    )


def _table_source(
    sides: Sequence[Thing], things: Sequence[Thing], label: str, folder: str
) -> tuple[Recipe, str | None, dict[str, bytes]]:
    """Return the source of one or two tables, the list of the members (None: there is none), and files to be written."""
    columns, lists = _columns(sides[0]), _of(things, "members")
    source: Recipe = {"kind": "table", "label_column": label}
    left_out = {columns.member, columns.text, columns.numbering, *columns.probabilities} - {None}
    left_out |= {columns.person} - {None}
    if left_out or columns.scores:
        source["columns"] = [name for name in columns.features if name != label and name not in columns.scores]
    source |= {"delimiter": columns.delimiter} if columns.delimiter != "," else {}
    source |= {"decimal": ","} if columns.decimal == "," else {}
    if columns.id is not None:
        source["id_column"] = columns.id
    files = {PERSONS_FILE: _persons_of(sides)} if columns.person else {}
    if len(sides) == 2:
        return {**source, "files": dict(zip(SIDES, (one.path for one in sides), strict=True))}, f"{SIDES[0]}/", files
    source["path"] = sides[0].path
    if lists:
        return source, lists[0].path, files
    if columns.member is None:
        return source, None, files
    part = read_columns(sides[0].path, columns)
    members = ["yes" if one else "no" for one in _member_of(sides, [part])]
    listed = written({"example_id": source_ids(sides)[0], "member": members})
    return source, f"{folder}/{LIST}", {**files, LIST: listed}


def _split_of(columns: Columns, folder: str) -> Recipe:
    """Return the setting by which a person's rows are one unit, if a column names persons."""
    return {"split": {"group": {"path": f"{folder}/{PERSONS_FILE}"}}} if columns.person else {}


def _persons_of(sides: Sequence[Thing]) -> bytes:
    """Return the person of each row by the ids of the source."""
    ids, persons = [], []
    for one, names in zip(sides, source_ids(sides), strict=True):
        column = _columns(one).person
        assert column is not None, "both tables have the same columns"
        ids += names
        persons += [str(value) for value in read_columns(one.path, _columns(one))[column].to_pylist()]
    return written({"example_id": ids, "person": persons})


def source_ids(sides: Sequence[Thing]) -> list[list[str]]:
    """Return the ids that the source of one or two tables gives to the rows of each."""
    starts = [""] if len(sides) == 1 else [f"{name}/" for name in SIDES]
    found = []
    for start, one in zip(starts, sides, strict=True):
        own, part = _columns(one).id, read_columns(one.path, _columns(one))
        names = [str(value) for value in part[own].to_pylist()] if own else _numbered(part.num_rows)
        found.append([f"{start}{name}" for name in names])
    return found


def _numbered(count: int) -> list[str]:
    return [f"{row:07d}" for row in range(count)]


def _outputs_of(sides: Sequence[Thing], label: str) -> bytes:
    """Return the probabilities that tables hold as a table of their own, by the ids that their source has."""
    classes = _classes(sides[0], label)
    table: dict[str, list[Any]] = {new: [] for new in classes.values()}
    for one in sides:
        part = read_columns(one.path, _columns(one))
        for old, new in classes.items():
            table[new] += part[old].to_pylist()
    return written({"example_id": [name for names in source_ids(sides) for name in names], **table})


def _trained(models: Sequence[Thing]) -> Recipe:
    """Return an external model by its file, or by its factory and its weights."""
    factory, weights = ([one for one in models if one.kind == kind] for kind in ("factory", "weights"))
    if factory and weights:
        return {"model": factory[0].path, "weights": weights[0].path}
    if weights:
        raise UserError(f"{weights[0].path} holds weights: name the function that builds the network, too, as in nets:build")
    if factory:
        return {"model": factory[0].path, "version": "1"}
    return {"model": models[0].path}


def _without_members(source: Recipe, remarks: Sequence[str]) -> Asked:
    """Ask of a table alone what a classifier would remember of it."""
    return Asked(
        "No list of the members: of the data alone it can be asked which rows a classifier relies on remembering",
        full=_of_data_alone(source), name="self_influence", remarks=tuple(remarks),
    )  # fmt: skip


def _without_model(source: Recipe, remarks: Sequence[str]) -> Asked:
    return Asked(
        "No model: bring it (.joblib, .json of XGBoost, package.module:function) or its probabilities on these rows; of the "
        "data alone it can be asked which rows a classifier relies on remembering",
        full=_of_data_alone(source), name="self_influence", remarks=tuple(remarks),
    )  # fmt: skip


def _of_data_alone(source: Recipe) -> Recipe:
    return {
        "audit": "self_influence", "title": "Which rows does a classifier remember?", "data": {"source": source},
        "model": {"architecture": "mlp", "widths": [64, 64]}, "split": {"validation_per_class": 20},
        "training": {**TRAINING, "epochs": 20, "batch_size": 50}, "influence": {"checkpoints": 5},
    }  # fmt: skip


# -- images -------------------------------------------------------------------------------------------------


def _of_images(things: Sequence[Thing], said: Said) -> Asked:
    """Ask who was in the training set of an image classifier; its settings are filled in by `memlib.looking.models`."""
    folders, models = _of(things, "images"), _of(things, "weights", "factory", "classifier")
    lists = _of(things, "members")
    source, members = _image_source(folders)
    members = lists[0].path if lists else members
    if not models or members is None:
        lacks = "the model (weights and the function that builds it)" if members else "the images that it was not trained on"
        return Asked(
            f"For a model of yours, bring {lacks} as well, such as photos/train and photos/val; of the images alone it "
            "can be asked what a model that is trained on them would remember",
            full=_of_images_alone(source), name="deja_vu",
        )  # fmt: skip
    counts = [count for one in folders for count in one.counts.values()]
    share = _share(_inside(folders), sum(counts)) if not lists else 0.5
    target: Recipe = {"members": members, "trained": {"model": "", "weights": None}}
    data = {"source": source, "unreadable": "leave_out"}
    return Asked(
        "Who was in the training set of the model?",
        _membership(said, data, target, 0, score=WITHOUT),
        _membership(said, data, target, FULL, share=share, training=TRAINING),
    )


def _share(inside: int, everything: int) -> float:
    """Return the share of examples that shadow models are trained on, as the model was."""
    return min(0.9, max(0.1, round(inside / everything, 2)))


def _inside(folders: Sequence[Thing]) -> int:
    """Return the number of images of the members' part or folder."""
    if len(folders) == 2:
        return sum(members_first(folders)[0].counts.values())
    return next((count for part, count in folders[0].counts.items() if not is_of_others(part)), 0)


def _image_source(folders: Sequence[Thing]) -> tuple[Recipe, str | None]:
    """Return the source of one or two folders of images, and the part that holds the members (None: there is none)."""
    if len(folders) > 2:
        raise UserError(f"{len(folders)} folders of images; bring one with train and val, or members and non-members")
    if len(folders) == 2:
        first, second = members_first(folders)
        if first.classes != second.classes:
            raise UserError(f"{first.path} and {second.path} have different class folders; bring folders of the same classes")
        parts = {
            name: {"source": {"kind": "image_folder", "path": one.path}}
            for name, one in zip(SIDES, (first, second), strict=True)
        }
        return {"kind": "joined", "parts": parts}, f"{SIDES[0]}/"
    one = folders[0]
    inside = [part for part in one.parts if not is_of_others(part)]
    return {"kind": "image_folder", "path": one.path}, f"{inside[0]}/" if len(inside) == 1 else None


def _of_images_alone(source: Recipe) -> Recipe:
    return {
        "extends": "smoke", "title": "What would a model remember of my images?",
        "data": {"source": source, "image_size": 32},
        "split": {"train_per_class": 20, "public_per_class": 20, "crop": {"mode": "corner"}}, "decode": {"k": [10]},
    }  # fmt: skip


def _of_embeddings(exported: Thing, things: Sequence[Thing]) -> Asked:
    """Ask by embeddings of exported pictures what each of two encoders remembers that the other one does not."""
    embeddings = _of(things, "embeddings")
    if not 1 <= len(embeddings) <= 2:
        raise UserError(
            f"{len(embeddings)} files of embeddings; bring those of two encoders, or of one if the recipe has a reference"
        )
    path = Path(exported.path) / "recipe.yaml"
    recipe = inherited({}, read_yaml(path.read_text(encoding="utf-8"), str(path)), str(path))
    recipe = {name: value for name, value in recipe.items() if name not in ("training", "model")}
    recipe["encoders"] = [
        {name: {"kind": "embeddings", "path": one.path} for name, one in zip("ab", embeddings, strict=False)}
    ]
    return Asked(
        "What does each of the two encoders remember that the other one does not?"
        if len(embeddings) == 2
        else "What does the encoder remember of its training data?",
        recipe, name=str(recipe["audit"]),
    )  # fmt: skip


# -- texts --------------------------------------------------------------------------------------------------


def _of_texts(things: Sequence[Thing], said: Said, folder: str) -> Asked:
    """Ask which documents were in the training text of a language model."""
    models, texts, adapter = _of(things, "language"), _of(things, "texts"), _of(things, "adapter")
    if not texts:
        return _lacking(things)
    if len(texts) > 2:
        raise UserError(f"{len(texts)} files of texts; bring one with a column member, or one of members and one of others")
    if len(texts) == 2 and Path(texts[0].path).resolve() == Path(texts[1].path).resolve():
        raise UserError(f"{texts[0].path} is named twice; name the texts that the model was not trained on as well")
    if adapter and len(models) != 1:
        raise UserError(f"{adapter[0].path} is an adapter: bring the folder of the one model that it was trained for, too")
    sides = members_first(texts) if len(texts) == 2 else texts
    read = [read_texts(one) for one in sides]
    has_members = len(sides) == 2 or bool(read[0].members)
    if not models or not has_members:
        lacks = "the model" if has_members else "texts like these that it was not trained on, as a second file"
        return Asked(
            f"For a model of yours, bring {lacks} as well; of the texts alone it can be asked which secrets a fine-tune on "
            "them would give away: memlib init --for fine-tuning"
        )
    documents, members, persons, remarks = _documents(sides, read, models[0].path)
    lines = "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in documents)
    names = [f"document {number:08d}" for number in range(len(documents))]
    table = {"example_id": names, "member": ["yes" if one else "no" for one in members]}
    target: Recipe = {"kind": "huggingface", "path": models[0].path}
    base = models[-1]
    if adapter:
        target["adapter"] = adapter[0].path
    compared = bool(adapter) or base is not models[0]
    attacks = [*(["ratio", "ez", "wbc"] if compared else []), *OF_TEXTS]
    split = {"split": {"group": {"path": f"{folder}/{PERSONS_FILE}"}}} if persons else {}
    quick = _membership(
        said,
        {"source": {"kind": "jsonl", "path": f"{folder}/{DOCUMENTS}", "field": "text"}, "unit": "token", "window": 128},
        {"trained": target, "members": f"{folder}/{LIST}"},
        0, model={"kind": "huggingface", "path": base.path}, score={"attacks": attacks, "headline": attacks[0]}, **split,
    )  # fmt: skip
    if compared:
        name = adapter[0].name if adapter else models[0].name
        remarks.append(f"{name} is compared with {base.name}, from which it was fine-tuned if they were named in this order")
    files = {DOCUMENTS: lines.encode(), LIST: written(table)}
    files |= {PERSONS_FILE: written({"example_id": names, "person": persons})} if persons else {}
    return Asked(
        "Which documents were in the training text of the model?",
        quick,
        name="documents",
        files=files,
        remarks=tuple(remarks),
    )


def _documents(
    sides: Sequence[Thing], read: Sequence[Documents], model: str
) -> tuple[list[str], list[bool], list[str], list[str]]:
    """Return documents, whether each is a member, its person (empty: unknown), and remarks.

    Texts that are on both sides tell nothing of the model, and are left out.
    """
    texts = [text for one in read for text in one.rendered(model)]
    members = [place == 0 for place, one in enumerate(read) for _ in one.texts] if len(sides) == 2 else list(read[0].members)
    persons = [person for one in read for person in one.persons]
    persons = persons if len(persons) == len(texts) else []
    inside, outside = ({text for text, one in zip(texts, members, strict=True) if one is side} for side in (True, False))
    kept = [place for place, text in enumerate(texts) if not (text in inside and text in outside)]
    remarks = [f"{sides[0].path} holds the members, {sides[1].path} the non-members"] if len(sides) == 2 else []
    counts = [sum(members[place] is side for place in kept) for side in (True, False)]
    remarks.append(f"{counts[0]:,} members and {counts[1]:,} non-members, one a {read[0].unit}")
    if len(kept) < len(texts):
        remarks.append(f"{len(texts) - len(kept):,} documents are on both sides, and are left out")
    if persons:
        both = {persons[place] for place in kept if members[place]} & {persons[place] for place in kept if not members[place]}
        if both:
            raise UserError(
                f"{sides[0].path}: {len(both):,} persons, such as {sorted(both)[0]!r}, have documents of members and of "
                "non-members, but a person is drawn as a whole; leave the column out if documents were drawn one by one"
            )
    chosen = [texts[place] for place in kept]
    return chosen, [members[place] for place in kept], [persons[place] for place in kept] if persons else [], remarks
