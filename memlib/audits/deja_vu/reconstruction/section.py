"""The sections of the page that show and judge reconstructions."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from memlib.audits.deja_vu.findings import most_correlated, most_memorized
from memlib.audits.deja_vu.reconstruction.findings import BEYOND_FAMILY, BEYOND_PUBLIC, FAMILY, GAIN, MEAN
from memlib.audits.deja_vu.reconstruction.judging import (
    AVERAGED,
    COPIES,
    NEAREST,
    RANK,
    RANK_PIXELS,
    SPREAD_HIDDEN,
    SPREAD_SHOWN,
)
from memlib.audits.deja_vu.reconstruction.sampling import CROP_ITSELF, DECODED, SHUFFLED, UNCONDITIONED, WHOLE
from memlib.audits.deja_vu.tables import NEIGHBORS
from memlib.findings import Finding, Findings
from memlib.report.figures import data_uri, outlined
from memlib.report.format import format_interval, format_p, percent, say_p
from memlib.report.page import ExampleView, Section, TableView

HEADING = "Reconstructions"
SOURCES = {
    NEIGHBORS: "the crop's neighbours (the attack)",
    CROP_ITSELF: "the crop itself",
    WHOLE: "the whole image (inversion: an upper limit, not memory)",
    SHUFFLED: "neighbours of another image of its class",
    UNCONDITIONED: "nothing",
    DECODED: "the crop's neighbours, by an MLP decoder",
    NEAREST: "no generator: the nearest public image",
    AVERAGED: "no generator: the mean of the neighbours",
}
MEASURES = {
    RANK: "rank of the true image",
    RANK_PIXELS: "rank of the true image by pixels",
    COPIES: "copies of public images",
    SPREAD_HIDDEN: "spread over noise, hidden part",
    SPREAD_SHOWN: "spread over noise, part in the crop",
}
_WHAT = (
    "A generator for each model was trained on public images alone to draw an image from the model's representation of it. "
    "Given what the public neighbours of a background crop have in common, both generators draw the same audited images from "
    "the same noise. Only the part that the crop does not show is judged: by classifiers of public images, which are neither "
    "of the models. The rank is the share of other audited images of the same class, from both sets, that lie nearer to the "
    "pictures than the true image does (of up to {candidates}): 50 % for a candidate drawn at random, 0 % if the true one is "
    "always the nearest. Pictures that tell nothing can rank it lower or higher (drawn from nothing, or from another image). "
)
_MEANING = (
    "A picture is what a generator makes of a representation: it is no copy of the training image, and most of what it shows "
    "is what public images of this kind look like. "
)


@dataclass(frozen=True)
class Drawn:
    """Pictures of one reconstructed image."""

    image: NDArray[np.uint8]  #: (size, size, channels) uint8.
    box: tuple[int, int, int, int]  #: the background crop, x0, y0, x1, y1.
    #: own, other: pictures (num_samples, side, side, 3) from the neighbours, of the model that was trained on the image and
    #: of the other model.
    own: NDArray[np.uint8]
    other: NDArray[np.uint8]
    nearest: NDArray[np.uint8]  #: the nearest public image under the own model.


class Reconstructed(Protocol):
    """Access to the reconstructed images of the first pair of models."""

    ids: list[str]  # in hashed order

    def draw(self, unit: Mapping[str, Any]) -> Drawn:
        """Return the pictures for one row of the units."""


def sections(findings: Findings, units: pa.Table, reconstructed: Reconstructed, shown: int) -> Iterator[Section]:
    """Yield the sections on reconstructions; none if nothing was reconstructed.

    Args:
        units: tables.UNITS of the headline's setting.
        shown: number of images by each rule.
    """
    rows = findings.all(GAIN, MEAN, BEYOND_PUBLIC)
    if not rows:
        return
    what = _WHAT.format(candidates=max(row.params["candidates"] for row in rows))
    yield Section(HEADING, _said(rows), what, _MEANING + _copies(rows), _tested(rows), _by_source(rows), _describing(rows))
    ours = units.filter(
        pc.and_(pc.is_in(units["example_id"], value_set=pa.array(reconstructed.ids)), pc.equal(units["pair"], 0))
    )
    for heading, text, chosen in _chosen(ours, reconstructed.ids, shown):
        if chosen.num_rows:
            yield Section(heading, text, *(_example(row, reconstructed.draw(row)) for row in chosen.to_pylist()))


def _said(rows: Findings) -> str:
    """State what the tests show."""
    beyond, gains, tests = rows.tests(BEYOND_FAMILY).shown(), rows.tests(FAMILY).shown(), rows.tests(FAMILY)
    if not tests:
        return "Nothing was tested, as the images were not assigned to the sets at random."
    if not any(row.verdict for row in tests):
        said = [f"{_name(row.params['measure'])} {percent(row.value)} ({say_p(row.p_adjusted)})" for row in tests]
        return (
            "Without a verdict, as the headlines of this run show no memory. Pictures by the model that was trained on an "
            f"image less those by the other model: {', '.join(said)}."
        )
    if beyond:
        return (
            f"From memory, the model's pictures show {_list(beyond)} of training images better than the other model's "
            "pictures, than the public image that the model places nearest, and than the mean of its neighbours."
        )
    if gains:
        return (
            f"The model that was trained on an image draws it better than the other model ({_list(gains)}), which is "
            "memory. The pictures were not shown to surpass the public images that the model places nearest, which need no "
            "generator, and whose choice tells of its memory, too."
        )
    found = [row.detectable for row in tests if row.params["measure"] == RANK and row.detectable is not None]
    power = f" A difference of {percent(found[0])} in rank would have been found with a power of 80 %." if found else ""
    p = say_p(tests.strongest().p_adjusted)
    return f"That pictures of training images come from memory was not shown ({p}, adjusted).{power}"


def _copies(rows: Findings) -> str:
    """State the share of pictures that are near copies of public images."""
    copies = rows.first(MEAN, measure=COPIES, source=NEIGHBORS, by="target")
    return (
        f"{percent(copies.value)} of them (95 % interval {format_interval(copies, percent)}) are near copies of a public "
        "image: closer to it than half of the usual distance between neighbouring public images."
    )


def _list(rows: Findings) -> str:
    *first, last = (f"the {_name(row.params['measure'])} ({say_p(row.p_adjusted)})" for row in rows)
    return f"{', '.join(first)} and {last}" if first else last


def _name(measure: str) -> str:
    return MEASURES.get(measure, measure)


def _tested(rows: Findings) -> TableView:
    lines = [
        (
            _name(row.params["measure"]),
            "own model less other model" if row.metric == GAIN else "own model's picture less public image",
            percent(row.value), format_interval(row, percent), str(row.n), format_p(row.p_value), format_p(row.p_adjusted),
            row.verdict or "",
        )
        for row in rows
        if row.is_test
    ]  # fmt: skip
    columns = ("measure", "compared", "gain", "95 % interval", "images", "p", "p, adjusted", "verdict")
    return TableView(columns, lines, data=rows.tests())


def _by_source(rows: Findings) -> TableView:
    lines = []
    for measure in dict.fromkeys(row.params["measure"] for row in rows.all(GAIN)):
        for source, words in SOURCES.items():
            at = {"measure": measure, "source": source}
            means = [*(rows.get(MEAN, by=by, **at) for by in ("target", "reference")), rows.get(GAIN, **at)]
            if None not in means:
                lines.append((_name(measure), words, *(cell for row in means if row for cell in _cells(row))))
    headings = ("own model", "95 % interval", "other model", "95 % interval", "gain", "95 % interval")
    return TableView(("measure", "drawn from", *headings), lines, folded="All sources of pictures", data=rows.all(MEAN, GAIN))


def _cells(row: Finding) -> tuple[str, str]:
    return percent(row.value), format_interval(row, percent)


def _describing(rows: Findings) -> TableView | None:
    lines = []
    for measure in (COPIES, SPREAD_HIDDEN, SPREAD_SHOWN):
        for source, words in SOURCES.items():
            own, other = (rows.get(MEAN, by=by, measure=measure, source=source) for by in ("target", "reference"))
            if own is not None and other is not None:
                lines.append((_name(measure), words, *_cells(own), *_cells(other)))
    headings = ("measure", "drawn from", "own model", "95 % interval", "other model", "95 % interval")
    return TableView(headings, lines, folded="Copies of public images, and spread over the noise") if lines else None


def _chosen(units: pa.Table, ids: list[str], shown: int) -> Iterator[tuple[str, str, pa.Table]]:
    """Yield galleries: heading, rule of selection, and rows of the units in order."""
    places = pc.index_in(pa.array(ids), value_set=units["example_id"].combine_chunks()).drop_null()
    among = f" Chosen among {len(ids)} reconstructed images."
    yield (
        "Reconstructions: the first images",
        "The first images in an order of hashed ids, which was fixed before anything was drawn." + among,
        units.take(places[:shown]),
    )
    sure = np.add(units["target_confidence"].to_numpy(), units["reference_confidence"].to_numpy())
    order = np.argsort(-sure, kind="stable")[:shown]
    yield (
        "Reconstructions: the most confident",
        "Images on whose crops the votes under both models together are most confident, a rule that does not see which model "
        "was trained on them." + among,
        units.take(pa.array(order)),
    )
    selected = (
        " Selected by the very score that calls them so, as in Meehan 2023: examples of what that looks like, no evidence."
        + among
    )
    yield "Reconstructions: selected as most memorized", selected.strip(), most_memorized(units, shown)
    yield "Reconstructions: selected as most correlated", selected.strip(), most_correlated(units, shown)


def _example(row: Mapping[str, Any], drawn: Drawn) -> ExampleView:
    x0, y0, x1, y1 = drawn.box
    pictures = [
        (data_uri(outlined(drawn.image, drawn.box)), "training image, crop outlined"),
        (data_uri(drawn.image[y0:y1, x0:x1], side=72), "background crop"),
    ]
    rows = [
        (title, [(data_uri(picture, side=72), "", f"picture by {title}", False) for picture in drawn_by])
        for title, drawn_by in (
            ("the model trained on this image", drawn.own),
            ("the other model", drawn.other),
            ("nearest public image (no generator)", drawn.nearest[None]),
        )
    ]
    return ExampleView(f"{row['example_id']}: {row['class_name']}", pictures, rows)
