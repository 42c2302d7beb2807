"""The inserted canaries in plain text, from the folder that the recipe names, for explicit requests (show --reveal)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memlib.data.canaries.documents import read_documents
from memlib.data.canaries.pictures import is_of_pictures, read_pictures
from memlib.data.canaries.plan import read_coins


def revealed(recipe: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the inserted canaries: texts of documents, or labels of pictures.

    Raises:
        UserError: when the folder is not where the recipe says.
    """
    folder = Path(recipe["canaries"])
    coins = read_coins(folder)
    if is_of_pictures(folder):
        pictures = read_pictures(folder)
        told = [
            {"canary": name, "label": label} for name, label in zip(pictures.canaries, pictures.labels.tolist(), strict=True)
        ]
    else:
        told = [{"canary": one.canary, "text": one.text} for one in read_documents(folder)]
    return {"inserted": [row for row, inside in zip(told, coins.inside.tolist(), strict=True) if inside]}
