"""Pseudonyms of examples for model owners: random, but determined by the user's secret."""

from memlib.data.canaries.secret import keyed_digest

LENGTH = 16  # characters; the chance that any two of a million examples share a name is below 10^-7


def pseudonym_of(example_id: str, secret: bytes) -> str:
    """Return the pseudonym under which a model owner sees an example; it does not reveal the example."""
    return keyed_digest(secret, "asked", example_id)[:LENGTH]
