"""Images and labels listed in a CSV file, such as CheXpert's train.csv."""

import csv
from collections import Counter
from typing import Any

from memlib.data.bounds import check_inside
from memlib.data.columns import check_once, read_csv
from memlib.data.examples import Example, decode_example, list_files, listing_digest, look_at_image, open_location
from memlib.errors import DataError
from memlib.identity import canonical_json
from memlib.specs import CsvSource


class CsvImages:
    """Images that a CSV file lists with the label of a class; example ids are the image paths."""

    def __init__(self, spec: CsvSource) -> None:
        self._spec = spec
        fs, path = open_location(spec.path)
        try:
            names, rows = read_csv(fs.cat_file(path), spec.path)
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise DataError(f"cannot read {spec.path} ({error})") from error
        check_once(names, list(dict.fromkeys((spec.image_column, spec.label_column, *spec.where))), spec.path)
        self.class_names = list(spec.classes)
        given = Counter(value for values in spec.classes.values() for value in set(values))
        if twice := next((value for value, count in given.items() if count > 1), None):
            raise DataError(f"data.source.classes gives the value {twice!r} to several classes; give it to one")
        label_of = {value: label for label, name in enumerate(spec.classes) for value in spec.classes[name]}
        wanted = (row for row in rows if all(row[name] == value for name, value in spec.where.items()))
        self._rows = [
            (row[spec.image_column] or "", label_of[row[spec.label_column]])
            for row in wanted
            if row[spec.label_column] in label_of
        ]
        if not self._rows:
            raise DataError(
                f"no row of {spec.path} matches `where` and has one of {sorted(label_of)} in column {spec.label_column!r}"
            )
        self._fs, self._root = open_location(spec.root)
        for name, _ in self._rows:
            check_inside(self._fs, self._root, name, f"a row of {spec.path}")

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def labels(self) -> list[int]:
        """The label of each image."""
        return [label for _, label in self._rows]

    def __getitem__(self, index: int) -> Example:
        name, label = self._rows[index]
        try:
            data = self._fs.cat_file(f"{self._root.rstrip('/')}/{name}")
        except (FileNotFoundError, IsADirectoryError) as error:
            raise DataError(f"{self._spec.path} names {name}, which is not below {self._spec.root}") from error
        return decode_example(data, name, label)

    def content_digest(self) -> str:
        """Return a digest of the image files used, followed by the rows."""
        listing: dict[str, Any] = list_files(self._fs, self._root)
        used = {name: listing[name] for name, _ in self._rows if name in listing}
        return listing_digest(self._fs, self._root, used, look=look_at_image) + canonical_json(self._rows)
