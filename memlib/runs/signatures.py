"""Ed25519 signatures of runs and of frozen plans. Keys are read from files, and only public ones are ever shown or stored.

A run has two signatures: `memlib verify` reads one of the manifest's digest; programs that know in-toto read the other one,
an envelope (DSSE v1) with a statement (in-toto v1) that names the digests of the run's files.
"""

import base64
import functools
import hashlib
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memlib.errors import UserError
from memlib.identity import canonical_json
from memlib.runs.records import RunRecord, SignatureRecord
from memlib.store import MANIFEST
from memlib.store.records import Unreadable, json_once, parse

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey


ALGORITHM = "Ed25519"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:memlib:audit:v1"


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


@functools.cache
def trusted_key(path: Path, root: str | None) -> "Ed25519PublicKey":
    """Read the public key that must have signed the runs of a store.

    Args:
        root: folder of the store; None for a store that is not local.

    Raises:
        UserError: when the file does not hold such a key, or lies in the store, where whoever changes runs can change it.
    """
    if root is not None and path.resolve().is_relative_to(Path(root).resolve()):
        raise UserError(f"{path} lies in the store that is verified with it; keep the public key elsewhere")
    return public_key(path)


def signed_text(run: RunRecord) -> str:
    """Return the text that is signed: a fixed prefix, the run's id, and the manifest's digest, which covers all else."""
    return f"memlib run {run.run} {run.digest}"


def unlike_signed(run: RunRecord, content: bytes | None, key: "Ed25519PublicKey") -> str:
    """Return what is wrong with the signature of a run; "" if the holder of a key has signed its manifest as it is.

    Args:
        content: content of the file with the signature; None if there is none.
    """
    if content is None:
        return "is not signed"
    try:
        record = parse(SignatureRecord, content)
        if not is_signed(signed_text(run), record.signature, key):
            return "differs from what was signed, or was signed with another key"
    except (Unreadable, ValueError) as error:
        return f"has a signature that cannot be read ({error})"
    if run.digest is None:
        return "has a manifest without a digest, which no signature covers"
    if content != canonical_json(_record_of(run, record.signature)).encode():
        return "has a signature whose other fields were changed"
    return ""


def signature_file(run: RunRecord, key: "Ed25519PrivateKey") -> bytes:
    """Return the content of the file with the signature of a run's manifest."""
    return canonical_json(_record_of(run, sign_text(signed_text(run), key))).encode()


def _record_of(run: RunRecord, signature: str) -> dict[str, Any]:
    return {"algorithm": ALGORITHM, "run": run.run, "manifest": run.digest, "signature": signature}


def statement_of(run: RunRecord, manifest: bytes) -> dict[str, Any]:
    """Return a run as a statement of in-toto: the digests of its files, and as predicate its verdict.

    Args:
        manifest: content of the file with its manifest.
    """
    files = {f"runs/{run.run}/{MANIFEST}": hashlib.sha256(manifest).hexdigest(), **run.published}
    verdict = None if run.verdict is None else run.verdict.model_dump(include={"word", "sentence"})
    said = {"run": run.run, "audit": run.audit, "finished": run.finished, "manifest": run.digest, "verdict": verdict}
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in sorted(files.items())],
        "predicateType": PREDICATE_TYPE,
        "predicate": {**said, "memlib": str(run.software.get("memlib", ""))},
    }


def envelope(run: RunRecord, manifest: bytes, key: "Ed25519PrivateKey") -> bytes:
    """Return the envelope (DSSE, JSON) with the signed statement of a run, see `statement_of`."""
    payload = canonical_json(statement_of(run, manifest)).encode()
    return _enveloped(payload, key.sign(_encoded(payload)), shown_key(key.public_key()))


def _enveloped(payload: bytes, signature: bytes, key: str) -> bytes:
    signatures = [{"keyid": key, "sig": base64.b64encode(signature).decode()}]
    whole = {"payload": base64.b64encode(payload).decode(), "payloadType": PAYLOAD_TYPE, "signatures": signatures}
    return canonical_json(whole).encode()


def _encoded(payload: bytes) -> bytes:
    """Return what is signed of an envelope: its pre-authentication encoding."""
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)


def unlike_enveloped(run: RunRecord, manifest: bytes, content: bytes, key: "Ed25519PublicKey") -> str:
    """Return what is wrong with the envelope of a run; "" if the holder of a key signed it for the run as it is.

    Args:
        manifest: content of the file with its manifest.
        content: content of the file with the envelope.
    """
    from cryptography.exceptions import InvalidSignature

    payload = canonical_json(statement_of(run, manifest)).encode()
    try:
        (signature,) = json_once(content)["signatures"]
        sig = base64.b64decode(signature["sig"], validate=True)
        key.verify(sig, _encoded(payload))
    except InvalidSignature:
        return "does not match the run, or was signed with another key"
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        return "cannot be read"
    return "" if content == _enveloped(payload, sig, shown_key(key)) else "has fields that were changed"


def shown_key(key: "Ed25519PublicKey") -> str:
    """Return a public key as 64 hexadecimal digits."""
    return key.public_bytes_raw().hex()
