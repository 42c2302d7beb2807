"""Labels of a source: those that are left out, and classes that have no example."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from memlib.data.examples import Example, Source, UnreadableImage
from memlib.errors import DataError
from memlib.sanitize import count_of
from memlib.specs import LabelsSpec

MOST_NAMED = 5  # classes named in a remark


class Labelled:
    """A source without the examples of some labels, and with its remaining classes numbered without a gap.

    Args:
        source: the source to wrap. Labels can be left out if it has the attribute `labels`, the label of each example.
        spec: the labels to leave out; None if there are none.

    Raises:
        DataError: for a label that no example has, a source whose labels are not known before decoding, and negative labels
            that are not left out, as they would count classes from the end.
    """

    def __init__(self, source: Source, spec: LabelsSpec | None) -> None:
        self._source, drop = source, () if spec is None else spec.drop
        labels: Sequence[int] | None = getattr(source, "labels", None)
        if drop and labels is None:
            raise DataError(
                "data.labels.drop needs a source that lists its labels in advance; drop the examples in the source"
            )
        dropped = {_number(name, source.class_names, labels or ()) for name in drop}
        self._rows = None if not drop else [row for row, label in enumerate(labels or ()) if label not in dropped]
        kept = [name for number, name in enumerate(source.class_names) if number not in dropped]
        self._place = {name: place for place, name in enumerate(kept)} if len(kept) < len(source.class_names) else None
        self.class_names = kept
        self.remarks = list(getattr(source, "remarks", ()))
        if labels is None:
            return
        counts = Counter(label for label in labels if label not in dropped)
        if not counts:
            raise DataError("data.labels.drop leaves no example")
        if (smallest := min(counts)) < 0:
            raise DataError(
                f"{count_of(counts[smallest], 'example')} with the label {smallest}; classes are numbered from 0: leave out "
                f"examples without a class with data.labels: {{drop: [{smallest}]}}"
            )
        if sum(counts.values()) < len(labels):
            self.remarks.append(f"examples left out by their label: {len(labels) - sum(counts.values()):,}")
        empty = [number for number in range(len(source.class_names)) if not counts[number] and number not in dropped]
        self.remarks += _of_empty([source.class_names[number] for number in empty])

    def __len__(self) -> int:
        return len(self._source) if self._rows is None else len(self._rows)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # own attributes, before __init__ has set them
            raise AttributeError(name)
        return getattr(self._source, name)  # optional attributes of the source, such as point_dim

    def __getitem__(self, index: int) -> Example:
        try:
            example = self._source[index if self._rows is None else self._rows[index]]
        except UnreadableImage as error:
            raise UnreadableImage(error.example_id, self._label(error.label), error.reason) from error
        if self._place is None:
            return example
        return replace(example, label=self._label(example.label))

    def content_digest(self) -> str:
        """Return the source's digest; the labels to leave out are in the recipe."""
        return self._source.content_digest()

    def _label(self, label: int) -> int:
        return label if self._place is None else self._place[self._source.class_names[label]]


def _number(name: int | str, classes: Sequence[str], labels: Sequence[int]) -> int:
    """Return the label that a recipe names by its number, or by the name of its class."""
    number = classes.index(str(name)) if str(name) in classes else name
    if not isinstance(number, int) or number not in set(labels):
        raise DataError(f"data.labels.drop names {name!r}, which no example has as its label")
    return number


def _of_empty(names: Sequence[str]) -> list[str]:
    """Return a remark on classes without examples."""
    if not names:
        return []
    counted = " (are the labels numbered from 1?)" if list(names) == ["0"] else ""
    named = ", ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED:,} more" if len(names) > MOST_NAMED else "")
    return [f"classes without examples: {named}{counted}"]
