"""Every file of a signed store changed in every way, each by itself: which changes does `memlib verify` name?

The store holds three signed runs: two of self-influence, and the sweep of which they are the cells. Each file is appended to,
flipped, cut, emptied, deleted, and replaced by a folder, a pipe or a link, and gets another file beside it; each field of each kind of
JSON file is changed, removed, added and named twice, with the file's digest as it was and recomputed. Each change is verified without a
key and with the trusted one. --list names those that neither names.
"""

import argparse
import copy
import json
import os
import shutil
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import fsspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

import memlib
from benchmarks.simulation import MOONS
from memlib.errors import RunError, UserError
from memlib.running.verification import sign
from memlib.store import Store
from memlib.store.records import sealed

SWEEP = {"audit": "sweep", "title": "epochs", "recipe": MOONS, "grid": {"training.epochs": [1, 2]}}

OF_FOLDERS = ("a folder in its place", "a pipe in its place", "a link in its place")


@dataclass(frozen=True)
class Change:
    """One change of one file."""

    kind: str
    path: str
    what: str = ""


def signed_store(folder: Path) -> tuple[Path, Path]:
    """Make the store; return its folder and the file with the public key."""
    key, public = folder / "key.pem", folder / "public.pem"
    private = Ed25519PrivateKey.generate()
    key.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    key.chmod(0o600)
    public.write_bytes(private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    store = folder / "store"
    sweep = memlib.run(SWEEP, store=str(store), quiet=True)
    for run in (*sweep.record.cells.values(), sweep.id):
        sign(Store(str(store)), str(run), key)
    memlib.index(store=str(store))
    memlib.run(SWEEP, store=str(store), quiet=True)  # with a history
    return store, public


def changes(root: Path) -> Iterator[tuple[Change, Any]]:
    """Yield each change, and a function that makes it at a path."""
    seen: set[str] = set()
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        name, content = str(path.relative_to(root)), path.read_bytes()
        middle = len(content) // 2
        yield Change("appended to", name), lambda at, c=content: at.write_bytes(c + b" ")
        if content:
            flipped = bytes([content[middle] ^ 1])
            yield (
                Change("a bit flipped", name),
                lambda at, c=content, m=middle, f=flipped: at.write_bytes(c[:m] + f + c[m + 1 :]),
            )
            last = bytes([content[-1] ^ 1])
            yield Change("last bit flipped", name), lambda at, c=content, f=last: at.write_bytes(c[:-1] + f)
            yield Change("cut in half", name), lambda at, c=content, m=middle: at.write_bytes(c[:m])
            yield Change("emptied", name), lambda at: at.write_bytes(b"")
        yield Change("deleted", name), lambda at: at.unlink()
        yield Change("a folder in its place", name), _to_folder
        yield Change("a pipe in its place", name), _to_pipe
        yield Change("a link in its place", name), _to_link
        yield Change("another file beside it", name), lambda at, c=content: at.with_name(f"more-{at.name}").write_bytes(c)
        kind = _kind(name)
        if path.suffix == ".json" and kind not in seen:
            seen.add(kind)
            yield from _of_fields(name, content)


def _kind(name: str) -> str:
    """Return the kind of a file: one manifest of each stage, one of each kind of run."""
    parts = name.split("/")
    return "/".join([*parts[:2], parts[-1]]) if parts[0] == "artifacts" else "/".join([parts[0], parts[-1]])


def _to_folder(at: Path) -> None:
    at.unlink()
    at.mkdir()


def _to_pipe(at: Path) -> None:
    at.unlink()
    os.mkfifo(at)


def _to_link(at: Path) -> None:
    other = Path(tempfile.mkdtemp(prefix="memlib-linked-")) / at.name
    shutil.move(at, other)
    at.symlink_to(other)


def _of_fields(name: str, content: bytes) -> Iterator[tuple[Change, Any]]:
    """Yield changes of the fields of a JSON file."""
    whole = json.loads(content)
    if not isinstance(whole, dict):
        return
    for place in _places(whole):
        for kind, other in (("field changed", _changed), ("field removed", None)):
            new = copy.deepcopy(whole)
            inner = new
            for step in place[:-1]:
                inner = inner[step]
            if other is None:
                del inner[place[-1]]
            else:
                inner[place[-1]] = other(inner[place[-1]])
            text, what = json.dumps(new, indent=1), ".".join(map(str, place))
            yield Change(kind, name, what), lambda at, t=text: at.write_text(t)
            if "digest" in whole and place != ("digest",):
                text = json.dumps(sealed({key: value for key, value in new.items() if key != "digest"}), indent=1)
                yield Change(f"{kind}, digest recomputed", name, what), lambda at, t=text: at.write_text(t)
    added = {**whole, "more": "x"}
    yield Change("field added", name), lambda at, t=json.dumps(added): at.write_text(t)
    if "digest" in whole:
        text = json.dumps(sealed({key: value for key, value in added.items() if key != "digest"}))
        yield Change("field added, digest recomputed", name), lambda at, t=text: at.write_text(t)
    first = next(iter(whole))
    twice = json.dumps(whole)[:-1] + f', "{first}": {json.dumps(whole[first])}}}'
    yield Change("field named twice", name), lambda at, t=twice: at.write_text(t)


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the places of the fields of a value: three levels deep, and the first of each list."""
    if isinstance(value, dict) and value and len(place) < 3:
        for name in list(value)[:40]:
            yield from _places(value[name], (*place, name))
    elif isinstance(value, list) and value and len(place) < 3:
        yield from _places(value[0], (*place, 0))
    elif place:
        yield place


def _changed(value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return value[:-1] + ("0" if value[-1:] != "0" else "1") if value else "x"
    return {"more": 1} if isinstance(value, dict) else ["more"]


def is_named(root: Path, trust: Path | None, *, remote: bool = False) -> bool:
    """Return whether verify says that something is wrong, of the store in a folder or of its copy among remote objects."""
    uri = str(root)
    if remote:
        uri, memory = f"memory://{uuid.uuid4().hex}", fsspec.filesystem("memory")
        for path in root.rglob("*"):
            if path.is_file():
                memory.pipe_file(f"{uri}/{path.relative_to(root)}", path.read_bytes())
    try:
        return memlib.verify(store=uri, trust=trust).outcome != "unchanged"
    except (RunError, UserError):
        return True
    finally:
        fsspec.filesystem("memory").store.clear()


def count(folder: Path, *, every: int = 1, remote: bool = False) -> dict[str, list[Change]]:
    """Try the changes, or every so many of them; return them by how they are named."""
    store, public = signed_store(folder)
    assert not is_named(store, public, remote=remote)
    found: dict[str, list[Change]] = {"without a key": [], "with the key alone": [], "not": [], "a traceback": []}
    for number, (change, make) in enumerate(changes(store)):
        if number % every or (remote and change.kind in OF_FOLDERS):
            continue
        other = Path(shutil.copytree(store, folder / "changed"))
        make(other / change.path)
        try:
            how = "not"
            if is_named(other, None, remote=remote):
                how = "without a key"
            elif is_named(other, public, remote=remote):
                how = "with the key alone"
        except Exception as error:
            how, change = "a traceback", replace(change, what=f"{change.what} {error!r}")
        found[how].append(change)
        shutil.rmtree(other)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, help="try one change of so many")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--remote", action="store_true", help="of remote objects, as on S3")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        found = count(Path(folder), every=options.every, remote=options.remote)
    kinds = dict.fromkeys(change.kind for of in found.values() for change in of)
    print("| change | tried | named without a key | with the trusted key alone | not named | verify ended with a traceback |")
    print("|---|---|---|---|---|---|")
    counts = {how: Counter(change.kind for change in of) for how, of in found.items()}
    for kind in kinds:
        cells = [counts[how][kind] for how in found]
        print(f"| {kind} | {sum(cells)} | {' | '.join(map(str, cells))} |")
    print(f"| all | {sum(map(len, found.values()))} | {' | '.join(str(len(of)) for of in found.values())} |")
    for how in ("not", "a traceback") if options.list else ():
        for change in found[how]:
            print(f"{how}: {change.kind}: {change.path} {change.what}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
