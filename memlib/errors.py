"""User errors, and faults of the environment that stop a run.

The command line prints these without a traceback; any other exception is a bug and keeps its traceback.
"""

from typing import Any


class UserError(ValueError):
    """A mistake that the user can correct; the message says what was seen and what to do."""


class DataError(UserError):
    """Data that cannot be read as the recipe says; the message names the file or the example."""


class ResourcesError(UserError):
    """Resources that are unsuitable for the work; the run can be resumed with other resources."""


class RunError(RuntimeError):
    """An expected failure at run time (a diverged loss, a lost store), reported without a traceback."""


class UnknownUntilRun(RunError):
    """A value that is unknown to a plan because a plan does not run the code that computes the value."""


class EngineLost(RunError):
    """The loss of Ray or Prefect during a run; running the same command again resumes it."""


class StoreUnreachable(RunError):
    """A store that did not answer within the configured time."""


class StoreRefused(RunError):
    """A store that rejected the credentials, or a bucket that does not exist."""


class Untrusted(RunError):
    """A run that the holder of the trusted key has not signed, or that was changed since."""


class CorruptArtifact(RunError):
    """An artifact that must not be read because its bytes do not match its manifest; `ref` is its address, if known."""

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
