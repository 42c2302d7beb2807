"""Keyed randomness: the draws and the digests of canaries depend on a secret that is not part of the recipe.

Nine digits can be recovered from a plain hash in seconds. Digests of anything that depends on canaries are therefore keyed
with the secret, and so are the seeds of the draws: without the secret file, a recipe reveals nothing about its canaries.
"""

import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path

from memlib.errors import UserError
from memlib.identity import canonical_json
from memlib.store.permissions import user_folder

VARIABLE = "MEMLIB_SECRET_FILE"
LENGTH = 32


def read_secret(path: str | None = None) -> bytes:
    """Read the secret from the file `path`, else from MEMLIB_SECRET_FILE, else from the user's file, created if missing.

    Raises:
        UserError: when the file cannot be read, is another user's, writable by others or readable by all, or too short.
    """
    named = path or os.environ.get(VARIABLE)
    file = Path(named) if named else user_folder("config") / "secret"
    if not named and not file.exists():
        _create(file)
    try:
        (mode, owner), secret = (file.stat().st_mode, file.stat().st_uid), file.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read the secret file {file} ({error.strerror}); see {VARIABLE}") from error
    if mode & (stat.S_IWGRP | stat.S_IWOTH):  # a user who can set the secret can compute the canaries
        raise UserError(f"others can write the secret file {file} (mode {stat.S_IMODE(mode):o}); run chmod 600 {file}")
    if mode & stat.S_IROTH:
        raise UserError(f"everybody can read the secret file {file} (mode {stat.S_IMODE(mode):o}); run chmod 600 {file}")
    if owner not in (0, os.geteuid()):
        raise UserError(f"the secret file {file} belongs to another user, who knows it; make one of your own")
    if len(secret) < LENGTH:
        raise UserError(f"the secret file {file} holds {len(secret)} bytes; it needs {LENGTH} random bytes")
    return secret


def _create(file: Path) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(secrets.token_bytes(LENGTH))
    except FileExistsError:
        pass  # another process was first
    except OSError as error:
        raise UserError(f"cannot write a secret file to {file} ({error.strerror}); set {VARIABLE} to another file") from error


def keyed_digest(secret: bytes, *names: object) -> str:
    """Return a hexadecimal digest of `names` that cannot be computed without the secret."""
    return hmac.new(secret, canonical_json(list(names)).encode(), hashlib.sha256).hexdigest()


def keyed_seed(secret: bytes, *names: object) -> int:
    """Derive a 256-bit seed from the secret for the purpose given by `names`."""
    return int(keyed_digest(secret, "seed", *names), 16)
