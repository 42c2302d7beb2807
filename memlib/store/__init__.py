"""The store of artifacts, results and runs."""

import os

from memlib.store.copies import RangeFile
from memlib.store.place import MARKER
from memlib.store.records import MANIFEST
from memlib.store.refs import Attempt, Facts, Making, Ref
from memlib.store.resume import KEPT_RESUME_STATES
from memlib.store.store import TRUST_VARIABLE, Store

DEFAULT_STORE = "memlib-store"  # a folder where the command or program runs
STORE_VARIABLE = "MEMLIB_STORE"


def chosen_store(uri: str | None) -> str:
    """Return the store that an argument names, else the variable MEMLIB_STORE, else the default one."""
    return uri or os.environ.get(STORE_VARIABLE) or DEFAULT_STORE


__all__ = [
    "DEFAULT_STORE",
    "KEPT_RESUME_STATES",
    "MANIFEST",
    "MARKER",
    "STORE_VARIABLE",
    "TRUST_VARIABLE",
    "Attempt",
    "Facts",
    "Making",
    "RangeFile",
    "Ref",
    "Store",
    "chosen_store",
]
