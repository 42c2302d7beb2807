"""Frozen plans: files that say before a run what is run, on which data, with which code, and what decides.

The digest of a plan covers all of it but the signatures. Whoever was given the digest, or signed the plan, before the run can
tell whether a run follows that plan; the date in the plan itself is only the word of whoever froze it.
"""

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from memlib.errors import UserError
from memlib.runs.records import FrozenPlan, PlanFile, PlanSignature, RunRecord
from memlib.runs.signatures import is_signed, private_key, shown_key, sign_text
from memlib.sanitize import count_of
from memlib.specs.resources import RunOptions
from memlib.store.permissions import PRIVATE, read_plain, write_file
from memlib.store.records import MOST_BYTES, Unreadable, parse

PLAN = "plan.json"  # in the folder of a run
DIGITS = 16  # shown of digests and keys


def read_plan(path: Path) -> PlanFile:
    """Read a file with a frozen plan, and check its digest and its signatures.

    Raises:
        UserError: when the file cannot be read, is no plan, or was changed since it was frozen or signed.
    """
    try:
        return parse_plan(read_plain(path, MOST_BYTES))
    except OSError as error:
        raise UserError(f"cannot read the plan {path} ({error.strerror or error})") from error
    except Unreadable as error:
        raise UserError(f"{path} is no intact plan: {error}; memlib plan RECIPE --freeze FILE writes one") from error


def parse_plan(content: bytes) -> PlanFile:
    """Parse a file with a frozen plan, and check its digest and its signatures.

    Raises:
        Unreadable: when the content is no plan, or was changed since it was frozen or signed.
    """
    file = parse(PlanFile, content)
    text = signed_text(file)
    for one in file.signatures:
        if not _is_of(one, text):
            raise Unreadable(f"the signature of the key {one.key[:DIGITS]} is not one of this plan")
    return file


def given_plan(options: RunOptions) -> PlanFile | None:
    """Return the plan that a run was given; None if it was given none.

    Raises:
        UserError: when it was changed since it was frozen or signed.
    """
    try:
        return parse_plan(options.plan.encode()) if options.plan else None
    except Unreadable as error:
        raise UserError(f"the plan that the run was given is not intact: {error}; name its file with --plan") from error


def frozen_in(file: PlanFile) -> FrozenPlan:
    """Return the plan in a file.

    Raises:
        Unreadable: when it violates its schema, or its digest does not match the other fields.
    """
    return parse(FrozenPlan, json.dumps(file.plan).encode())


def signed_text(file: PlanFile) -> str:
    """Return the beginning of the texts that are signed: a fixed prefix, and the digest of the plan."""
    return f"memlib plan {frozen_in(file).digest}"


def _is_of(signature: PlanSignature, text: str) -> bool:
    """Return whether a signature is one of a plan, with the time and the public key that it states."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(signature.key))
        return is_signed(f"{text} {signature.signed}", signature.signature, public)
    except ValueError:  # not base64
        return False


def with_signature(file: PlanFile, key: Path) -> PlanFile:
    """Return a plan with one more signature, which covers its digest and the present time.

    Args:
        key: file with an Ed25519 private key (PEM) that only its owner can read.

    Raises:
        UserError: when the file does not hold such a key, others can read it, or the plan bears its signature already.
    """
    private, now = private_key(key), int(time.time())
    public = shown_key(private.public_key())
    if any(one.key == public for one in file.signatures):
        raise UserError(f"the plan is already signed with the key {key} ({public[:DIGITS]})")
    signature = sign_text(f"{signed_text(file)} {now}", private)
    record = PlanSignature(algorithm="Ed25519", key=public, signed=now, signature=signature)
    return file.model_copy(update={"signatures": [*file.signatures, record]})


def write_plan(path: Path, file: PlanFile) -> None:
    """Write a new file with a plan, readable by its owner only.

    Raises:
        UserError: when the file exists, or cannot be written.
    """
    try:
        write_file(path, content_of(file), PRIVATE.file)
    except FileExistsError as error:
        raise UserError(f"{path} exists; a frozen plan is never overwritten: name another file") from error
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror})") from error


def rewrite_plan(path: Path, file: PlanFile) -> None:
    """Replace a file with a plan by the same plan with more signatures; its permissions stay."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    write_file(new, content_of(file), path.stat().st_mode & 0o777)
    os.replace(new, path)


def content_of(file: PlanFile) -> bytes:
    """Return a plan as the content of a file."""
    return json.dumps(file.model_dump(), indent=1).encode() + b"\n"


def recipe_of(file: PlanFile) -> dict[str, Any]:
    """Return the recipe of a plan; locations of data are not part of it."""
    plan = frozen_in(file)
    return {**plan.recipe, "title": plan.title}


def on(seconds: float) -> str:
    """Return a time as text, in UTC."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def said_of_signatures(signatures: Sequence[PlanSignature], before: float) -> str:
    """Say with which keys a plan was signed before a time, and how many signatures are later."""
    early = [f"{one.key[:DIGITS]} on {on(one.signed)}" for one in signatures if one.signed <= before]
    said = "The plan was not signed before the run, so that only the plan itself says when it was frozen."
    if early:
        keys = count_of(len(early), "key")
        said = f"The plan was signed before the run with {keys}, by the signers' clocks: {', '.join(early)}."
    later = len(signatures) - len(early)
    return f"{said} {count_of(later, 'signature')} came later." if later else said


def unrecorded(run: RunRecord | None, file: PlanFile | None) -> list[str]:
    """Return a line for a run that keeps the plan of an earlier publication instead of the given one; else nothing."""
    if file is None or run is None or run.plan is None or run.plan.digest == frozen_in(file).digest:
        return []
    kept = f"the plan {run.plan.digest[:DIGITS]}, frozen on {on(run.plan.frozen)}"
    return [f"run {run.run} was published before with {kept}; it keeps that plan, and the given one is not recorded"]
