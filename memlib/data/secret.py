"""Randomness that a recipe alone does not give away: canaries are drawn from a secret file, and keyed by it.

Nine digits are guessed from a plain hash in seconds. So what depends on canaries is keyed by a digest under the secret,
and the draws take their seeds from it: without the file, a recipe's seed says nothing of its canaries.
"""

import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path

from memlib.errors import UserError
from memlib.identity import canonical_json
from memlib.private import user_folder

VARIABLE = "MEMLIB_SECRET_FILE"
LENGTH = 32


def read_secret(path: str | None = None) -> bytes:
    """The secret: from a file that is named here or by MEMLIB_SECRET_FILE, else from the user's own, made when absent.

    Raises:
        UserError: when the file cannot be read or holds too little.
    """
    named = path or os.environ.get(VARIABLE)
    file = Path(named) if named else user_folder("config") / "secret"
    if not named and not file.exists():
        _create(file)
    try:
        mode, secret = file.stat().st_mode, file.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read the secret file {file} ({error.strerror}); see {VARIABLE}") from error
    if mode & (stat.S_IWGRP | stat.S_IWOTH):  # whoever writes it knows the canaries
        raise UserError(f"others can write the secret file {file} (mode {stat.S_IMODE(mode):o}); say chmod 600 {file}")
    if len(secret) < LENGTH:
        raise UserError(f"the secret file {file} holds {len(secret)} bytes; it needs {LENGTH} random ones")
    return secret


def _create(file: Path) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(secrets.token_bytes(LENGTH))
    except FileExistsError:
        pass  # another process was first
    except OSError as error:
        raise UserError(f"cannot write a secret file to {file} ({error.strerror}); name one by {VARIABLE}") from error


def keyed_digest(secret: bytes, *names: object) -> str:
    """A digest in hex that cannot be computed without the secret."""
    return hmac.new(secret, canonical_json(list(names)).encode(), hashlib.sha256).hexdigest()


def keyed_seed(secret: bytes, *names: object) -> int:
    """A seed of 256 bits for one purpose."""
    return int(keyed_digest(secret, "seed", *names), 16)
