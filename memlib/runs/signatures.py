"""Ed25519 signatures of runs and of frozen plans. Keys are read from files, and only public ones are ever shown or stored."""

import base64
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from memlib.errors import UserError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey


def private_key(path: Path) -> "Ed25519PrivateKey":
    """Read an Ed25519 private key (PEM) from a file that only its owner can read.

    Raises:
        UserError: when the file does not hold such a key, or others can read it.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        mode, content = path.stat().st_mode, path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read the key {path} ({error.strerror})") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UserError(f"others can read the key {path} (mode {stat.S_IMODE(mode):o}); run chmod 600 {path}")
    try:
        private = load_pem_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        problem = f"{path} holds no private key (PEM, without a password); openssl genpkey -algorithm ed25519 creates one"
        raise UserError(problem) from error
    if not isinstance(private, Ed25519PrivateKey):
        raise UserError(f"{path} holds a private key that is not Ed25519; openssl genpkey -algorithm ed25519 creates one")
    return private


def public_key(path: Path) -> "Ed25519PublicKey":
    """Read an Ed25519 public key (PEM) from a file.

    Raises:
        UserError: when the file does not hold such a key.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        public = load_pem_public_key(path.read_bytes())
    except OSError as error:
        raise UserError(f"cannot read the public key {path} ({error.strerror})") from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UserError(f"{path} holds no public key in PEM format; openssl pkey -in KEY -pubout prints it") from error
    if not isinstance(public, Ed25519PublicKey):
        raise UserError(f"{path} holds a public key that is not Ed25519")
    return public


def sign_text(text: str, key: "Ed25519PrivateKey") -> str:
    """Return the signature of a text, in base64."""
    return base64.b64encode(key.sign(text.encode())).decode()


def is_signed(text: str, signature: str, key: "Ed25519PublicKey") -> bool:
    """Return whether a signature (base64) is one of this text with the private key that belongs to a public one.

    Raises:
        ValueError: when the signature is not base64.
    """
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(base64.b64decode(signature, validate=True), text.encode())
    except InvalidSignature:
        return False
    return True


def shown_key(key: "Ed25519PublicKey") -> str:
    """Return a public key as 64 hexadecimal digits."""
    return key.public_bytes_raw().hex()
