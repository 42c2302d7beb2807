"""The steps of a drill: what was observed, or what went wrong, and how long each took."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from deployments.local.processes import Unexpected

T = TypeVar("T")


class NotHere(Exception):
    """A step that this host cannot carry out."""


SAVED = "resume/*/*/manifest.json"  # below a store: states of trainings
UNEQUAL = "table=runs"  # folder of the table that says who ran it, where and for how long: of no two runs the same


@dataclass(frozen=True)
class Row:
    """One step as it went: its verdict is ok, FAILED, or `not here` if the host cannot carry it out."""

    verdict: str
    what: str
    saw: str
    seconds: float


def carry_out(what: str, do: Callable[[], str]) -> Row:
    """Carry out one step, and return what it observed, what went wrong, or why the host cannot carry it out."""
    print(f"... {what}", flush=True)
    began = time.monotonic()
    try:
        saw, verdict = do(), "ok"
    except NotHere as error:
        saw, verdict = str(error), "not here"
    except (Unexpected, OSError, subprocess.SubprocessError) as error:
        saw, verdict = str(error), "FAILED"
    return Row(verdict, what, saw, time.monotonic() - began)


def rehearse(
    name: str,
    everything: Callable[[Path], AbstractContextManager[T]],
    steps: Mapping[str, Callable[[T], str]],
    show: Callable[[Sequence[Row]], str],
) -> int:
    """Carry out steps in a new folder until one fails, and print them; the folder with the logs is kept if one did.

    Args:
        name: name of the folder.
        everything: starts all that the steps need in the folder, and ends it in any case.
        steps: the steps by name; each returns what it observed.
        show: renders the steps.

    Returns:
        the exit status, 0 if no step failed.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    folder = Path(tempfile.mkdtemp(prefix=f"memlib-{name}-"))
    os.chmod(folder, 0o755)  # PostgreSQL may run as another user in a folder below
    rows: list[Row] = []
    try:
        with everything(folder) as subject:
            for what, do in steps.items():
                rows.append(carry_out(what, lambda do=do: do(subject)))  # type: ignore[misc]
                if rows[-1].verdict == "FAILED":
                    break
    except Unexpected as error:
        print(f"could not start or end: {error}")
    except KeyboardInterrupt:
        print("stopped; all processes have ended")
    finally:
        print(show(rows))
    good = len(rows) == len(steps) and all(row.verdict != "FAILED" for row in rows)
    if good:
        shutil.rmtree(folder)
    else:
        print(f"logs and store: {folder}")
    return 0 if good else 1


def latest_step(states: Iterable[Path | str]) -> int:
    """Return the latest step of a training whose state is saved, of paths that match `SAVED`; 0 if there is none."""
    return max((int(Path(path).parent.name.partition("-")[0]) for path in states), default=0)


def markdown(rows: Sequence[Row]) -> str:
    """Return the steps as a table in Markdown."""
    lines = [f"| {row.what} | {row.verdict} | {row.saw} | {row.seconds:.0f} |".replace("\n", " ") for row in rows]
    return "\n".join(["| step | | observed | s |", "|---|---|---|---|", *lines])


def _interrupt(*_: object) -> None:
    """Handle SIGTERM like Ctrl-C, so that all processes are ended."""
    raise KeyboardInterrupt
