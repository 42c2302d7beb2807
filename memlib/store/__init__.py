"""The store of artifacts, results and runs."""

from memlib.store.core import KEPT_RESUME_STATES, MANIFEST, MARKER, Attempt, Facts, Ref, Store

__all__ = ["KEPT_RESUME_STATES", "MANIFEST", "MARKER", "Attempt", "Facts", "Ref", "Store"]
