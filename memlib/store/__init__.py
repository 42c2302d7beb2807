"""The store of artifacts, results and runs."""

from memlib.records import MANIFEST
from memlib.store.place import MARKER
from memlib.store.ranges import RangeFile
from memlib.store.refs import Attempt, Facts, Making, Ref
from memlib.store.resume import KEPT_RESUME_STATES
from memlib.store.store import Store

DEFAULT_STORE = "memlib-store"  # a folder where the command or program runs

__all__ = [
    "DEFAULT_STORE",
    "KEPT_RESUME_STATES",
    "MANIFEST",
    "MARKER",
    "Attempt",
    "Facts",
    "Making",
    "RangeFile",
    "Ref",
    "Store",
]
