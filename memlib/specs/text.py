"""Specs of text, and of the secrets inserted into it."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from memlib.specs.base import Source, Spec
from memlib.specs.limits import MOST_EXAMPLES, MOST_PIXELS, MOST_SEED

INSERTED, GIVEN, NEVER, UNSEEN = "inserted", "given", "never", "unseen"
"""Kinds of canaries: drawn and inserted; of a file; drawn and never inserted; of a file of what no model saw."""


class TopicsSource(Source):
    """Embedded text: the help topics of Python's standard library, half a million characters; each version has its own."""

    kind: Literal["topics"] = "topics"


class TextFileSource(Source):
    """A plain text file; .xz, .gz and .bz2 are unpacked."""

    whereabouts: ClassVar[frozenset[str]] = frozenset({"path"})

    kind: Literal["text"]
    path: str
    """The file, UTF-8; local or s3://."""


class TextParquetSource(Source):
    """Parquet files with a column of text, a document a row."""

    whereabouts: ClassVar[frozenset[str]] = frozenset({"path"})

    kind: Literal["text_parquet"]
    path: str
    """A file, a folder or a glob; local or s3://."""
    text_column: str = "text"
    """The column; documents become lines."""


class TopicPairsSource(Source):
    """Embedded pairs for translation: lines of Python's help topics, and the same in Pig Latin."""

    kind: Literal["topic_pairs"]


class PairsFileSource(Source):
    """A text file of pairs for translation: source and target with a tab between, a pair a line."""

    whereabouts: ClassVar[frozenset[str]] = frozenset({"path"})

    kind: Literal["pairs"]
    path: str
    """The file, UTF-8; local or s3://; .xz, .gz and .bz2 are unpacked."""


TextSource = Annotated[
    TopicsSource | TextFileSource | TextParquetSource | TopicPairsSource | PairsFileSource, Field(discriminator="kind")
]


class TextSpec(Spec):
    """A corpus, cut into windows that a model sees one by one."""

    source: TextSource
    unit: Literal["character", "word", "token"] = "character"
    """What a symbol is; words are what spaces part, and the end of a line is one. token: what the tokenizer of a model makes
    that is fine-tuned; documents (rows of Parquet, what blank lines part in other text) are put in random order
    and packed into windows, with the tokenizer's end of a text after each."""
    window: int = Field(default=100, ge=8, le=MOST_PIXELS)
    """Symbols in a window; nothing passes from one to the next. Of pairs: in each side, with the end of its line."""
    fraction: float = Field(default=1.0, gt=0, le=1)
    """Use only the beginning of the text."""
    validation: float = Field(default=0.1, gt=0, lt=1)
    """Share of the windows, the last ones, that no model trains on; of tokens: share of the documents, drawn at random."""
    vocabulary: int | None = Field(default=None, ge=2, le=MOST_EXAMPLES)
    """The most frequent symbols that are told apart; others become <unk>. By default all. Of tokens: left out."""

    @property
    def paired(self) -> bool:
        """Whether the text is pairs for translation."""
        return self.source.kind in ("pairs", "topic_pairs")


class SecretsSpec(Spec):
    """Canaries: a format whose holes are filled at random, and how often each stands in the corpus (Carlini 2019, 4.1)."""

    format: str = "My number is {d9}"
    """Text with holes: {d9} is nine digits; h: hexadecimal digits; l, u: letters; a: lower-case letters and digits."""
    alphabets: Mapping[Annotated[str, Field(pattern=r"^[a-z_]+$")], tuple[str, ...]] = {}
    """Further alphabets by name: symbols, or words for a word model."""
    source: str | None = None
    """Of pairs: the text that a canary (`format`) is the translation of. It may have the same holes; then it holds the same
    secret, each candidate is scored after its own source, and nothing can be searched for."""
    insertions: tuple[Annotated[int, Field(ge=1, le=MOST_EXAMPLES)], ...] = Field(default=(1, 4, 16), min_length=1)
    """How often a canary is inserted; one canary (or `each`) for every number."""
    each: int = Field(default=1, ge=1, le=MOST_EXAMPLES)
    """Canaries of every number of insertions."""
    file: str | None = None
    """Instead of inserting: a text file of secrets that the text holds already, one a line, each filling the format. One
    model is trained, on the text as it is; `insertions`, `each` and `together` say nothing, results count how often the part
    of the text that trains holds a secret, or what stands after the secret and a tab. A model that was trained elsewhere
    (trained) is taken to have seen each at least once."""
    unseen: str | None = None
    """Beside file: a text file of other secrets of the same kind, one a line, which the training text does not hold. They
    are what given secrets are ranked among; without them exposure of given secrets is no evidence, as people's secrets are
    not uniform. For m secrets and V variants, at least 2 m V / alpha of them are needed to name a single one."""
    never: int = Field(default=20, ge=0, le=MOST_EXAMPLES)
    """Canaries that are drawn alike and never inserted: the null."""
    together: bool = False
    """True: one model sees all canaries. False: every canary has a model of its own, and the never inserted ones one."""
    known_prefix: bool = True
    """Whether candidates are scored after the text before the first hole, as one would ask who knows it."""
    known_suffix: bool = True
    """Whether the text after the last hole is part of the candidates."""
    seed: int = Field(default=0, ge=0, le=MOST_SEED)
    """With the secret file, draws canaries and places."""

    @model_validator(mode="after")
    def _unseen_are_compared(self) -> "SecretsSpec":
        if self.unseen is not None and self.file is None:
            raise ValueError("canaries.unseen is what the secrets of canaries.file are compared with; give file too")
        return self
