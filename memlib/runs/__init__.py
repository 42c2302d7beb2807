"""Runs as a store records them: manifests, index, ledger, journals and requests; and garbage, which no run needs."""

from memlib.errors import UserError


class NoSuchRun(UserError):
    """A name that no run of a store has, or a prefix that is not unique.

    Attributes:
        name: the name or prefix that was given.
    """

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name
