"""Specs of text, and of the secrets inserted into it or contained in it."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from memlib.specs.base import MOST_EXAMPLES, MOST_PIXELS, MOST_SEED, Kind, Source, Spec

INSERTED, GIVEN, NEVER, UNSEEN, RECURRING = "inserted", "given", "never", "unseen", "recurring"
"""Kinds of canaries: drawn and inserted; listed in a file; drawn but never inserted; in a file, seen by no model; listed in a
file, but not comparable with unseen ones, as they recur or share a document."""


class TopicsSource(Source):
    """Embedded text: the help topics of the installed Python's standard library, half a million characters."""

    is_embedded: ClassVar[bool] = True
    holds: ClassVar[Kind] = "texts"

    kind: Literal["topics"] = "topics"


class TextFileSource(Source):
    """A plain text file; .xz, .gz and .bz2 are decompressed."""

    holds: ClassVar[Kind] = "texts"
    whereabouts: ClassVar[frozenset[str]] = frozenset({"path"})

    kind: Literal["text"]
    path: str
    """The file, UTF-8; local or s3://."""


class TextParquetSource(Source):
    """Parquet files with a column of text, or of chat messages, one document per row."""

    holds: ClassVar[Kind] = "texts"
    whereabouts: ClassVar[frozenset[str]] = frozenset({"path", "template"})
    added_later: ClassVar[frozenset[str]] = frozenset({"template"})

    kind: Literal["text_parquet"]
    path: str
    """A file, a folder or a glob; local or s3://."""
    text_column: str = "text"
    """Column of text; each document becomes a line. With `template`: column of chats, which are lists of messages."""
    template: str | None = None
    """For chats: folder of the Hugging Face tokenizer or model whose chat template renders them as text. The template runs in
    a sandbox; one that prints the date is given 1 January 2026."""


class JsonLinesSource(Source):
    """JSON lines: a record per line with a text, or with chat messages; one document per record."""

    holds: ClassVar[Kind] = "texts"
    whereabouts: ClassVar[frozenset[str]] = frozenset({"path", "template"})

    kind: Literal["jsonl"]
    path: str
    """A file, a folder or a glob; local or s3://; .xz, .gz and .bz2 are decompressed."""
    field: str = "text"
    """The record's field with the text; a field within a field is named with dots, as in `message.body`. With `template`: the
    field with the chat, a list of messages."""
    template: str | None = None
    """For chats: folder of the Hugging Face tokenizer or model whose chat template renders them as text. The template runs in
    a sandbox; one that prints the date is given 1 January 2026."""


class MailSource(Source):
    """Mail: an mbox file, a folder of messages (.eml) or a Maildir; one document per message. A document holds the headers
    From, To, Cc, Date and Subject and the text of the message; attachments are left out and counted."""

    holds: ClassVar[Kind] = "texts"
    whereabouts: ClassVar[frozenset[str]] = frozenset({"path"})

    kind: Literal["mail"]
    path: str
    """A file or a folder; local or s3://; .xz, .gz and .bz2 are decompressed."""


class TopicPairsSource(Source):
    """Embedded pairs for translation: lines of Python's help topics, and the same lines in Pig Latin."""

    is_embedded: ClassVar[bool] = True
    holds: ClassVar[Kind] = "texts"

    kind: Literal["topic_pairs"]


class PairsFileSource(Source):
    """A text file of pairs for translation: one pair per line, source and target separated by a tab."""

    holds: ClassVar[Kind] = "texts"
    whereabouts: ClassVar[frozenset[str]] = frozenset({"path"})

    kind: Literal["pairs"]
    path: str
    """The file, UTF-8; local or s3://; .xz, .gz and .bz2 are decompressed."""


TextSource = Annotated[
    TopicsSource | TextFileSource | TextParquetSource | JsonLinesSource | MailSource | TopicPairsSource | PairsFileSource,
    Field(discriminator="kind"),
]


class TextSpec(Spec):
    """A corpus, cut into windows that a model processes separately."""

    added_later: ClassVar[frozenset[str]] = frozenset({"hold_out"})

    source: TextSource
    unit: Literal["character", "word", "token"] = "character"
    """Unit of text that a model predicts. word: words are separated by spaces, and the end of a line is a word. token: tokens
    of the fine-tuned model's tokenizer; documents (records of Parquet, JSON lines or mail; passages between blank lines of
    other text) are put in random order and packed into windows, each followed by the tokenizer's end-of-text token."""
    window: int = Field(default=100, ge=8, le=MOST_PIXELS)
    """Units per window; models carry no state from one window to the next. For pairs: units per side, including the end of
    the line."""
    fraction: float = Field(default=1.0, gt=0, le=1)
    """Share of the text to use, from its beginning."""
    validation: float = Field(default=0.1, gt=0, lt=1)
    """Share of the windows that no model trains on (see hold_out); with unit token, share of the documents, drawn at
    random."""
    hold_out: Literal["tail", "blocks"] = "tail"
    """Windows that no model trains on. tail: the last ones; blocks: random blocks of consecutive windows, so that given
    secrets that occur once can be compared with held-out ones (what comes last may differ, as numbers that grow with time
    do). Not for unit token, whose documents are drawn at random, and not for pairs."""
    vocabulary: int | None = Field(default=None, ge=2, le=MOST_EXAMPLES)
    """Size of the vocabulary: less frequent units become <unk>. By default all are kept. Not for unit token."""

    @model_validator(mode="after")
    def _blocks_are_of_windows(self) -> "TextSpec":
        if self.hold_out == "blocks" and (self.unit == "token" or self.paired):
            raise ValueError("hold_out: blocks applies to texts of characters or words; leave it out")
        return self

    @property
    def paired(self) -> bool:
        """True if the text consists of pairs for translation."""
        return self.source.kind in ("pairs", "topic_pairs")


class SecretsSpec(Spec):
    """Canaries: a format whose holes are filled at random, and how often each canary is inserted (Carlini 2019, 4.1)."""

    added_later: ClassVar[frozenset[str]] = frozenset({"words"})

    format: str = "My number is {d9}"
    """Text with holes: {d9} is nine digits; h: hexadecimal digits; l: lower-case letters; u: capitals; a: lower-case letters
    and digits; w: words of the text, which a model of characters spells (with spaces around)."""
    alphabets: Mapping[Annotated[str, Field(pattern=r"^[a-z_]+$")], tuple[str, ...]] = {}
    """Further alphabets by name: characters, or words for a word model."""
    words: int | None = Field(default=None, ge=2, le=MOST_EXAMPLES)
    """Number of words that {w} stands for, the most frequent ones of the text (all if it has fewer); null: all."""
    source: str | None = None
    """For pairs: the source text of which a canary (`format`) is the translation. If it has the same holes, it
    contains the same secret: each candidate is then scored after its own source, and extraction is impossible."""
    insertions: tuple[Annotated[int, Field(ge=1, le=MOST_EXAMPLES)], ...] = Field(default=(1, 4, 16), min_length=1)
    """Numbers of insertions; for each number, one canary (or as many as `each`) is inserted that many times."""
    each: int = Field(default=1, ge=1, le=MOST_EXAMPLES)
    """Canaries per number of insertions."""
    file: str | None = None
    """Instead of insertions: a text file of secrets that the text already contains, one per line, each matching the format.
    One model is trained on the unchanged text; `insertions`, `each` and `together` are ignored. Results report how often the
    training part of the text contains a secret. Without `unseen`, secrets that occur once are compared with those that
    occur once in held-out text, if this was drawn at random (data.hold_out); others are listed, but not tested. For an
    external model (trained), a number after the secret and a tab states how often the model saw the secret; without a
    number, at least once is assumed."""
    unseen: str | None = None
    """With `file`: a text file of other secrets of the same kind, one per line, which the training text does not contain. The
    given secrets are ranked among these unseen secrets; otherwise their exposure is no evidence, as people's secrets are not
    uniformly distributed. To identify a single one of m secrets with V variants, at least 2 m V / alpha unseen secrets are
    needed."""
    never: int = Field(default=20, ge=0, le=MOST_EXAMPLES)
    """Number of canaries that are drawn in the same way but never inserted; they give the null distribution."""
    together: bool = False
    """true: one model sees all canaries; false: one model per inserted canary, and one for all canaries never inserted."""
    known_prefix: bool = True
    """true: score candidates given the text before the first hole, as an attacker who knows this prefix would."""
    known_suffix: bool = True
    """true: candidates include the text after the last hole."""
    seed: int = Field(default=0, ge=0, le=MOST_SEED)
    """Seed of the canaries and their positions, which also depend on the secret file."""

    @model_validator(mode="after")
    def _unseen_are_compared(self) -> "SecretsSpec":
        if self.unseen is not None and self.file is None:
            raise ValueError("canaries.unseen is compared with the secrets of canaries.file; set canaries.file as well")
        return self
