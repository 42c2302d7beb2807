"""Damage whole stores: files that are swapped, copied over, linked, added, deleted, cut, changed; folders likewise.

`verify` must name every damage to what runs publish or rest on, `gc` must delete nothing that a run rests on, and no command
may end with a traceback.
"""

import contextlib
import io
import random
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from readers import same

from flows.cli.app import main
from memlib.runs.index import HISTORY, list_runs, refs_of
from memlib.store import Store
from memlib.store.records import MANIFEST

VERIFIED, FAILED, UNCHECKED = 0, 2, 3


def rests_on(store: Store) -> list[str]:
    """Return the paths below the store's root that its finished runs publish or rest on."""
    root, kept = Path(store.root), set()
    for entry in list_runs(store, indexed=False).entries:
        kept |= {p for p in (root / "runs" / entry["run"]).rglob("*") if p.is_file() and p.name != HISTORY}
        kept |= {p for p in root.glob(f"results/*/*/run={entry['run']}/*") if p.is_file()}
        for ref in refs_of(entry):
            manifest = store.artifacts.manifest(ref)
            kept |= {Path(store.artifacts.local_path(ref, name)) for name in manifest.files}
            kept.add(root / "artifacts" / str(ref) / MANIFEST)
    return sorted(str(path.relative_to(root)) for path in kept)


def damage(root: Path, files: Sequence[str], rng: random.Random) -> str:
    """Damage a store in one way, and return the damage in words."""
    paths = [root / name for name in files]
    while True:
        change = rng.choice(CHANGES)
        said = change(paths, root, rng)
        if said:
            return f"{change.__name__}: {said}"


def swap(paths: Sequence[Path], root: Path, rng: random.Random) -> str:
    """Exchange two files of one name, or of any."""
    first = rng.choice(paths)
    alike = [path for path in paths if path.name == first.name and path != first]
    second = rng.choice(alike if alike and rng.random() < 0.7 else [path for path in paths if path != first])
    one, other = first.read_bytes(), second.read_bytes()
    if one == other:
        return ""
    first.write_bytes(other)
    second.write_bytes(one)
    return f"{first.relative_to(root)}, {second.relative_to(root)}"


def copy_over(paths: Sequence[Path], root: Path, rng: random.Random) -> str:
    """Replace a file by another one."""
    first, second = rng.choice(paths), rng.choice(paths)
    if first.read_bytes() == second.read_bytes():
        return ""
    first.write_bytes(second.read_bytes())
    return f"{first.relative_to(root)} is {second.relative_to(root)}"


def link(paths: Sequence[Path], root: Path, rng: random.Random) -> str:
    """Put a link to the same content in the place of a file or of a folder."""
    path = rng.choice(paths)
    for _ in range(rng.choice((0, 0, 1, 2, 3))):
        path = path.parent if path.parent != root else path
    moved = root.parent / f"elsewhere-{path.name}"
    path.rename(moved)
    path.symlink_to(moved)
    return str(path.relative_to(root))


def add(paths: Sequence[Path], root: Path, rng: random.Random) -> str:
    """Add a copy of a file below runs/ or results/, in a new or an existing folder."""
    path = rng.choice([path for path in paths if path.relative_to(root).parts[0] in ("runs", "results")])
    folder = path.parent if rng.random() < 0.5 else path.parent.with_name(path.parent.name[:-4] + "beef")
    name = path.name if folder != path.parent else f"part-{rng.randrange(7, 99)}{path.suffix}"
    folder.mkdir(exist_ok=True)
    if (folder / name).exists():
        return ""
    shutil.copy(path, folder / name)
    return str((folder / name).relative_to(root))


def delete(paths: Sequence[Path], root: Path, rng: random.Random) -> str:
    """Delete a file, or the folder that holds it."""
    path = rng.choice(paths)
    if rng.random() < 0.3 and path.parent.parent != root:
        path = path.parent
        shutil.rmtree(path)
    else:
        path.unlink()
    return str(path.relative_to(root))


def truncate(paths: Sequence[Path], root: Path, rng: random.Random) -> str:
    """Cut off the end of a file."""
    path = rng.choice(paths)
    content = path.read_bytes()
    if not content:
        return ""
    path.write_bytes(content[: rng.randrange(len(content))])
    return str(path.relative_to(root))


def flip(paths: Sequence[Path], root: Path, rng: random.Random) -> str:
    """Change a byte of a file."""
    path = rng.choice(paths)
    content = bytearray(path.read_bytes())
    if not content:
        return ""
    before = bytes(content)
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    if "table=runs" in str(path) and same(bytes(content), before):
        return ""  # padding of a table that is derived from all manifests, and compared by its rows
    path.write_bytes(content)
    return str(path.relative_to(root))


CHANGES: tuple[Callable[[Sequence[Path], Path, random.Random], str], ...] = (
    swap,
    copy_over,
    link,
    add,
    delete,
    truncate,
    flip,
)


def check(store: Path, folder: Path, number: int, *, seed: int) -> str:
    """Damage a copy of a store; return what commands do wrong with it, or an empty string.

    Args:
        store: a store that nothing has damaged.
        folder: where the copy may be.
        number: number of the damage.
        seed: seed of all damages.
    """
    own = folder / f"tree-{number}"
    root = own / "store"
    shutil.copytree(store, root)
    try:
        files = rests_on(Store(str(root)))
        how = damage(root, files, random.Random(f"{seed} {number}"))
        left = {name for name in files if (root / name).exists()}
        wrong = []
        status, said = _called("verify", "--store", str(root))
        if status != FAILED and not (status == UNCHECKED and how.startswith("add:") and "a run under way" in said):
            wrong.append(f"verify ends with {status}: {said[-200:]}")
        for command in ("runs", "gc --days 0", "gc --days 0 --delete"):
            status, said = _called(*command.split(), "--store", str(root))
            if status not in (VERIFIED, FAILED):
                wrong.append(f"{command} ends with {status}: {said[-200:]}")
        if lost := sorted(name for name in left if not (root / name).exists()):
            wrong.append(f"gc deletes {len(lost)} files, such as {lost[0]}")
        return f"{how}: {'; '.join(wrong)}" if wrong else ""
    finally:
        shutil.rmtree(own, ignore_errors=True)


def _called(*arguments: str) -> tuple[int | str, str]:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            return main(list(arguments)), said.getvalue()
        except Exception as error:
            return f"{type(error).__name__}: {error}", said.getvalue()


def fuzz(store: Path, folder: Path, count: int, *, seed: int) -> Counter[str]:
    """Damage copies of a store this many times; print what is wrong, and return the number of damages by outcome."""
    outcomes: Counter[str] = Counter()
    for number in range(count):
        wrong = check(store, folder, number, seed=seed)
        outcomes["defect" if wrong else "named"] += 1
        if wrong:
            print(f"damaged store {number}: {wrong}")
    return outcomes
