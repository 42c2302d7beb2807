"""Outputs supplied by a model's owner: class scores by example id in a Parquet file, validated before use."""

import hashlib
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import scipy
from numpy.typing import NDArray

from memlib.data.canaries.secret_key import read_secret
from memlib.data.opening import content_of, read_parquet, reason
from memlib.data.tables.columns import check_ids, check_once, hint_at_ids, ids_of
from memlib.errors import UserError
from memlib.observe.encoders import pseudonym_of
from memlib.specs import OutputsSpec
from memlib.specs.data import QUERY
from memlib.stats.likelihood import decimals_of

NAMED = 3
MOST_EQUAL = 0.9  # share of the examples that may have equal scores, unless they are all of one class
SUM_TO_ONE = 2e-3  # probabilities may be rounded
OWN_ORDER, OTHER_ORDER = 0.05, 0.3  # p of guessing; share of examples by which another order must fit better
FEWEST = 20  # examples from which the order of the classes is judged
LEAST_LOSS = 1e-13  # of a confidence that differs from 1 by less than the limit of log odds


@dataclass(frozen=True)
class SuppliedOutputs:
    """Outputs in the order of the requested examples."""

    #: (num_examples, num_classes) float64, logits, or logarithms of probabilities that sum to 1 per row.
    scores: NDArray[np.float64]
    probabilities: NDArray[np.float64] | None  #: (num_examples, num_classes) float64, as supplied; None for logits.
    digest: str  #: digest of the content read.


def read_outputs(spec: OutputsSpec, members: pa.Table, num_classes: int) -> SuppliedOutputs:
    """Read the outputs of every member, by id or by the pseudonym from `memlib ids`; ignore rows of other examples.

    Args:
        spec: file, columns and kind.
        members: rows of tables.SPLITS: the audited examples.
        num_classes: number of classes of the data.

    Raises:
        UserError: for a missing file or column, missing or repeated ids, a different number of classes, different labels,
            numbers that are not finite or contradict `kind`, or decisions in place of scores.
    """
    named = dict(zip(members["label"].to_pylist(), members["class_name"].to_pylist(), strict=True))
    table = _read(spec, [named.get(label, str(label)) for label in range(num_classes)])
    where = f"{spec.path}: {spec.id_column}"
    ids = [f"{row:07d}" for row in range(table.num_rows)]
    if spec.id_column is not None:
        ids = check_ids(ids_of(table[spec.id_column], where), where)
    place = {name: row for row, name in enumerate(ids)}
    if len(place) < len(ids):
        raise UserError(
            f"{spec.path} has {len(ids) - len(place)} repeated ids in column {spec.id_column}; keep one row per id"
        )
    wanted = members["example_id"].to_pylist()
    if not any(name in place for name in wanted):  # the owner may have seen pseudonyms
        secret = read_secret()
        place = {name: place[pseudonym_of(name, secret)] for name in wanted if pseudonym_of(name, secret) in place}
    missing = [name for name in wanted if name not in place]
    if missing:
        raise UserError(
            f"{spec.path} has no outputs for {len(missing)} of the {len(wanted)} audited examples: "
            f"{', '.join(missing[:NAMED])}{', ...' if len(missing) > NAMED else ''}{hint_at_ids(ids, wanted)}"
        )
    rows = [place[name] for name in wanted]
    if spec.label_column is not None:
        _check_labels(spec, table, rows, members)
    if spec.kind == "scores":
        return _of_scores(spec, table.take(rows))
    if spec.kind == "losses":
        return _of_losses(spec, table.take(rows), members, num_classes)
    lists = table[spec.scores_column].to_pylist()
    lengths = {len(lists[row] or ()) for row in rows}
    if lengths != {num_classes}:
        seen = ", ".join(str(length) for length in sorted(lengths))
        raise UserError(
            f"{spec.path}: {spec.scores_column} has {seen} numbers per example, but the data have {num_classes} classes"
        )
    scores = np.array([lists[row] for row in rows], dtype=np.float64)
    if not np.isfinite(scores).all():
        raise UserError(f"{spec.path}: {spec.scores_column} holds numbers that are not finite")
    digest = hashlib.sha256(scores.tobytes() + "\n".join([spec.kind, *wanted]).encode()).hexdigest()
    largest = max(Counter(members["label"].to_pylist()).values())
    if spec.kind == "logits":
        _refuse_probabilities(spec, scores)
        _refuse_decisions(spec, scores, largest)
        _refuse_other_order(spec, scores, members)
        return SuppliedOutputs(scores, None, digest)
    _check_probabilities(spec, scores)
    _refuse_decisions(spec, scores, largest)
    _refuse_other_order(spec, scores, members)
    return SuppliedOutputs(np.log(np.maximum(scores, 1e-30)), scores, digest)


def _of_scores(spec: OutputsSpec, table: pa.Table) -> SuppliedOutputs:
    """Return scores of any attack, (num_examples, 1), larger for members."""
    values = table[spec.scores_column].to_numpy().astype(np.float64)
    if not np.isfinite(values).all():
        raise UserError(f"{spec.path}: {spec.scores_column} holds numbers that are not finite")
    if np.ptp(values) == 0:
        raise UserError(f"{spec.path}: {spec.scores_column} is {values[0]:g} in all rows, which tells nothing apart")
    digest = hashlib.sha256(values.tobytes()).hexdigest()
    return SuppliedOutputs((values if spec.larger == "members" else -values)[:, None], None, digest)


def _of_losses(spec: OutputsSpec, table: pa.Table, members: pa.Table, num_classes: int) -> SuppliedOutputs:
    """Return outputs whose log odds of the true class follow from its loss, -log p; one other class gets 1 - p."""
    losses = table[spec.scores_column].to_numpy().astype(np.float64)
    if not np.isfinite(losses).all() or losses.min() < 0:
        seen = f"{spec.scores_column} ranges from {losses.min():.3g} to {losses.max():.3g}"
        raise UserError(f"{spec.path}: {seen}; losses are finite and not negative: give -log p, or the squared error")
    labels = members["label"].to_numpy()
    _refuse_decisions(spec, losses[:, None], max(Counter(labels.tolist()).values()))
    floored, rows = np.maximum(losses, LEAST_LOSS), np.arange(len(losses))
    scores = np.full((len(losses), max(num_classes, 2)), -np.inf)
    scores[rows, labels], scores[rows, (labels + 1) % scores.shape[1]] = -floored, np.log(-np.expm1(-floored))
    wanted = members["example_id"].to_pylist()
    digest = hashlib.sha256(losses.tobytes() + "\n".join([spec.kind, *wanted]).encode()).hexdigest()
    return SuppliedOutputs(scores, None, digest)


def check_columns(spec: OutputsSpec) -> None:
    """Check that an outputs file can be read and has a column of ids; its content is checked once the data are known.

    Raises:
        UserError: when the file cannot be read or has no column of ids.
    """
    _open(spec)


def _open(spec: OutputsSpec) -> pa.Table:
    try:
        content = content_of(spec.path)
        if spec.path.lower().endswith(".csv"):  # ids such as 0012 are no numbers
            options = pyarrow.csv.ConvertOptions(column_types={spec.id_column: pa.string()} if spec.id_column else None)
            table = pyarrow.csv.read_csv(io.BytesIO(content), convert_options=options)
            table.validate(full=True)
        else:
            table = read_parquet(content, spec.path)
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise UserError(f"cannot read outputs from {spec.path} ({reason(error)})") from error
    if spec.id_column is not None and spec.id_column not in table.column_names:
        seen = ", ".join(table.column_names)
        raise UserError(
            f"{spec.path} has no column {spec.id_column!r} of ids; it has {seen}; name the right one in id_column"
        )
    return table


def _read(spec: OutputsSpec, classes: Sequence[str]) -> pa.Table:
    table = _open(spec)
    if spec.scores_column not in table.column_names and not spec.is_single:
        table = _with_scores(table, spec, classes)
    wanted = [spec.id_column, spec.scores_column, spec.label_column]
    check_once(table.column_names, [name for name in wanted if name is not None], spec.path)
    kind = table.schema.field(spec.scores_column).type
    if spec.is_single:
        if blank := table[spec.scores_column].null_count:
            raise UserError(f"{spec.path}: {spec.scores_column} must hold a number in each row; it is empty in {blank:,}")
        if not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
            raise UserError(f"{spec.path}: {spec.scores_column} must hold a number in each row; it holds {kind}")
        return table
    if not _is_list(kind) or not (pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type)):
        raise UserError(f"{spec.path}: {spec.scores_column} must hold a list of numbers, one per class; it holds {kind}")
    if pc.list_flatten(table[spec.scores_column]).null_count:
        raise UserError(f"{spec.path}: {spec.scores_column} has lists with missing numbers")
    return table


def _with_scores(table: pa.Table, spec: OutputsSpec, classes: Sequence[str]) -> pa.Table:
    """Return a table with a column of scores, made of one column per class: named after it, or p0, p1, ... in their order."""
    numbers = [
        field.name
        for field in table.schema
        if field.name != spec.id_column and (pa.types.is_floating(field.type) or pa.types.is_integer(field.type))
    ]
    prefixes = [name[:-1] for name in numbers if name.endswith("0") and not name[:-1].endswith(tuple("123456789"))]
    numbered = (tuple(f"{prefix}{number}" for number in range(len(classes))) for prefix in prefixes)
    choices = dict.fromkeys([tuple(classes), *numbered])  # classes may be called 0, 1, ... themselves
    found = [names for names in choices if set(names) <= set(numbers)]
    if tuple(classes) in found:  # numbered classes may be in another order than their numbers
        found = [tuple(classes)]
    if len(found) != 1:
        one_each = f"one column of numbers per class ({', '.join(classes[:NAMED])}, ... or p0, p1, ...)"
        raise UserError(
            f"{spec.path} has no column {spec.scores_column!r}, and not {one_each}; it has {', '.join(table.column_names)}"
        )
    rows = np.column_stack([table[name].to_numpy() for name in found[0]]).astype(np.float64)
    scores = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), len(classes))
    return table.append_column(spec.scores_column, scores)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind) or pa.types.is_large_list(kind))


def _check_labels(spec: OutputsSpec, table: pa.Table, rows: list[int], members: pa.Table) -> None:
    assert spec.label_column is not None
    supplied = table[spec.label_column].to_pylist()
    labels, names = members["label"].to_pylist(), members["class_name"].to_pylist()
    differ = [
        (members["example_id"][i].as_py(), supplied[row], labels[i])
        for i, row in enumerate(rows)
        if supplied[row] not in (labels[i], str(labels[i]), names[i])
    ]
    if differ:
        name, given, expected = differ[0]
        raise UserError(
            f"{spec.path}: {len(differ)} labels differ from those of the data, such as {name}'s ({given!r}, but "
            f"{expected} in the data)"
        )


def _check_probabilities(spec: OutputsSpec, scores: NDArray[np.float64]) -> None:
    sums = scores.sum(axis=1)
    if scores.min() >= 0 and np.abs(sums - 1).max() <= _tolerance(scores):
        return
    if scores.min() >= 0 and np.abs(sums / 100 - 1).max() <= _tolerance(scores / 100):
        raise UserError(f"{spec.path}: {spec.scores_column} sums to 100; these are percentages: divide them by 100")
    if scores.min() < 0 or sums.max() > 1.5:
        seen = f"{spec.scores_column} ranges from {scores.min():.3g} to {scores.max():.3g}"
        raise UserError(f"{spec.path}: {seen}; these are no probabilities; if they are logits, set outputs.kind to logits")
    raise UserError(
        f"{spec.path}: {spec.scores_column} is not a distribution: its rows sum to {sums.min():.3g} to {sums.max():.3g}"
    )


def _refuse_decisions(spec: OutputsSpec, scores: NDArray[np.float64], largest_class: int) -> None:
    """Raise UserError for scores that do not show the model's confidence.

    Args:
        spec: file and columns, for the message.
        scores: (num_examples, num_classes).
        largest_class: number of examples of the most frequent class, which a confident model may answer alike.
    """
    equal = int(np.unique(scores, axis=0, return_counts=True)[1].max())
    if equal > max(MOST_EQUAL * len(scores), largest_class):
        raise UserError(
            f"{spec.path}: {spec.scores_column} is the same for {equal:,} of {len(scores):,} examples, which are of several "
            "classes; ask the model's owner for its scores, unrounded"
        )
    if len(np.unique(scores)) <= 2:
        low, high = scores.min(), scores.max()
        raise UserError(
            f"{spec.path}: {spec.scores_column} holds only {low:g} and {high:g}, which are decisions, not confidences; "
            "ask the model's owner for probabilities or logits"
        )


def _refuse_other_order(spec: OutputsSpec, scores: NDArray[np.float64], members: pa.Table) -> None:
    """Raise UserError if scores fit the classes no better than guessing, but much better in an order that files often have.

    The model's answers on withheld and known examples decide, as it may have unlearned D_Q. Only orders such as reversed or
    sorted as text are tried, from three classes on: a model of images of another kind may take one class for another.

    Args:
        spec: file and columns, for the message.
        scores: (num_examples, num_classes).
        members: rows of tables.SPLITS.
    """
    others = np.array([role != QUERY for role in members["role"].to_pylist()]) if "role" in members.column_names else None
    chosen = others if others is not None and others.any() else np.ones(len(scores), dtype=bool)
    labels, answers = members["label"].to_numpy()[chosen], scores[chosen].argmax(axis=1)
    count, classes = len(labels), scores.shape[1]
    right = int((answers == labels).sum())
    if count < FEWEST or classes < 3 or scipy.stats.binom.sf(right - 1, count, 1 / classes) <= OWN_ORDER:
        return
    named = dict(zip(members["label"].to_pylist(), members["class_name"].to_pylist(), strict=True))
    as_text = np.array(sorted(range(classes), key=lambda label: str(named.get(label, label))))
    numbers = np.arange(classes)
    orders = {
        "reversed": numbers[::-1],
        "shifted by one": np.roll(numbers, 1),
        "shifted by one the other way": np.roll(numbers, -1),
        "sorted as text": as_text,
        "those of names sorted as text": np.argsort(as_text),
    }
    fits = {name: int((order[answers] == labels).sum()) for name, order in orders.items()}
    name = max(fits, key=lambda each: fits[each])
    if fits[name] > right + (OTHER_ORDER + 1 / np.sqrt(count)) * count:
        raise UserError(
            f"{spec.path}: the largest of {spec.scores_column} is the right class of {right:,} of {count:,} examples, but of "
            f"{fits[name]:,} if the classes are {name}; give the scores in the order of the data's classes, or one "
            "column per class, named after it"
        )


def _tolerance(scores: NDArray[np.float64]) -> float:
    """Return the tolerance for the sum of a row of probabilities: each may be off by half a unit of its last decimal."""
    decimals = decimals_of(scores)
    return SUM_TO_ONE + (0.0 if decimals is None else scores.shape[1] * 0.5 * 10.0**-decimals)


def _refuse_probabilities(spec: OutputsSpec, scores: NDArray[np.float64]) -> None:
    if scores.min() >= 0 and scores.shape[1] > 1 and np.abs(scores.sum(axis=1) / 100 - 1).max() <= _tolerance(scores / 100):
        advice = "these are percentages: divide them by 100 and set outputs.kind to probabilities"
        raise UserError(f"{spec.path}: {spec.scores_column} sums to 100; {advice}")
    if scores.min() >= 0 and scores.max() <= 1 and np.abs(scores.sum(axis=1) - 1).max() <= _tolerance(scores):
        raise UserError(
            f"{spec.path}: {spec.scores_column} sums to 1; these are probabilities: set outputs.kind to probabilities"
        )
