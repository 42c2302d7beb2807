"""Errors that users make, and faults of the environment that stop a run.

The command line prints these without a traceback; any other exception is a bug and keeps its traceback.
"""

from typing import Any


class UserError(ValueError):
    """A mistake that the user can correct; the message says what was seen and what to do."""


class ResourcesError(UserError):
    """Resources that cannot do the work; the same recipe can resume with other resources."""


class RunError(RuntimeError):
    """An expected failure at run time (a diverged loss, a lost store), reported without a traceback."""


class UnknownUntilRun(RunError):
    """A value that a plan cannot know, as a plan does not run the code that computes it."""


class EngineLost(RunError):
    """The loss of Ray or Prefect during a run; running the same command again resumes it."""


class StoreUnreachable(RunError):
    """A store that did not answer within the configured time."""


class StoreRefused(RunError):
    """A store that rejected the credentials, or a bucket that does not exist."""


class CorruptArtifact(RunError):
    """An artifact whose bytes do not match its manifest, and which must not be read; `ref` is its address where known."""

    def __init__(self, message: str, ref: Any = None) -> None:
        super().__init__(message)
        self.ref = ref

    def __reduce__(self) -> tuple[Any, ...]:
        return (CorruptArtifact, (str(self), self.ref))


class MissingArtifact(CorruptArtifact):
    """An artifact that is not committed yet, or was deleted."""

    def __init__(self, ref: Any) -> None:
        super().__init__(f"artifact {ref} has no manifest; it must be computed again", ref)

    def __reduce__(self) -> tuple[Any, ...]:
        return (MissingArtifact, (self.ref,))
