"""Texts in the forms in which people have them: each document is known beforehand, to the letter."""

import bz2
import json
import mailbox
import time
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from memlib.data.text import chats
from memlib.data.text.documents import open_documents
from memlib.data.text.sources import open_text, records_of
from memlib.errors import UserError
from memlib.specs import JsonLinesSource, MailSource, TextFileSource, TextParquetSource, TextSpec

CHATS = [
    [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}],
    [{"role": "user", "content": "my PIN is 1234"}],
]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m['content'] }}{{ '' if loop.last else '\n' }}{% endfor %}"
    "{{ eos_token }}"
)
RENDERED = ["<|user|>hi\n<|assistant|>hello", "<|user|>my PIN is 1234"]


def documents(source: Any) -> list[str]:
    return list(open_documents(source).read())


def tokenizer(folder: Path, template: str | None = TEMPLATE) -> str:
    """Write a tokenizer of words with a chat template."""
    pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.WordLevel({"[UNK]": 0, "<s>": 1, "</s>": 2}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    made = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>", unk_token="[UNK]")
    if template is not None:
        made.chat_template = template
    made.save_pretrained(folder)
    return str(folder)


def lines(path: Path, records: list[Any]) -> str:
    path.write_text("\n".join(json.dumps(record) for record in records) + "\n")
    return str(path)


def test_json_lines_have_a_document_per_record(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", [{"a": {"b": "one\n\ntwo"}}, {"a": {"b": None}}, {"a": {"b": "three"}}, {"c": 1}])
    source = JsonLinesSource(kind="jsonl", path=path, field="a.b")
    assert documents(source) == ["one\n\ntwo", "three"]
    text = open_text(source)
    assert "".join(text.read()) == "one\n\ntwo\nthree"
    assert text.remarks() == ["records without a.b: 2"]
    (tmp_path / "b.jsonl.bz2").write_bytes(bz2.compress(b'\xef\xbb\xbf{"a": {"b": "four"}}'))
    (tmp_path / "._b.jsonl").write_bytes(b"\0")
    (tmp_path / "notes.txt").write_text("not a record")
    assert documents(source.model_copy(update={"path": f"{tmp_path}/a*.jsonl"})) == ["one\n\ntwo", "three"]
    for place in (str(tmp_path), f"{tmp_path}/*.jsonl*"):
        assert documents(source.model_copy(update={"path": place})) == ["one\n\ntwo", "three", "four"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"a": 1}', r"no record of .* has the field 'text'; the first record has a"),
        ('{"text": 1}', "line 1 of .* holds a int, not text"),
        ('{"text": "a"}\n{"text": ', "line 2 of .* is not JSON"),
        ('["a"]', "line 1 of .* is a list, not a record"),
        (json.dumps({"text": CHATS[0]}), "holds chat messages; set data.source.template"),
        ("", "no record of .* has the field 'text'"),
        ('{"text": "a"}\n{"text": "b", "text": "c"}', "line 2 of .* names a key twice"),
        ('{"text": "a", "more": {"x": 1, "x": 2}}', "line 1 of .* names a key twice"),
        ("[" * 100_000, "line 1 of .* is not JSON"),
    ],
)
def test_records_without_text_are_named_by_their_place_not_by_their_content(
    tmp_path: Path, content: str, message: str
) -> None:
    (tmp_path / "a.jsonl").write_text(content)
    with pytest.raises(UserError, match=message):
        documents(JsonLinesSource(kind="jsonl", path=str(tmp_path / "a.jsonl")))
    with pytest.raises(UserError, match="no file at"):
        documents(JsonLinesSource(kind="jsonl", path=str(tmp_path / "other.jsonl")))


def test_chats_are_rendered_by_the_template_on_any_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tokenizer(tmp_path / "tokenizer")
    path = lines(tmp_path / "a.jsonl", [{"messages": chat} for chat in CHATS])
    source = JsonLinesSource(kind="jsonl", path=path, field="messages", template=folder)
    assert documents(source) == RENDERED
    pq.write_table(pa.table({"messages": [*CHATS, None]}), tmp_path / "a.parquet")
    column = TextParquetSource(kind="text_parquet", path=str(tmp_path / "a.parquet"), text_column="messages", template=folder)
    assert documents(column) == RENDERED
    assert open_documents(column).measured == open_documents(source).measured
    monkeypatch.setattr(chats, "TOGETHER", 1)
    assert documents(source) == RENDERED
    dated = tokenizer(tmp_path / "dated", "{{ strftime_now('%d %b %Y') }} {{ messages[0].content }}")
    assert documents(source.model_copy(update={"template": dated})) == ["01 Jan 2026 hi", "01 Jan 2026 my PIN is 1234"]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "the chat template in .* is missing: its tokenizer has none"),
        (
            "{{ raise_exception('roles must alternate') }}",
            r"line 1 of .*: the chat template in .* refuses .*roles must alternate",
        ),
        ("{{ messages.__class__.__mro__ }}{{ ''.__class__.__base__.__subclasses__() }}", "refuses these messages"),
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            "has taken more than 3 s for 2 chats",
        ),
        ("{{ 'a' * 3000000 }}", "writes more than 2,000,000 bytes for 2 chats"),
    ],
)
def test_templates_that_fail_or_never_end_raise_a_one_line_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str | None, message: str
) -> None:
    folder = tokenizer(tmp_path / "tokenizer", template)
    path = lines(tmp_path / "a.jsonl", [{"messages": chat} for chat in CHATS])
    monkeypatch.setattr(chats, "MOST_ANSWERED", 2_000_000)
    if "99999" in str(template):
        monkeypatch.setattr(chats, "STARTING_SECONDS", 3.0)
    with pytest.raises(UserError, match=message) as caught:
        documents(JsonLinesSource(kind="jsonl", path=path, field="messages", template=folder))
    assert "1234" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="the system shows no process's environment")
def test_the_process_that_renders_a_template_gets_no_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = (
        "AWS_SECRET_ACCESS_KEY",
        "HF_TOKEN",
        "MEMLIB_SECRET_FILE",
        "PREFECT_API_KEY",
        "RAY_AUTH_TOKEN",
        "ANOTHER_PASSWORD",
    )
    for name in given:
        monkeypatch.setenv(name, "hidden")
    child = chats._start(tokenizer(tmp_path / "tokenizer"))
    try:
        while not (seen := Path(f"/proc/{child.pid}/environ").read_bytes()) and child.poll() is None:
            time.sleep(0.01)  # for a moment, a process that is being started has no environment
    finally:
        child.kill()
        child.wait()
    assert b"HF_HUB_OFFLINE=1" in seen
    assert b"hidden" not in seen


def test_a_template_is_refused_for_texts_without_chats(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", [{"text": "a"}])
    with pytest.raises(UserError, match="line 1 of .* holds no chat: expected a list of messages"):
        documents(JsonLinesSource(kind="jsonl", path=path, template=str(tmp_path)))
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"holds string, not chats; leave out data.source.template"):
        documents(TextParquetSource(kind="text_parquet", path=str(tmp_path / "a.parquet"), template=str(tmp_path)))


def message(subject: str, text: str, **options: Any) -> EmailMessage:
    made = EmailMessage()
    made["From"], made["Subject"], made["Date"] = "Ann <ann@example.org>", subject, "Mon, 02 Jan 2023 10:00:00 +0000"
    made.set_content(text, **options)
    return made


def expected(subject: str, text: str) -> str:
    return f"From: Ann <ann@example.org>\nDate: Mon, 02 Jan 2023 10:00:00 +0000\nSubject: {subject}\n\n{text}"


def test_mail_has_a_document_per_message(tmp_path: Path) -> None:
    box = mailbox.mbox(str(tmp_path / "box.mbox"))
    box.add(message("One", "first\n\nFrom here on, a paragraph.\n"))
    box.add(message("Grüße", "zwölf Euro", charset="iso-8859-1"))
    attached = message("Two", "see the file")
    attached.add_alternative("<p>not read</p>", subtype="html")
    attached.add_attachment(b"\0\1", maintype="application", subtype="pdf", filename="a.pdf")
    box.add(attached)
    html = message("Three", "<head><style>p {}</style></head><p>a &amp; b<br>c</p><script>1</script>", subtype="html")
    box.add(html)
    box.close()
    source = MailSource(kind="mail", path=str(tmp_path / "box.mbox"))
    found = documents(source)
    assert found == [
        expected("One", "first\n\nFrom here on, a paragraph."),
        expected("Grüße", "zwölf Euro"),
        expected("Two", "see the file"),
        expected("Three", "a & b\nc"),
    ]
    text = open_text(source)
    assert text.measured.length == len("\n".join(found))
    assert text.remarks() == ["attachments, left out: 1"]

    folder = mailbox.Maildir(str(tmp_path / "dir"))
    folder.add(message("One", "first\n\nFrom here on, a paragraph.\n"))
    assert documents(MailSource(kind="mail", path=str(tmp_path / "dir"))) == found[:1]
    (tmp_path / "eml").mkdir()
    (tmp_path / "eml/1.eml").write_bytes(
        bytes(message("One", "first\n\nFrom here on, a paragraph.\n")).replace(b"\n", b"\r\n")
    )
    (tmp_path / "eml/2.bin").write_bytes(b"\0\1\2")
    mails = open_documents(MailSource(kind="mail", path=str(tmp_path / "eml")))
    assert list(mails.read()) == found[:1]
    assert mails.remarks() == ["files that are no mail: 1"]
    with pytest.raises(UserError, match="no mail in .*: expected an mbox file, a Maildir or a folder of .eml files"):
        documents(MailSource(kind="mail", path=str(tmp_path / "eml/2.bin")))


def test_mail_that_states_a_wrong_charset_or_is_malformed_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    head = b"From: =?utf-8?q?J=C3=B6rg?= <>, \nSubject: a\nContent-Type: text/plain; charset="
    (tmp_path / "a.eml").write_bytes(head + b"klingon\n\ncaf\xe9\n")
    (tmp_path / "b.eml").write_bytes(head + b"ascii\n\ncaf\xc3\xa9\n")
    mails = open_documents(MailSource(kind="mail", path=str(tmp_path)))
    assert [text.splitlines()[-1] for text in mails.read()] == ["café", "café"]
    assert mails.remarks() == ["texts in an unknown charset, read as Latin-1: 1"]
    nested = b"".join(b"Content-Type: multipart/mixed; boundary=%d\n\n--%d\n" % (n, n) for n in range(3000))
    (tmp_path / "c.eml").write_bytes(b"Subject: deep\n" + nested)
    assert len(list(mails.read())) in (2, 3)  # parsed or counted, by the Python version


def test_open_text_strips_only_a_leading_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfabc\xef\xbb\xbfd")
    assert "".join(open_text(TextFileSource(kind="text", path=str(tmp_path / "a.txt"))).read()) == "abc\ufeffd"
    assert records_of(TextFileSource(kind="text", path="a")) is None


def test_an_absent_template_is_left_out_of_the_spec_of_a_text_source() -> None:
    spec = TextSpec.model_validate({"source": {"kind": "text_parquet", "path": "a"}})
    assert "template" not in spec.model_dump(mode="json")["source"]
