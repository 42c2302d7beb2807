"""Damage every kind of file that memlib reads, some thousand times, and read it: `make fuzz` (docs/evidence/reliability.md).

Whatever a file contains, memlib accepts it or refuses it in one line. Any other outcome of a mutant is a defect: a
traceback, more than ten seconds, more than 1 GiB of memory, a process that dies, control characters in a message, or a
`verify` that accepts a changed file. Mutants are drawn from a seed, so that each can be reproduced: --reader NAME --only
NUMBER.
"""

import argparse
import contextlib
import multiprocessing
import os
import platform
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import trees

MUTANTS, THROUGH_COMMAND, STORES, PLANS = 20_000, 200, 200, 5_000
SECONDS, MEMORY = 10.0, 2**30
BATCH = 200  # mutants per process
GRACE = 5.0  # further seconds, after which a reader that ignores its alarm is killed
WORKERS = 2
RECIPES = ("smoke", "two_moons", "forgetting_smoke", "exposure_smoke", "sweep_smoke")
LIMITS = {
    "MEMLIB_MAX_BYTES": str(64 * 2**20),
    "OMP_NUM_THREADS": "1",
    "MEMLIB_LOG": "",
    "COLUMNS": "120",
    "MEMLIB_CODE": "readers",
}


@dataclass
class Tally:
    """Outcomes of a reader's mutants."""

    mutants: int = 0
    accepted: int = 0
    refused: int = 0
    seconds: float = 0.0
    memory: int = 0
    defects: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 1 if there is a defect."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mutants", type=int, default=MUTANTS)
    parser.add_argument(
        "--commands", type=int, default=THROUGH_COMMAND, help="further mutants, which go through the command line"
    )
    parser.add_argument("--plans", type=int, default=PLANS, help="odd recipes that are planned")
    parser.add_argument("--stores", type=int, default=STORES, help="whole stores that are damaged")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reader", help="only readers whose name contains this")
    parser.add_argument("--only", type=int, help="run this mutant alone and show its traceback")
    parser.add_argument("--store", type=Path, help="a store made by an earlier run with --store; made if missing")
    options = parser.parse_args(arguments)
    os.environ |= LIMITS
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="memlib-fuzz-")))
        os.environ |= {"XDG_CACHE_HOME": str(folder / "cache"), "HOME": str(folder), "RAY_TMPDIR": "/tmp"}
        store = options.store or folder / "store"
        if not store.exists():
            make_store(store, folder)
        made = time.monotonic() - began
        if options.only is not None:
            return alone(folder, store, options.reader or "", options.only, options.seed)
        began = time.monotonic()
        tallies = fuzz(folder, store, options.mutants, seed=options.seed, only=options.reader)
        if options.commands and not options.reader:
            tallies["through the command line"] = through_commands(folder, store, options.commands, seed=options.seed)
        plans = {} if options.reader else plan_odd_recipes(folder, options.plans)
        stores = trees.fuzz(store, folder, options.stores, seed=options.seed) if not options.reader else Counter()
    took = time.monotonic() - began
    print_table(tallies)
    print(f"\n{sum(plans.values())} odd recipes: {plans.get(0, 0)} planned, {plans.get(2, 0)} refused in a line")
    print(f"{stores.total()} damaged stores: verify names {stores['named']}, and gc deletes nothing of a run; "
          f"{stores['defect']} defects")  # fmt: skip
    count = sum(tally.mutants for tally in tallies.values())
    print(f"\n{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, {platform.machine()}, seed {options.seed}: {count} mutants "
          f"in {took:.0f} s, after {made:.0f} s in which the store was made")  # fmt: skip
    return int(bool(stores["defect"]) or any(tally.defects for tally in tallies.values()))


def plan_odd_recipes(folder: Path, count: int) -> dict[int, int]:
    """Plan recipes with odd settings in a folder of their own; return how often each status was seen."""
    import semantic

    own = folder / "semantic"
    own.mkdir()
    os.chdir(own)
    os.environ["MEMLIB_CODE"] = ""
    seen = semantic.fuzz(own, count)
    os.environ["MEMLIB_CODE"] = LIMITS["MEMLIB_CODE"]
    return seen


def print_table(tallies: Mapping[str, Tally]) -> None:
    """Print the table in Markdown, and the defects in detail."""
    print(
        "| what is read | mutants | refused | taken | slowest, s | most memory, MiB | defects |\n|---|---|---|---|---|---|---|"
    )
    for name, tally in sorted(tallies.items()):
        cells = (tally.mutants, tally.refused, tally.accepted, f"{tally.seconds:.1f}", tally.memory // 2**20)
        print(f"| {name} | {' | '.join(map(str, cells))} | {sum(map(len, tally.defects.values()))} |")
    for name, tally in sorted(tallies.items()):
        for defect, numbers in tally.defects.items():
            print(f"\n{name}: {len(numbers)} mutants ({', '.join(map(str, numbers[:5]))}): {defect}")


# -- the store ----------------------------------------------------------------------------------------


def make_store(store: Path, folder: Path) -> None:
    """Make a store with two finished runs of one audit, and the note and state of an unfinished one."""
    from harness import RECIPE, Memlib, end_session, wait_for

    recipe = folder / "tiny.yaml"
    recipe.write_text(RECIPE)
    memlib = Memlib(recipe, dict(os.environ))
    memlib.audit(store)
    memlib.audit(store, "decode.replicates=100")
    process = memlib.start(store, "training.epochs=60")
    wait_for(lambda: list(store.glob("requests/*.json")), process=process)
    wait_for(lambda: list(store.glob("status/*.json")), process=process)
    end_session(process.pid)


# -- in forked processes ------------------------------------------------------------------------------


def fuzz(folder: Path, store: Path, mutants: int, *, seed: int, only: str | None) -> dict[str, Tally]:
    """Read this many mutants in forked processes with limits, each with its own store; return the outcomes by reader."""
    from readers import readers

    all_readers = _all(readers, folder / "first", store)
    checking = multiprocessing.get_context("fork").Process(target=_read_good_files, args=(all_readers,))
    checking.start()  # not in this process: PyTorch's threads, once used, do not survive the forks below
    checking.join()
    assert checking.exitcode == 0
    names: list[tuple[str, float]] = [(reader.name, reader.share) for reader in all_readers]
    wanted = [(place, name, share) for place, (name, share) in enumerate(names) if only is None or only in name]
    total = sum(share for _, _, share in wanted)
    todo: list[tuple[int, int, int]] = []  # reader, first mutant, one past the last
    for place, _, share in wanted:
        count = max(1, round(mutants * share / total))
        todo += [(place, start, min(start + BATCH, count)) for start in range(0, count, BATCH)]
    tallies = {name: Tally() for _, name, _ in wanted}
    running: dict[Connection, tuple[Any, int, int, int, list[float]]] = {}
    context = multiprocessing.get_context("fork")
    while todo or running:
        while todo and len(running) < WORKERS:
            place, start, end = todo.pop(0)
            reading, writing = context.Pipe(duplex=False)
            process = context.Process(target=_work, args=(writing, folder, store, place, range(start, end), seed))
            process.start()
            writing.close()
            running[reading] = (process, place, start, end, [time.monotonic()])
        for reading in wait(list(running), timeout=1.0):
            assert isinstance(reading, Connection)
            process, place, start, end, beat = running[reading]
            with contextlib.suppress(EOFError):
                number, outcome, seconds, memory = reading.recv()
                _count(tallies[names[place][0]], number, outcome, seconds, memory)
                running[reading] = (process, place, number + 1, end, [time.monotonic()])
                continue
            process.join()
            del running[reading]
            if start < end:  # mutant `start` killed the process
                how = (
                    "hangs and ignores its alarm" if process.exitcode == -signal.SIGKILL else f"ends with {process.exitcode}"
                )
                _count(tallies[names[place][0]], start, f"the process {how}", SECONDS, 0)
                if start + 1 < end:
                    todo.insert(0, (place, start + 1, end))
        for process, _, _, _, (beat,) in running.values():
            if time.monotonic() - beat > SECONDS + GRACE:
                process.kill()
    return tallies


def _read_good_files(all_readers: Sequence[Any]) -> None:
    """Read the undamaged files: a reader that refused them would prove nothing."""
    for reader in all_readers:
        for place, content in enumerate(reader.files):
            reader.read(place, content)
    os._exit(0)  # skips the exit handlers of Ray, Prefect and Arrow


def _all(readers: Any, folder: Path, store: Path) -> list[Any]:
    """Return the readers, with their own folder and copy of the store."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(store, folder / "store")
    os.chdir(folder)
    collected: list[Any] = readers(folder / "work", folder / "store", recipes())
    return collected


def recipes() -> list[Path]:
    """Return one recipe per audit."""
    from memlib.recipes.files import shipped_recipes

    shipped = shipped_recipes()
    return [shipped[name] for name in RECIPES]


def _count(tally: Tally, number: int, outcome: str, seconds: float, memory: int) -> None:
    tally.mutants += 1
    tally.seconds, tally.memory = max(tally.seconds, seconds), max(tally.memory, memory)
    if outcome == "accepted":
        tally.accepted += 1
    elif outcome == "refused":
        tally.refused += 1
    else:
        tally.defects[outcome].append(number)


class Hung(BaseException):
    """A reader takes too long."""


def _hung(*_: object) -> None:
    raise Hung


def _work(writing: Connection, folder: Path, store: Path, place: int, numbers: range, seed: int) -> None:
    from readers import readers

    own = folder / f"worker-{os.getpid()}"
    reader = _all(readers, own, store)[place]
    _limit(reader)
    for number in numbers:
        file, content = mutant(reader, number, seed)
        before = _highest_memory(reset=True)
        began = time.monotonic()
        outcome = attempt(reader, file, content)
        seconds = time.monotonic() - began
        memory = max(0, _highest_memory(reset=False) - before)
        if outcome in ("accepted", "refused") and seconds > SECONDS:
            outcome = f"takes {seconds:.0f} s"
        writing.send((number, outcome, seconds, memory))
    os.chdir(folder)
    shutil.rmtree(own, ignore_errors=True)
    writing.close()
    os._exit(0)  # skips the exit handlers of Ray, Prefect and Arrow


def mutant(reader: Any, number: int, seed: int) -> tuple[int, bytes]:
    """Return the number of the file that is damaged, and its damaged content."""
    from mutants import mutated

    rng = random.Random(f"{seed} {reader.name} {number}")
    file = rng.randrange(len(reader.files))
    return file, mutated(reader.kind, reader.files[file], reader.files, rng)


def attempt(reader: Any, file: int, content: bytes) -> str:
    """Read a mutant; return accepted, refused, or a description of the defect."""
    from readers import check_words

    from memlib.data.examples import UnreadableImage
    from memlib.errors import RunError, UserError
    from memlib.sanitize import brief

    before = signal.signal(signal.SIGALRM, _hung)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        reader.read(file, content)
        return "accepted"
    except (UserError, RunError, UnreadableImage, OSError) as error:
        with contextlib.suppress(AssertionError):
            check_words(brief(str(error)))
            return "refused"
        return f"unreadable message: {str(error)[:100]!r}"
    except Hung:
        return "hangs"
    except BaseException as error:
        if os.environ.get("MEMLIB_FUZZ_RAISE"):
            raise
        return f"{type(error).__name__}: {str(error)[:120]} at {_where(error)}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _where(error: BaseException) -> str:
    """Return the innermost place in memlib's own code."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if any(part in frame.filename for part in ("/memlib/", "/flows/", "/tasks/"))]
    frame = (own or frames)[-1]
    return f"{'/'.join(frame.filename.split('/')[-2:])}:{frame.lineno}"


def _limit(reader: Any) -> None:
    """Read the good files, then limit memory to what is in use plus the limit."""
    for file, content in enumerate(reader.files):
        with contextlib.suppress(Exception):
            reader.read(file, content)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _highest_memory(*, reset: bool) -> int:
    """Return the peak memory of this process since the last reset, in bytes."""
    if reset:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def alone(folder: Path, store: Path, name: str, number: int, seed: int) -> int:
    """Read one mutant in this process; print it, its outcome or its traceback."""
    from readers import readers

    (reader,) = (r for r in _all(readers, folder / "alone", store) if name in r.name)
    file, content = mutant(reader, number, seed)
    print(f"file {file}, {len(content)} bytes: {content[:2000]!r}")
    os.environ["MEMLIB_FUZZ_RAISE"] = "1"
    print(attempt(reader, file, content))
    return 0


# -- through the command line -------------------------------------------------------------------------


def through_commands(folder: Path, store: Path, count: int, *, seed: int) -> Tally:
    """Run commands, started as users start them, on stores and recipes in which one file is a mutant."""
    tally = Tally()
    running: list[tuple[int, Path, float, subprocess.Popen[bytes]]] = []
    numbers = iter(range(count))
    number = next(numbers, None)
    while number is not None or running:
        while number is not None and len(running) < WORKERS:
            own = folder / f"command-{number}"
            running.append((number, own, time.monotonic(), _started(own, store, number, seed)))
            number = next(numbers, None)
        for item in list(running):
            number_, own, began, process = item
            late = time.monotonic() - began > 6 * SECONDS  # most of it is start-up, on a busy machine
            if process.poll() is None and not late:
                continue
            if late:
                process.kill()
            process.wait()
            _count(tally, number_, "hangs" if late else _said(process.returncode, own), 0.0, 0)
            running.remove(item)
            shutil.rmtree(own)
        time.sleep(0.02)
    return tally


def _started(own: Path, store: Path, number: int, seed: int) -> "subprocess.Popen[bytes]":
    from mutants import mutated

    from memlib.runs.index import run_names
    from memlib.runs.requests import unfinished
    from memlib.store import Store

    rng = random.Random(f"{seed} command {number}")
    shutil.copytree(store, own / "store")
    recipe = rng.choice(recipes())
    opened = Store(str(own / "store"))
    first, second = sorted(run_names(opened))[:2]
    open_run = unfinished(opened)[0].run
    paths = [*sorted((own / "store").glob("[mris]*/**/*.*")), own / "store/memlib-store.json"]
    path = rng.choice([path for path in paths if path.is_file()])
    line = rng.choice(
        (("runs",), ("show", first), ("status", open_run), ("verify",), ("diff", first, second), ("gc", "--delete", "--days", "0"),
         ("resume", open_run, "--set", "resources.nothing=1"), ("plan",))
    )  # fmt: skip
    (own / "recipe.yaml").write_bytes(recipe.read_bytes())
    if line == ("plan",):
        audit = next(row.split(":")[1].strip() for row in recipe.read_text().splitlines() if row.startswith("audit:"))
        line, path = ("plan", audit.replace("_", "-"), "--recipe", str(own / "recipe.yaml")), own / "recipe.yaml"
    kind = {".json": "json", ".parquet": "parquet", ".yaml": "yaml"}.get(path.suffix, "text")
    path.write_bytes(mutated(kind, path.read_bytes(), [path.read_bytes()], rng))
    out, errors = (own / "out").open("wb"), (own / "errors").open("wb")
    command = [sys.executable, "-m", "flows.cli.entry", *line, "--store", str(own / "store")]
    with out, errors:
        return subprocess.Popen(command, stdout=out, stderr=errors, stdin=subprocess.DEVNULL, cwd=own)


def _said(status: int, own: Path) -> str:
    out, errors = (own / "out").read_text(errors="replace"), (own / "errors").read_text(errors="replace")
    if "Traceback" in out + errors or status not in (0, 2, 75):
        return f"status {status}: {errors.strip()[-200:]}"
    last = errors.strip().splitlines()[-1:] or [""]
    if status and (not last[0].startswith("memlib: ") or len(errors) > 4000):
        return f"status {status} without a one-line message: {errors[:200]!r}"
    return "refused" if status else "accepted"


if __name__ == "__main__":
    sys.exit(main())
