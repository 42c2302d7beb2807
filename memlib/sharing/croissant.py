"""Descriptions of a run's data as Croissant 1.0 (JSON-LD of MLCommons), without any example, location or name of a class."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from memlib.errors import UserError
from memlib.pipeline.sources import DATA_STAGES
from memlib.runs.index import refs_of
from memlib.runs.run import Run
from memlib.sanitize import count_of
from memlib.store import Ref
from memlib.store.records import ArtifactRecord

VERSION = "http://mlcommons.org/croissant/1.0"
JSON_TYPED = ("data", "examples")
TERMS = (
    "citeAs", "column", "equivalentProperty", "extract", "field", "fileProperty", "fileObject", "fileSet", "format",
    "includes", "isLiveDataset", "jsonPath", "key", "md5", "parentField", "path", "recordSet", "references", "regex",
    "repeated", "replace", "samplingRate", "separator", "source", "subField", "transform",
)  # fmt: skip
CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
    **{name: {"@id": f"cr:{name}", "@type": "@json"} for name in JSON_TYPED},
    **{name: f"cr:{name}" for name in TERMS},
}
COLUMNS = ("label_column", "id_column", "person_column", "text_column", "image_column", "boxes_column", "field")
"""Keys of sources that name a column of the data."""
COUNTS = (("num_examples", "example"), ("documents", "document"), ("num_windows", "window"))
"""Facts of data artifacts that count examples, with their nouns."""
MEDIA = {"csv": "text/csv", "table": "text/csv", "parquet": "application/vnd.apache.parquet", "image_folder": "image/*"}
TEXT, IMAGE = "sc:Text", "sc:ImageObject"


def describe(run: Run) -> dict[str, Any]:
    """Return the description of a run's data.

    Croissant also requires creator and date of publication, which a store does not know; the license is given as unknown.

    Raises:
        UserError: for a run without data of its own.
        CorruptArtifact: if the record of the data is gone from the store.
    """
    refs = sorted((ref for ref in refs_of(run.record) if ref.stage in DATA_STAGES), key=str)
    digest = run.record.ledger.data
    if not refs or not digest:
        raise UserError(f"run {run.id} records no data of its own; name one of its cells, if it has any")
    parts = [_Part(ref, run.store.artifacts.manifest(ref)) for ref in refs]
    kinds = " and ".join(dict.fromkeys(part.kind for part in parts))
    return {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": VERSION,
        "name": f"{kinds} {digest[:12]}",
        "description": f"Data of memorization audit {run.id} ({run.audit}). {' '.join(part.sentence() for part in parts)}",
        "license": {"@type": "sc:CreativeWork", "name": "unknown"},
        "url": f"urn:memlib:data:{digest}",
        "identifier": f"sha256:{digest}",
        "distribution": [part.files() for part in parts],
        "recordSet": [part.records() for part in parts],
    }


class _Part:
    """A source of a run's data, as recorded with the artifact into which it was decoded."""

    def __init__(self, ref: Ref, manifest: ArtifactRecord) -> None:
        self.name = f"{ref.stage.replace('/', '-')}-{ref.key[:12]}"
        self._facts = manifest.facts
        self._source = _source_in(manifest.spec)
        self.kind = str(self._source.get("kind", "text")).replace("_", " ")

    def sentence(self) -> str:
        """Return the size of the source and the types of its columns, in words."""
        understood = self._facts.get("understood") or {}
        counted = [count_of(int(self._facts[fact]), noun) for fact, noun in COUNTS if fact in self._facts]
        classes = understood.get("classes")
        of = f" of {count_of(len(classes), 'class', 'classes')}" if classes else ""
        size = f"{self.kind.capitalize()}: {counted[0] if counted else 'an unknown number of examples'}{of}"
        return f"{'. '.join([size, *understood.get('schema', ())])}."

    def files(self) -> dict[str, Any]:
        """Return the files of the source, which are not distributed."""
        media = MEDIA.get(str(self._source.get("kind")), "application/octet-stream")
        said = "The files of the source, which are not distributed."
        return {
            "@type": "cr:FileSet", "@id": f"{self.name}-files", "name": f"{self.name}-files", "description": said,
            "encodingFormat": media, "includes": "*",
        }  # fmt: skip

    def records(self) -> dict[str, Any]:
        """Return the fields of the examples, as far as they are known."""
        return {
            "@type": "cr:RecordSet",
            "@id": self.name,
            "name": self.name,
            "description": self.sentence(),
            "field": [self._field(name, kind) for name, kind in self._fields()],
        }

    def _fields(self) -> Iterator[tuple[str, str]]:
        named = [str(self._source[key]) for key in COLUMNS if self._source.get(key)]
        columns: Sequence[Any] = self._source.get("columns") or ()
        if named or columns:
            image = self._source.get("image_column")
            yield from ((name, IMAGE if name == image else TEXT) for name in dict.fromkeys([*named, *map(str, columns)]))
        elif (self._facts.get("understood") or {}).get("widths"):
            yield from (("image", IMAGE), ("label", TEXT))
        elif self._facts.get("understood"):
            yield from (("point", "sc:Float"), ("label", TEXT))
        else:
            yield "text", TEXT

    def _field(self, name: str, kind: str) -> dict[str, Any]:
        extract = {"fileProperty": "content"} if kind == IMAGE else {"column": name}
        source = {"fileSet": {"@id": f"{self.name}-files"}, "extract": extract}
        return {"@type": "cr:Field", "@id": f"{self.name}/{name}", "name": name, "dataType": kind, "source": source}


def _source_in(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the source in the spec of a data stage, which may be within the description of its text."""
    for value in (spec.get("source"), *(inner.get("source") for inner in spec.values() if isinstance(inner, Mapping))):
        if isinstance(value, Mapping):
            return value
    return {}
