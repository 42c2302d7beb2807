"""The section of a page that describes the data as read, so that misread data are noticed at once."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc

from memlib.data.stages import Shard
from memlib.pipeline.stage import AnyArtifact
from memlib.report.figures import data_uri
from memlib.report.page import PicturesView, Section

CLASSES, EACH = 8, 3  # classes, and pictures per class, of the thumbnail sheet; six pictures fill a row of the page


def what_was_read(artifacts: Sequence[AnyArtifact]) -> Section | None:
    """Return a section with the descriptions of data artifacts and sample images; None if there are no descriptions."""
    lines = [line for artifact in artifacts for line in artifact.stage.described(artifact)]
    if not lines:
        return None
    pictures = [picture for artifact in artifacts for picture in _pictures(artifact)]
    said = (f"{line[:1].upper()}{line[1:]}." for line in lines)
    return Section("What was read", *said, PicturesView(pictures) if pictures else None)


def _pictures(artifact: AnyArtifact) -> list[tuple[str, str]]:
    """Return evenly spaced images of each of the first classes, with the class names."""
    content: Any = artifact.content
    if not isinstance(content, Shard) or not content.has_images:
        return []
    pictures = []
    index = content.index.filter(pc.field("unreadable").is_null())
    for name in sorted(pc.unique(index["class_name"]).to_pylist())[:CLASSES]:
        rows = index.filter(pc.field("class_name") == name)["row"].to_pylist()
        for place in np.linspace(0, len(rows) - 1, min(EACH, len(rows))).astype(int):
            pictures.append((data_uri(content.pictures(rows[place])), name))
    return pictures
