"""What a user can get wrong, and what the world can do to a run.

The command line prints these without a traceback; anything else is a defect and keeps its traceback.
"""

from typing import Any


class UserError(ValueError):
    """A mistake the user can mend: the message says what was seen and what to do."""


class ResourcesError(UserError):
    """Machines that cannot do the work; the same recipe goes on with others."""


class RunError(RuntimeError):
    """An expected fault of the world (a diverged loss, a lost store): said plainly, no traceback."""


class UnknownUntilRun(RunError):
    """Something that a plan cannot know, as it does not run the code that says it."""


class EngineLost(RunError):
    """Ray or Prefect has died under a run; the same command, run again, goes on."""


class StoreUnreachable(RunError):
    """The store did not answer for as long as we were told to wait."""


class StoreRefused(RunError):
    """The store does not accept our credentials, or has no such bucket."""


class CorruptArtifact(RunError):
    """An artifact whose bytes do not match its manifest: `ref`, its address, where it is known. Never to be read."""

    def __init__(self, message: str, ref: Any = None) -> None:
        super().__init__(message)
        self.ref = ref

    def __reduce__(self) -> tuple[Any, ...]:
        return (CorruptArtifact, (str(self), self.ref))


class MissingArtifact(CorruptArtifact):
    """An artifact that nobody has committed yet, or that was taken out."""

    def __init__(self, ref: Any) -> None:
        super().__init__(f"artifact {ref} has no manifest; it must be computed again", ref)

    def __reduce__(self) -> tuple[Any, ...]:
        return (MissingArtifact, (self.ref,))
