"""Names of examples for those who are asked about them: drawn at random, and the same whenever the secret is."""

from memlib.data.secret import keyed_digest

LENGTH = 16  # characters; of a million examples, two share a name once in 10^7


def asked_as(example_id: str, secret: bytes) -> str:
    """Return the name by which somebody is asked about an example, who cannot tell from it which one it is."""
    return keyed_digest(secret, "asked", example_id)[:LENGTH]
