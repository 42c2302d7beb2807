"""Sources of text: plain files, and records, which are rows of Parquet files, JSON lines, or mail."""

import email.policy
import importlib
import os
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from email.message import EmailMessage, MIMEPart
from email.parser import BytesParser
from html.parser import HTMLParser
from pathlib import PurePosixPath
from typing import Any, AnyStr

import pyarrow as pa
import pyarrow.dataset
from fsspec.implementations.local import LocalFileSystem

from memlib.data.bounds import check_links, check_size, read_pieces
from memlib.data.examples import find_files, is_hidden
from memlib.data.opening import decoded_size, located, opened, reason
from memlib.data.text.chats import Chat, is_chat, render
from memlib.data.text.streams import LINE_END, LONGEST, UNREADABLE, Text, read_file
from memlib.errors import DataError, UserError
from memlib.specs import JsonLinesSource, MailSource, PairsFileSource, TextFileSource, TextParquetSource, TextSource
from memlib.store.records import Unreadable, json_once

ROWS_READ = 1000  # documents per read
HEADERS = ("From", "To", "Cc", "Date", "Subject")
KNOWING = ("from", "date", "subject", "message-id", "received", "to")  # of which a mail has at least one
ESCAPED = re.compile(rb">+From ")  # a line of a message in an mbox that would look like the beginning of another one
JSON_LINES = {".jsonl", ".json", ".ndjson"}


def open_text(source: TextSource) -> Text:
    """Return the text of a source; for pairs, the text from which pairs are made. Records are joined by line ends."""
    name = str(getattr(source, "path", source.kind))
    if (records := records_of(source)) is not None:
        return Text(lambda: _joined(records), name, records.remarks)
    if isinstance(source, TextFileSource | PairsFileSource):
        return Text(lambda: read_file(source.path), name)
    return Text(_topics, name)


def _topics() -> Iterator[str]:
    topics = importlib.import_module("pydoc_data.topics").topics
    yield LINE_END.join(str(topics[name]) for name in sorted(topics))


def _joined(texts: Iterable[str]) -> Iterator[str]:
    for number, text in enumerate(texts):
        yield LINE_END + text if number else text


class Records(ABC):
    """A source of text that is divided into records.

    Attributes:
        counts: number of parts that the last pass left out, or read with a fallback, by kind.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    @abstractmethod
    def __iter__(self) -> Iterator[str]:
        """Yield the texts that are not empty.

        Raises:
            DataError: when the source cannot be read, or a record holds no text.
        """

    def remarks(self) -> list[str]:
        """Return a line for each kind of part that the last pass left out, or read with a fallback."""
        return [f"{what}: {count:,}" for what, count in self.counts.items()]


def records_of(source: TextSource) -> Records | None:
    """Return the records of a source; None for a source of running text."""
    match source:
        case TextParquetSource():
            return ParquetTexts(source)
        case JsonLinesSource():
            return JsonLines(source)
        case MailSource():
            return Mails(source)
    return None


def _texts(values: Iterable[tuple[str, Any]], template: str | None, what: str) -> Iterator[str]:
    """Yield the texts that are not empty, or the rendered chats.

    Args:
        values: the texts or chats, each after its place in the source.
        template: folder of the template for chats; None for texts.
        what: name of the source, for messages.
    """
    if template is not None:
        yield from render(((place, _chat(value, place)) for place, value in values if value), template)
        return
    for place, value in values:
        if is_chat(value):
            raise DataError(
                f"{what} holds chat messages; set data.source.template to the folder of the tokenizer whose chat template "
                "renders them"
            )
        if value is not None and not isinstance(value, str):
            raise DataError(f"{place} holds a {type(value).__name__}, not text; name the field or column with the text")
        if value:
            yield value


def _chat(value: Any, place: str) -> Chat:
    if not is_chat(value):
        raise DataError(f"{place} holds no chat: expected a list of messages, each with a role and content")
    return [{name: part for name, part in message.items() if part is not None} for message in value]  # Parquet fills gaps


class ParquetTexts(Records):
    """Rows of Parquet files."""

    def __init__(self, source: TextParquetSource) -> None:
        super().__init__()
        self._source = source

    def __iter__(self) -> Iterator[str]:
        source = self._source
        return _texts(self._values(), source.template, f"column {source.text_column!r} of {source.path}")

    def _values(self) -> Iterator[tuple[str, Any]]:
        source = self._source
        fs, path = located(source.path)
        files = sorted(fs.glob(path)) if "*" in path else [path]
        if not files:
            raise DataError(f"no file matches {source.path}")
        listed = find_files(fs, path) if "*" not in path else {name: fs.info(name) for name in files}
        check_links(fs, path if "*" not in path else os.path.dirname(path.partition("*")[0]), listed)
        size, row = 0, 0
        try:
            reading = pyarrow.dataset.ParquetReadOptions(dictionary_columns=[source.text_column])  # repeated texts stay short
            form = pyarrow.dataset.ParquetFileFormat(read_options=reading)
            place = files if "*" in path else path
            self._check_type(pyarrow.dataset.dataset(place, filesystem=fs).schema.field(source.text_column).type)
            dataset = pyarrow.dataset.dataset(place, filesystem=fs, format=form)
            options = pyarrow.dataset.ParquetFragmentScanOptions(use_buffered_stream=True, pre_buffer=False)
            for batch in dataset.to_batches(
                columns=[source.text_column], batch_size=ROWS_READ, batch_readahead=1, fragment_readahead=1,
                fragment_scan_options=options, use_threads=False,
            ):  # fmt: skip
                batch.validate(full=True)
                size += decoded_size(batch.column(0))
                check_size(source.path, size)
                for row, value in enumerate(batch.column(0), start=row + 1):  # noqa: B020 - it counts on
                    yield f"row {row} of {source.path}", value.as_py()
        except UserError:
            raise
        except (OSError, ValueError, KeyError, pa.ArrowException) as error:
            raise DataError(f"cannot read column {source.text_column!r} of {source.path} ({reason(error)})") from error

    def _check_type(self, kind: pa.DataType) -> None:
        text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind)
        listed = pa.types.is_list(kind) or pa.types.is_large_list(kind)
        messages = listed and pa.types.is_struct(kind.value_type) and kind.value_type.get_field_index("role") >= 0
        where = f"column {self._source.text_column!r} of {self._source.path} holds {kind}"
        if self._source.template is not None and not messages:
            raise DataError(f"{where}, not chats; leave out data.source.template, or name the column of messages")
        if self._source.template is None and messages:
            raise DataError(
                f"{where}, not text; to render these chat messages, set data.source.template to the folder of a tokenizer "
                "with a chat template"
            )
        if self._source.template is None and not text:
            raise DataError(f"{where}, not text; write a column of texts")


class JsonLines(Records):
    """Records of JSON lines."""

    def __init__(self, source: JsonLinesSource) -> None:
        super().__init__()
        self._source = source

    def __iter__(self) -> Iterator[str]:
        return _texts(self._values(), self._source.template, f"field {self._source.field!r} of {self._source.path}")

    def _values(self) -> Iterator[tuple[str, Any]]:
        self.counts.clear()
        found, seen = False, ""
        for path in _files(self._source.path, JSON_LINES):
            for number, line in enumerate(_lines(read_file(path), "\n"), start=1):
                if not line.strip():
                    continue
                place = f"line {number} of {path}"
                try:
                    record = json_once(line)
                except Unreadable as error:
                    raise DataError(f"{place} names a key twice; keep one of the values") from error
                except (ValueError, RecursionError) as error:
                    raise DataError(f"{place} is not JSON; each line needs one whole record") from error
                if not isinstance(record, Mapping):
                    raise DataError(f"{place} is a {type(record).__name__}, not a record with fields")
                value: Any = record
                for name in self._source.field.split("."):
                    value = value.get(name) if isinstance(value, Mapping) else None
                found, seen = found or value is not None, seen or ", ".join(map(str, record))
                if not value:
                    self.counts[f"records without {self._source.field}"] += 1
                yield place, value
        if not found:
            fields = f"; the first record has {seen[:200]}" if seen else ""
            raise DataError(f"no record of {self._source.path} has the field {self._source.field!r}{fields}")


def _files(path: str, suffixes: set[str]) -> Iterator[str]:
    """Yield the URLs of a file, of the files of a folder that have one of the suffixes, or of those that match a glob.

    Raises:
        DataError: when there is no such file.
    """
    fs, root = located(path)
    listed = fs.glob(root, detail=True) if "*" in root else find_files(fs, root)
    folder = os.path.dirname(root.partition("*")[0]) if "*" in root else root
    check_links(fs, folder, listed)
    names = sorted(name for name in listed if not is_hidden(os.path.relpath(name, folder)))
    if names != [root] and "*" not in root:
        names = [name for name in names if not suffixes or suffixes & set(PurePosixPath(name).suffixes)]
    if not names:
        raise DataError(f"no file at {path}" + (f" ends in {' or '.join(sorted(suffixes))}" if suffixes else ""))
    if names == [root]:
        yield path
    else:
        yield from names if isinstance(fs, LocalFileSystem) else map(fs.unstrip_protocol, names)


def _lines(pieces: Iterable[AnyStr], end: AnyStr) -> Iterator[AnyStr]:
    """Yield the lines of a text or file without their line ends; a line may be as long as the whole text."""
    parts: list[AnyStr] = []  # of a line that is not complete
    for piece in pieces:
        found = piece.split(end)
        parts.append(found[0])
        for other in found[1:]:
            yield end[:0].join(parts)
            parts = [other]
    yield end[:0].join(parts)


class Mails(Records):
    """Messages of an mbox file, of a folder of messages, or of a Maildir."""

    def __init__(self, source: MailSource) -> None:
        super().__init__()
        self._source = source

    def __iter__(self) -> Iterator[str]:
        self.counts.clear()
        found = False
        for path in _files(self._source.path, set()):
            for data in _messages(path):
                try:
                    message = BytesParser(policy=email.policy.default).parsebytes(data)
                    text = self._text(message) if any(name in message for name in KNOWING) else None
                except Exception:  # Python's parser raises various errors for malformed mail
                    self.counts["messages that cannot be parsed"] += 1
                    continue
                if text is None:
                    self.counts["files that are no mail"] += 1
                found = found or text is not None
                if text:
                    yield text
        if not found:
            raise DataError(f"no mail in {self._source.path}: expected an mbox file, a Maildir or a folder of .eml files")

    def _text(self, message: EmailMessage) -> str:
        lines = [f"{name}: {_header(message, name)}" for name in HEADERS if name in message]
        body = "\n".join(self._read(message)[1])
        return "\n".join([*lines, "", body.replace("\r\n", "\n").replace("\r", "\n").strip("\n")]).strip("\n")

    def _read(self, part: MIMEPart) -> tuple[bool, list[str]]:
        """Return whether a part is plain text, and its texts; of alternatives, the first plain or the last with text."""
        of_parts = part.is_multipart() and part.get_content_maintype() == "multipart"
        if part.get_content_disposition() != "attachment" and part.get_content_type() == "message/rfc822":
            return False, [text for inner in part.iter_parts() for text in self._read(inner)[1]]  # forwarded in line
        if part.get_content_disposition() == "attachment" or not (of_parts or part.get_content_maintype() == "text"):
            self.counts["attachments, left out"] += 1
        elif of_parts:
            found = [(plain, texts) for plain, texts in map(self._read, part.iter_parts()) if any(map(str.strip, texts))]
            if part.get_content_subtype() == "alternative" and found:
                return next((one for one in found if one[0]), found[-1])
            return any(plain for plain, _ in found), [text for _, texts in found for text in texts]
        elif (kind := part.get_content_subtype()) in ("plain", "html"):
            text = self._decode(part)
            return kind == "plain", [text if kind == "plain" else _without_tags(text)]
        else:
            self.counts[f"parts of text/{kind}"] += 1
        return False, []

    def _decode(self, part: MIMEPart) -> str:
        """Decode a part by the charset that it states, else as UTF-8 or, failing that, Latin-1."""
        data = part.get_payload(decode=True)
        assert isinstance(data, bytes)
        for charset in (part.get_content_charset("utf-8"), "utf-8"):
            try:
                return data.decode(charset)
            except (LookupError, UnicodeDecodeError):
                continue
        self.counts["texts in an unknown charset, read as Latin-1"] += 1
        return data.decode("latin-1")


def _header(message: EmailMessage, name: str) -> str:
    try:
        value = str(message[name])
    except Exception:  # Python's parser of addresses raises various errors for malformed ones
        value = next(value for key, value in message.raw_items() if key.lower() == name.lower())
    return " ".join(value.split()).encode("utf-8", "replace").decode()


def _messages(path: str) -> Iterator[bytes]:
    """Yield the messages of an mbox file, split at lines that begin with "From "; any other file is a single message."""
    try:
        with opened(path) as file:
            yield from _split(read_pieces(file, path), path)
    except UserError:
        raise
    except UNREADABLE as error:
        raise DataError(f"cannot read the mail {path} ({reason(error)})") from error


def _split(pieces: Iterable[bytes], path: str) -> Iterator[bytes]:
    parts: list[bytes] = []
    blank, mbox, size = True, False, 0
    for line in _lines(pieces, b"\n"):
        if blank and line.startswith(b"From ") and (mbox or not any(part.strip() for part in parts)):
            if mbox:
                yield b"\n".join(parts)
            parts, mbox, size = [], True, 0
            continue
        blank = not line.strip()
        parts.append(line[1:] if mbox and ESCAPED.match(line) else line)
        if (size := size + len(line)) > LONGEST:
            raise DataError(f"a message in {path} has more than {LONGEST:,} bytes; is it mail?")
    if mbox or parts:
        yield b"\n".join(parts)


class _Tagless(HTMLParser):
    """A parser that collects the text of an HTML document, one line per block."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._hidden += tag in ("script", "style", "head")
        if tag in ("p", "br", "div", "tr", "li", "h1", "h2", "h3", "table"):
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in ("script", "style", "head") and self._hidden > 0

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.parts.append(" ".join(data.split("\n")))


def _without_tags(html: str) -> str:
    parser = _Tagless()
    parser.feed(html)
    parser.close()
    lines = (" ".join(line.split()) for line in "".join(parser.parts).split("\n"))
    return "\n".join(line for line in lines if line)
