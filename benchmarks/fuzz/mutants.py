"""Damaged and hostile versions of files: changes of their bytes, of words and numbers, and of what their format means."""

import gzip
import io
import itertools
import json
import random
import re
import zipfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from memlib.store.records import DIGEST, sealed

WORD = re.compile(rb"-?\d+(?:\.\d+)?|[A-Za-z_][\w.-]*")
TEXTS = (
    "", " ", "x", "../../../etc/passwd", "/etc/passwd", "a/../../b", "\\", "\x00", "\x1b[31mred\x1b[0m", "\u202egnp.exe",
    "\ud800", "é" * 300, "a" * 20_000, "$\\frac{1}{$", "<script>alert(1)</script>", "%s%n{0}", "NaN", "null", "-0", "1e999",
    "s3://nowhere/x", "os:system", "{d999999999}", "(((((", "2026-13-45", "0x1F", "=1+1", "'; drop table runs; --",
)  # fmt: skip
NUMBERS = (
    0,
    -1,
    1,
    2**31,
    2**63 - 1,
    2**63,
    -(2**63) - 1,
    10**30,
    10**400,
    0.5,
    -0.0,
    1e-320,
    1e308,
    float("nan"),
    float("inf"),
)
VALUES: tuple[Any, ...] = (*TEXTS, *NUMBERS, None, True, False, [], {}, [[]], {"": None}, {"a": {"b": []}}, [None], [1, "x"])
BYTES = (b"\x00", b"\xff", b"\x80", b"\xfe\xff", b"\x7f", b"\r", b"\n\n", b'"', b"\xed\xa0\x80", b"&amp;", b"\x1b[2J")


def mutated(kind: str, content: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    """Return a file that differs from a good one.

    Args:
        kind: the format; one of `KINDS`, or anything else for changes of bytes alone.
        content: the good file.
        others: good files of the same kind, of which parts may be used.
        rng: draws the damage.
    """
    if rng.random() < 0.6:
        for change in KINDS.get(kind, ()):
            if rng.random() < 1 / len(KINDS[kind]):
                return change(content, rng)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        content = rng.choice(ON_BYTES)(content, others, rng)
    return content


# -- bytes --------------------------------------------------------------------------------------------


def _place(content: bytes, rng: random.Random) -> tuple[int, int]:
    """Return start and end of some part, mostly a short one; headers are hit as often as all the rest."""
    start = rng.randrange(min(len(content), 64) if rng.random() < 0.5 else len(content)) if content else 0
    return start, min(len(content), start + rng.choice((1, 1, 2, 4, 8, 32, 256)))


def _flipped(content: bytes, _: Sequence[bytes], rng: random.Random) -> bytes:
    changed = bytearray(content or b"\0")
    for _ in range(rng.choice((1, 1, 2, 8))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _cut(content: bytes, _: Sequence[bytes], rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def _without(content: bytes, _: Sequence[bytes], rng: random.Random) -> bytes:
    start, end = _place(content, rng)
    return content[:start] + content[end:]


def _twice(content: bytes, _: Sequence[bytes], rng: random.Random) -> bytes:
    start, end = _place(content, rng)
    return content[:start] + content[start:end] * rng.choice((2, 3, 200)) + content[end:]


def _inserted(content: bytes, _: Sequence[bytes], rng: random.Random) -> bytes:
    start, _end = _place(content, rng)
    return content[:start] + rng.choice((*BYTES, rng.randbytes(8))) + content[start:]


def _number(content: bytes, _: Sequence[bytes], rng: random.Random) -> bytes:
    """Overwrite a binary integer with one that is too large, too small, or negative."""
    start, _end = _place(content, rng)
    size, order = rng.choice((1, 2, 4, 8)), rng.choice(("little", "big"))
    value = rng.choice(
        (0, 1, 2 ** (8 * size) - 1, 2 ** (8 * size - 1), 2 ** (8 * size - 1) - 1, rng.randrange(2 ** (8 * size)))
    )
    return content[:start] + value.to_bytes(size, order) + content[start + size :]


def _spliced(content: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    other = rng.choice(others)
    return content[: rng.randrange(len(content) + 1)] + other[rng.randrange(len(other) + 1) :]


def _other_word(content: bytes, _: Sequence[bytes], rng: random.Random) -> bytes:
    """Replace one word or number by another."""
    words = list(WORD.finditer(content[:100_000]))
    if not words:
        return content + b" "
    word = rng.choice(words)
    replacement = rng.choice((*TEXTS, *map(str, NUMBERS)))
    return content[: word.start()] + replacement.encode("utf-8", "surrogatepass") + content[word.end() :]


def _other_lines(content: bytes, _: Sequence[bytes], rng: random.Random) -> bytes:
    lines = content.splitlines(keepends=True) or [b""]
    rng.choice((lines.reverse, lambda: rng.shuffle(lines), lines.pop, lambda: lines.insert(0, rng.choice(lines))))()
    return b"".join(lines)


ON_BYTES = (_flipped, _cut, _without, _twice, _inserted, _number, _spliced, _other_word, _other_lines)


# -- what formats mean --------------------------------------------------------------------------------


def _altered(value: Any, rng: random.Random) -> Any:
    """Return plain data in which one value is changed, lost, or under another name."""
    places: list[tuple[Any, Any]] = []

    def walk(inner: Any) -> None:
        for key in inner if isinstance(inner, dict) else range(len(inner)) if isinstance(inner, list) else ():
            places.append((inner, key))
            walk(inner[key])

    walk(value)
    if not places or rng.random() < 0.02:
        return rng.choice(VALUES)
    inner, key = rng.choice(places)
    how = rng.random()
    if how < 0.6:
        inner[key] = rng.choice(VALUES)
    elif how < 0.75:
        del inner[key]
    elif isinstance(inner, dict):
        name = rng.choice([*map(str, TEXTS), *(str(other) for _, other in places)])
        inner[name] = inner.pop(key) if how < 0.9 else inner[key]
    else:
        inner += inner * rng.choice((1, 50))
    return value


def _json(content: bytes, rng: random.Random) -> bytes:
    value = _altered(json.loads(content), rng)
    if isinstance(value, dict) and DIGEST in value and rng.random() < 0.7:
        value = sealed({name: item for name, item in value.items() if name != DIGEST})  # an attacker can seal it, too
    return json.dumps(value).encode()


def _deep_json(_: bytes, rng: random.Random) -> bytes:
    depth = rng.choice((100, 10_000, 200_000))
    return rng.choice((b"[" * depth, b'{"a":' * depth + b"1" + b"}" * depth, b"9" * depth, b'"' + b"\\ud800" * 9 + b'"'))


def _yaml(content: bytes, rng: random.Random) -> bytes:
    value = _altered(yaml.safe_load(content), rng)
    return yaml.safe_dump(value, allow_unicode=rng.random() < 0.5).encode("utf-8", "surrogatepass")


def _yaml_bomb(content: bytes, rng: random.Random) -> bytes:
    bomb = "a: &a [x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}, *{a}, *{a}]\n" for a, b in itertools.pairwise("abcdefghijkl"))
    tags = (b"!!python/object/apply:os.system [id]", b"!!binary x", b"? [a, b]\n: c", b"<<: *none", b"- &a [*a]", b"{" * 3000)
    return rng.choice(
        (bomb.encode() + content, content + bomb.encode(), content + b"\nzz: " + rng.choice(tags), rng.choice(tags))
    )


def _parquet(content: bytes, rng: random.Random) -> bytes:
    table = pq.read_table(io.BytesIO(content))
    name = rng.choice(table.column_names)
    place, rows = table.column_names.index(name), table.num_rows
    others: list[Callable[[], pa.Table]] = [
        lambda: table.drop_columns([name]),
        lambda: table.slice(0, 0),
        lambda: pa.concat_tables([table, table]),
        lambda: table.append_column(name, table[name]),
        lambda: table.rename_columns([rng.choice(TEXTS[1:9]) if n == name else n for n in table.column_names]),
        lambda: table.set_column(place, name, pa.nulls(rows, table.schema.field(name).type)),
        lambda: table.set_column(place, name, pa.nulls(rows)),
        lambda: table.set_column(place, name, pa.array([rng.choice(NUMBERS[:6]) % 2**31 for _ in range(rows)])),
        lambda: table.set_column(place, name, pa.array([float(rng.choice(NUMBERS[9:])) for _ in range(rows)])),
        lambda: table.set_column(place, name, pa.array([rng.choice(TEXTS[1:9]) for _ in range(rows)])),
        lambda: table.set_column(place, name, pa.array([b"\xff\x00" for _ in range(rows)], rng.choice((pa.binary(), pa.string())))),
        lambda: table.set_column(place, name, pa.array([[1.0] * rng.randrange(4) for _ in range(rows)])),
        lambda: table.set_column(place, name, pa.array([{"bytes": rng.choice((b"x", None)), "y": 1} for _ in range(rows)])),
        lambda: table.set_column(place, name, pa.array([True] * rows)),
        lambda: table.set_column(place, name, table[name].dictionary_encode()),
        lambda: table.replace_schema_metadata({"huggingface": rng.choice(("{}", "[", '{"info": {"features": 1}}'))}),
    ]  # fmt: skip
    out = io.BytesIO()
    try:
        pq.write_table(rng.choice(others)(), out)
    except (pa.ArrowException, TypeError, ValueError):  # nested columns cannot be dictionary-encoded
        return content[: len(content) // 2]
    return out.getvalue()


def _npy(content: bytes, rng: random.Random) -> bytes:
    """Put another header before the same numbers."""
    array = np.load(io.BytesIO(content))
    shapes: tuple[Any, ...] = (
        (),
        (0,),
        (-1,),
        (2**40,),
        (2**62, 4),
        (1,) * 40,
        (*array.shape, 1),
        array.shape[::-1],
        (3, 2**31),
    )
    kinds = ("|u1", "<f8", ">i4", "|O", "|S0", "<U99999999", "|V8", "<M8[ns]", "[('a', '<f4')]", "x", "|b1", "<c16")
    shape = rng.choice((*shapes, array.shape, array.shape))
    descr = rng.choice((*kinds, array.dtype.str, array.dtype.str, array.dtype.str))
    template = rng.choice(("{'descr': %r, 'fortran_order': %s, 'shape': %r, }",) * 6 + ("{", "[" * 500, "__import__('os')"))
    header = (template % (descr, rng.choice(("True", "False", "1")), shape) if "%r" in template else template).encode()
    data = array.tobytes()[: rng.choice((array.nbytes, array.nbytes, 3))]
    version = rng.choice((b"\x01\x00", b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x09\x00"))
    length = len(header).to_bytes(2 if version[0] == 1 else 4, "little")
    return b"\x93NUMPY" + version + length + header + data


def _npz(content: bytes, rng: random.Random) -> bytes:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(sorted(members))
    how = rng.random()
    if how < 0.6:
        members[name] = _npy(members[name], rng)
    elif how < 0.7:
        del members[name]
    elif how < 0.8:
        members[rng.choice(("../x.npy", "/x.npy", "x.txt", "a" * 300))] = members.pop(name)
    elif how < 0.9:
        members[name] = b"\x93NUMPY\x01\x00" + bytes(5_000_000)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", rng.choice((zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED, zipfile.ZIP_LZMA))) as archive:
        for key, data in members.items():
            archive.writestr(key, data)
    return out.getvalue() if how < 0.95 else out.getvalue().replace(b"PK\x01\x02", b"PK\x01\x03")


def _xml(content: bytes, rng: random.Random) -> bytes:
    bomb = b'<!DOCTYPE a [<!ENTITY b "xxxxxxxxxx">' + b"".join(
        b'<!ENTITY %c "%s">' % (99 + i, b"&%c;" % (98 + i) * 10) for i in range(9)
    )
    hostile = (
        bomb + b"]><annotation>&k;</annotation>",
        b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><annotation><object>&x;</object></annotation>',
        b'<?xml version="1.0" encoding="%s"?>' % rng.choice((b"utf-7", b"utf-16", b"x", b"latin1")) + content,
        b"<a>" * rng.choice((10, 100_000)),
        b"<annotation>" + b"<object><bndbox/></object>" * 1000 + b"</annotation>",
    )
    return rng.choice(hostile)


def _gz_bomb(_: bytes, rng: random.Random) -> bytes:
    return gzip.compress(bytes(100_000_000), compresslevel=1) * rng.choice((1, 3))


def _gz_damaged(content: bytes, rng: random.Random) -> bytes:
    """Damage what is in the archive, and leave the archive itself intact."""
    return gzip.compress(rng.choice(ON_BYTES)(gzip.decompress(content), [content], rng))


def _csv(content: bytes, rng: random.Random) -> bytes:
    rows = [line.split(b",") for line in content.splitlines()]
    row = rng.choice(rows)
    place = rng.randrange(len(row))
    how = rng.random()
    if how < 0.6:
        row[place] = rng.choice(TEXTS).encode("utf-8", "surrogatepass")
    elif how < 0.7:
        row.pop(place)
    elif how < 0.8:
        row += row
    elif how < 0.9:
        row[place] = b'"' + row[place]  # an unclosed quote
    else:
        row[place] = b"a" * rng.choice((131_072, 200_000))  # beyond the field limit of Python's csv
    return rng.choice((b"\n", b"\r\n", b"\r")).join(b",".join(row) for row in rows)


KINDS: dict[str, tuple[Callable[[bytes, random.Random], bytes], ...]] = {
    "json": (_deep_json, _json, _json, _json, _json),
    "yaml": (_yaml_bomb, _yaml, _yaml, _yaml),
    "parquet": (_parquet,),
    "npy": (_npy,),
    "npz": (_npz,),
    "xml": (_xml,),
    "csv": (_csv,),
    "gz": (_gz_bomb, *[_gz_damaged] * 9),
}
