"""The coins of canaries and the plan of the looks at their training, both fixed before anything is trained.

plan.json has the plan, and goes to the trainer; coins.parquet has the coins, the seed of their redraws, the plan and a secret
salt, and is for the audit alone. Digests of coins are keyed with the salt: the coins of twenty canaries could be guessed from
a plain one.
"""

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from memlib.data.canaries.secret_key import keyed_digest, keyed_seed
from memlib.errors import UserError
from memlib.identity import canonical_json, file_digest
from memlib.stats.canaries import Plan
from memlib.store.permissions import PRIVATE, make_folder, write_file
from memlib.tables import FLAG, TEXT, Column, Table, write_table

COINS_FILE, PLAN_FILE = "coins.parquet", "plan.json"
FEWEST = 20  # canaries; with fewer, no p-value below .05 is likely
SHARES = (0.1, 0.3, 0.8)
"""Shares of the canaries whose coins are guessed for the bound of epsilon, half of them as "in". With a share of 1.0, even a
perfect attack would make errors, as seldom exactly half of the coins are "in"."""
MOST_REPEATS = 1000
EARLIER = Plan()  # of folders without a plan: one look, at the end

COINS = Table(
    name="canary_coins",
    version=1,
    meaning="The coin of each canary; secret until the audit.",
    columns=(
        Column("canary", TEXT, "", "id of the canary in all.jsonl, or all.npz"),
        Column("inside", FLAG, "", "true if the canary was given to the trainer"),
    ),
    keys=("canary",),
)


@dataclass(frozen=True)
class Coins:
    """The coins of a folder of canaries, and how they are to be used."""

    canaries: tuple[str, ...]  #: ids, in the order of all.jsonl.
    inside: NDArray[np.bool_]  #: (num_canaries,) bool, true for the canaries given to the trainer.
    repeats: int  #: number of times that each of the inserted canaries was given.
    guesses: tuple[int, ...]  #: numbers of guesses for the bound of epsilon, fixed when the coins were drawn.
    plan: Plan = EARLIER  #: the looks.
    seed: int = 0  #: seed of the redraws of the coins.
    salt: str = ""  #: secret key of the digest; of folders of earlier versions, a digest of their file of coins.
    content: str = ""  #: digest of the canaries themselves; "" in folders of earlier versions.

    @cached_property
    def digest(self) -> str:
        """A digest of coins, plan and seed, from which the coins cannot be guessed."""
        said = [self.canaries, self.inside.tolist(), self.repeats, self.guesses, asdict(self.plan), self.seed]
        return hmac.new(self.salt.encode(), canonical_json(said).encode(), hashlib.sha256).hexdigest()


def drawing(plan: Plan, repeats: int, guesses: Sequence[int], seed: int) -> str:
    """Return what determines canaries and coins, besides the secret: of another plan, both are others.

    So a plan cannot be changed after the losses were seen.
    """
    return canonical_json([asdict(plan), repeats, list(guesses), seed])


def draw_coins(count: int, *, secret: bytes, seed: str) -> NDArray[np.bool_]:
    """Draw independent fair coins: (count,) bool.

    Args:
        seed: with the secret, determines the coins; see `drawing`.
    """
    rng = np.random.default_rng(keyed_seed(secret, "canary coins", seed))
    return rng.integers(0, 2, size=count).astype(bool)


def toss(
    canaries: Sequence[str],
    *,
    content: str,
    repeats: int,
    guesses: Sequence[int],
    plan: Plan,
    secret: bytes,
    seed: str,
) -> Coins:
    """Toss a coin for each canary, and fix how they will be used.

    Args:
        canaries: ids.
        content: digest of the canaries themselves.
        repeats: number of times that an inserted canary is given.
        guesses: numbers of guesses for the bound of epsilon; if empty, `planned_guesses`.
        secret, seed: as in `draw_coins`.

    Raises:
        UserError: when a number is out of bounds.
    """
    count = len(canaries)
    _check_numbers(count, repeats, guesses)
    inside = draw_coins(count, secret=secret, seed=seed)
    redraws = keyed_seed(secret, "canary redraws", seed) % 2**32
    salt = keyed_digest(secret, "canary salt", seed, content)
    numbers = tuple(guesses) or planned_guesses(count)
    return Coins(tuple(canaries), inside, repeats, numbers, plan, redraws, salt, content)


def check_count(count: int) -> None:
    """Raise UserError if canaries are too few for a test."""
    if count < FEWEST:
        raise UserError(f"{count} canaries are too few for a test; draw at least {FEWEST}, better 500")


def ids_of(count: int) -> tuple[str, ...]:
    """Return the ids of canaries in the order of their draw.

    Example:
        >>> ids_of(20)[:2]
        ('canary-00', 'canary-01')
    """
    width = len(str(count - 1))
    return tuple(f"canary-{row:0{width}}" for row in range(count))


def planned_guesses(count: int) -> tuple[int, ...]:
    """Return the numbers of guesses for the bound of epsilon, given the number of canaries.

    Example:
        >>> planned_guesses(500)
        (50, 150, 400)
    """
    return tuple(sorted({max(1, round(share * count)) for share in SHARES}))


def write_folder(folder: Path, coins: Coins, files: Mapping[str, bytes]) -> None:
    """Write a new folder of canaries, which its owner alone can read: plan, coins and other files by name.

    Raises:
        UserError: when the folder exists or cannot be written.
    """
    if folder.exists():
        raise UserError(f"{folder} already exists; choose another folder")
    try:
        make_folder(folder, PRIVATE.folder)
        for name, content in files.items():
            write_file(folder / name, content, PRIVATE.file)
        write_file(folder / PLAN_FILE, f"{json.dumps(asdict(coins.plan), indent=2)}\n".encode(), PRIVATE.file)
        write_file(folder / COINS_FILE, b"", PRIVATE.file)  # private before its content
        table = pa.table({"canary": list(coins.canaries), "inside": coins.inside})
        write_table(table, COINS, folder / COINS_FILE, metadata=_metadata(coins))
    except OSError as error:
        raise UserError(f"cannot write {folder} ({error.strerror})") from error


def read_coins(folder: Path) -> Coins:
    """Read the coins of a folder of canaries.

    Raises:
        UserError: when the file of coins cannot be read.
    """
    file = folder / COINS_FILE
    try:
        table = pq.ParquetFile(file).read(columns=COINS.arrow.names).cast(COINS.arrow)
        said = {name.decode(): value.decode() for name, value in (pq.read_schema(file).metadata or {}).items()}
        repeats, guesses = int(said["memlib.repeats"]), tuple(map(int, json.loads(said["memlib.guesses"])))
        plan = Plan(**json.loads(said["memlib.plan"])) if "memlib.plan" in said else EARLIER
        seed, salt = int(said.get("memlib.seed", 0)), said.get("memlib.salt") or file_digest(file)
        content = said.get("memlib.content", "")
        inside = table["inside"].to_numpy()
        if inside.dtype != bool or seed < 0:
            raise ValueError("coins that are neither in nor out")
    except (OSError, pa.ArrowException, ValueError, KeyError, TypeError, OverflowError) as error:
        raise UserError(
            f"cannot read the coins of {file} ({reason(error)}); give the folder that memlib canaries make wrote"
        ) from error
    names = tuple(table["canary"].to_pylist())
    return Coins(names, inside, repeats, guesses, plan, seed, salt, content)


def read_plan(path: Path) -> Plan:
    """Read the plan of a folder of canaries; one look at the end where there is none, as in folders of earlier versions.

    Args:
        path: the folder, or a file in it.

    Raises:
        UserError: when the plan is damaged.
    """
    file = (path if path.is_dir() else path.parent) / PLAN_FILE
    if not file.exists():
        return EARLIER
    try:
        return Plan(**json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"cannot read {file} ({reason(error)}); use it as memlib canaries make wrote it") from error


def coins_beside(path: Path, canaries: Sequence[str]) -> Coins | None:
    """Return the coins in a folder of canaries; None if it has none, as at a trainer that is not trusted.

    Raises:
        UserError: for coins of other canaries.
    """
    home = path if path.is_dir() else path.parent
    if not (home / COINS_FILE).exists():
        return None
    coins = read_coins(home)
    if list(coins.canaries) != list(canaries):
        raise UserError(f"{home / COINS_FILE} has coins of other canaries; use the folder that memlib canaries make wrote")
    return coins


def _metadata(coins: Coins) -> dict[str, str]:
    return {
        "memlib.repeats": str(coins.repeats), "memlib.guesses": json.dumps(coins.guesses),
        "memlib.plan": json.dumps(asdict(coins.plan)), "memlib.seed": str(coins.seed), "memlib.salt": coins.salt,
        "memlib.content": coins.content,
    }  # fmt: skip


def _check_numbers(count: int, repeats: int, guesses: Sequence[int]) -> None:
    check_count(count)
    if not 1 <= repeats <= MOST_REPEATS:
        raise UserError(f"repeats is {repeats}; give a number from 1 to {MOST_REPEATS}")
    if len(set(guesses)) < len(guesses) or not all(0 < number <= count for number in guesses):
        raise UserError(f"guesses are {tuple(guesses)}; give distinct numbers from 1 to the number of canaries ({count})")


def reason(error: Exception) -> str:
    """Return why a file cannot be read, in a word or two; no content of the file is quoted."""
    if isinstance(error, FileNotFoundError):
        return "No such file or directory"
    return (getattr(error, "strerror", None) or type(error).__name__) if isinstance(error, OSError) else type(error).__name__
