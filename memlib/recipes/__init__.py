"""Recipes: the YAML files, their inheritance and changes, and the request that they become."""

from memlib.errors import UserError


class RecipeError(UserError):
    """A recipe that cannot be used as it is.

    Attributes:
        key: dotted key of the first value at fault; "" if there is none.
        origin: the file or change that sets it; "" if unknown.
    """

    def __init__(self, message: str, key: str = "", origin: str = "") -> None:
        super().__init__(message)
        self.key, self.origin = key, origin
