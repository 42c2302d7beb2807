"""Memory beyond the class: counted by hand, found where planted, and shown no more often than its level where there is none."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import scipy
from numpy.typing import NDArray

from memlib.audits import AUDITS
from memlib.audits.arrangement import body_of
from memlib.audits.deja_vu.beyond.findings import Beyond, Values, _differences, _named, beyond_rows
from memlib.audits.deja_vu.recipe import BEYOND, HEADLINES, Config
from memlib.audits.deja_vu.verdict import said_beyond, verdict
from memlib.data.attributes import ATTRIBUTES
from memlib.errors import UserError
from memlib.findings import Finding, Findings, Interval, settle, tested
from memlib.recipes.files import load_recipe, validate
from memlib.running.runners import PlainRunner
from memlib.stats.randomization import Design
from memlib.stats.ranks import Ranks, halves_nearer
from memlib.store import Store

QUICK = Config(replicates=200, permutations=400)
CLASSES, COLOURS, PUBLIC = 4, 3, 240
SETTING = {"layer": "last", "epoch": 9, "crop": "maximal", "k": 5}
SETTINGS = [
    "data.source.num_examples=700", "split.train_per_class=8", "split.public_per_class=20", "training.batch_size=20",
    "model.projector=[16, 16]", "decode.k=[10]", "decode.replicates=200", "decode.permutations=200",
]  # fmt: skip


class World:
    """Crops, whole images and public images under two models; a model may remember the images that it was trained on.

    Attributes:
        vectors: for each model, embeddings of whole images, and what it adds to those of crops that it remembers.
    """

    def __init__(
        self,
        rng: np.random.Generator,
        *,
        images: int = 80,
        people: bool = False,
        sharper: float = 1.0,
        overfit: float = 0.0,
        spread: float = 1.0,
    ) -> None:
        self.rng, self.images, self.sharper, self.overfit, self.spread = rng, images, sharper, overfit, spread
        self.labels = np.arange(images) % CLASSES
        self.groups = np.arange(images) // (CLASSES * 2) if people else None
        self.colours, self.public_colours = rng.integers(COLOURS, size=images), rng.integers(COLOURS, size=PUBLIC)
        self.noise = [rng.normal(size=(images, COLOURS + 6)) for _ in range(2)]
        self.whole = [rng.normal(size=(images, COLOURS + 6)) for _ in range(2)]
        for model in range(2):
            self.whole[model][:, :COLOURS] += 3 * np.eye(COLOURS)[self.colours]
        self.public = 3 * np.eye(COLOURS + 6)[self.public_colours] + rng.normal(size=(PUBLIC, COLOURS + 6))

    def sides(self) -> NDArray[np.bool_]:
        """Draw the images of A: of each class half, by person if there are persons."""
        of_a = np.zeros(self.images, dtype=bool)
        units = self.labels if self.groups is None else np.zeros(self.groups.max() + 1)
        for label in np.unique(units):
            mine = self.rng.permutation(np.flatnonzero(units == label))
            chosen = mine[: len(mine) // 2]
            of_a |= np.isin(np.arange(self.images) if self.groups is None else self.groups, chosen)
        return of_a

    def within(self, of_a: NDArray[np.bool_], memory: float) -> list[pa.Table]:
        """Return what `Within` would write for both models; `memory` moves crops of own images towards their whole image."""
        tables = []
        for model, own in enumerate((of_a, ~of_a)):
            scale = self.sharper if model == 0 else 1.0
            crops = scale * self.noise[model] + memory * own[:, None] * self.whole[model]
            neighbors, candidates, nearer = [], [], []
            for n in range(self.images):
                rows = np.flatnonzero(np.arange(PUBLIC) % CLASSES == self.labels[n])
                far = np.square(self.public[rows] - crops[n]).sum(axis=1)
                neighbors.append(rows[np.argsort(far)[:5]])
                others = np.flatnonzero((self.labels == self.labels[n]) & (np.arange(self.images) != n))
                centre = crops[self.labels == self.labels[n]].mean(axis=0)
                far = self.whole_under(model, own) @ (centre - crops[n])
                candidates.append(others)
                nearer.append(halves_nearer(far[n], far[others]))
            columns = {
                "nearest": pa.array(neighbors, pa.list_(pa.int64())),
                "candidates": pa.array(candidates, pa.list_(pa.int32())),
                "nearer": pa.array(nearer, pa.list_(pa.int8())),
            }
            tables.append(pa.table({"example_id": self.ids, **columns}))
        return tables

    def whole_under(self, model: int, own: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return the embeddings of whole images; an overfitted model moves or spreads those of its own images."""
        return np.asarray(self.whole[model] * np.where(own, self.spread, 1.0)[:, None] + self.overfit * own[:, None])

    @property
    def ids(self) -> list[str]:
        return [f"i{n:03d}" for n in range(self.images)]

    def beyond(self, tables: list[pa.Table], colours: NDArray[np.int64] | None = None) -> Beyond:
        public = [f"x{n:03d}" for n in range(PUBLIC)]
        named = np.concatenate([self.colours if colours is None else colours, self.public_colours])
        rows = {"example_id": [*self.ids, *public], "attribute": ["colour"] * len(named), "value": [f"c{n}" for n in named]}
        kept = pa.table(rows, schema=ATTRIBUTES).filter(pa.array(named >= 0))
        view = SimpleNamespace(ids=pa.table({"example_id": public, "label": np.arange(PUBLIC) % CLASSES}))
        a, b = ([SimpleNamespace(content=table)] for table in tables)
        return Beyond(SETTING, SimpleNamespace(content=kept, key="key"), ("colour",), [(a, b)], view)  # type: ignore[arg-type, list-item]

    def splits(self, of_a: NDArray[np.bool_]) -> pa.Table:
        roles = np.where(of_a, "target", "reference").tolist()
        groups = pa.nulls(self.images, pa.string()) if self.groups is None else [f"p{group}" for group in self.groups]
        table = pa.table({"example_id": self.ids, "role": roles, "label": self.labels, "group": groups})
        return table.take(np.random.default_rng(0).permutation(self.images))

    def findings(self, of_a: NDArray[np.bool_], tables: list[pa.Table], **config: Any) -> Findings:
        rows = beyond_rows(self.beyond(tables), self.splits(of_a), QUICK.model_copy(update=config))
        return settle(rows, alpha=0.05)


def test_planted_memory_beyond_the_class_is_found_with_effects_counted_by_hand() -> None:
    world = World(np.random.default_rng(0))
    of_a = world.sides()
    tables = world.within(of_a, 0.8)
    found = world.findings(of_a, tables)
    excess, gain = found.first("attribute_excess"), found.first("neighbor_rank_gain")
    assert [row.family for row in found.tests()] == [BEYOND, BEYOND]
    assert (excess.verdict, gain.verdict) == ("shown", "shown")
    named = [np.array([by_hand(row, world.public_colours) for row in table["nearest"].to_pylist()]) for table in tables]
    right = [one == world.colours for one in named]
    own, other = np.where(of_a, right[0], right[1]), np.where(of_a, right[1], right[0])
    assert excess.value == pytest.approx(own.mean() - other.mean())
    ranks = [ranks_by_hand(table.to_pylist(), of_a) for table in tables]
    near, far = np.where(of_a, ranks[0], ranks[1]), np.where(of_a, ranks[1], ranks[0])
    assert gain.value == pytest.approx(far.mean() - near.mean())
    means = {row.params["by"]: row.value for row in found.all("attribute_accuracy")}
    assert means["target"] == pytest.approx(own.mean())
    assert means["reference"] == pytest.approx(other.mean())
    guess = [max(range(COLOURS), key=lambda c: (np.sum((world.public_colours == c) & (np.arange(PUBLIC) % CLASSES == label)), -c))
             for label in world.labels]  # fmt: skip
    assert means["guessing"] == pytest.approx(np.mean(np.array(guess) == world.colours))
    assert {row.params["by"]: row.value for row in found.all("neighbor_rank")} == pytest.approx(
        {"target": near.mean(), "reference": far.mean()}
    )
    for row in found:
        assert row.interval is not None
        assert row.interval.low <= row.value <= (row.interval.high or 0)
    assert 0 < (excess.detectable or 0) < 0.5
    assert 0 < (gain.detectable or 0) < 0.5


def ranks_by_hand(rows: list[dict[str, Any]], of_a: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the share of each image's candidates on its own side that are nearer."""
    kept = [
        [half / 2 for place, half in zip(row["candidates"], row["nearer"], strict=True) if of_a[place] == of_a[own]]
        for own, row in enumerate(rows)
    ]
    return np.array([np.mean(halves) for halves in kept])


def by_hand(rows: list[int], values: NDArray[np.int64]) -> int:
    """Return the most frequent value, of equally frequent ones that of the nearest row."""
    votes = [int(values[row]) for row in rows if values[row] >= 0]
    return max(votes, key=lambda value: (votes.count(value), -votes.index(value)), default=-1)


def test_votes_leave_out_neighbours_without_a_value_and_equal_a_slow_plain_version() -> None:
    rng = np.random.default_rng(3)
    values = rng.integers(-1, 3, size=50)
    lists = [rng.permutation(50)[: rng.integers(0, 9)].tolist() for _ in range(200)]
    found = _named(
        pa.chunked_array([pa.array(lists[:90], pa.list_(pa.int64())), pa.array(lists[90:], pa.list_(pa.int64()))]),
        values,
        "nearest",
    )
    assert found.tolist() == [by_hand(rows, values) for rows in lists]
    assert -1 in found


def test_ties_go_to_the_lowest_value_or_to_the_nearest() -> None:
    lists = pa.chunked_array([pa.array([[0, 1], [1, 0]], pa.list_(pa.int64()))])
    assert _named(lists, np.array([1, 0]), "nearest").tolist() == [1, 0]
    assert _named(lists, np.array([1, 0]), "lowest_class").tolist() == [0, 0]


def test_values_are_numbered_in_order_and_guesses_are_the_most_frequent_of_the_class() -> None:
    rows = [("a", "red"), ("x", "blue"), ("y", "red"), ("z", "red"), ("w", "blue")]
    table = pa.table({"example_id": [i for i, _ in rows], "attribute": ["c"] * 5, "value": [v for _, v in rows]})
    members = pa.table({"example_id": ["b", "a"], "label": [1, 0]})
    public = pa.table({"example_id": ["w", "x", "y", "z", "v"], "label": [1, 0, 0, 0, 0]})
    values = Values.of(table, "c", members, public)
    assert values.audited.tolist() == [-1, 1]
    assert values.public.tolist() == [0, 0, 1, 1, -1]
    assert values.guess.tolist() == [0, 1]


def test_images_without_a_value_are_left_out_and_counted() -> None:
    world = World(np.random.default_rng(1))
    of_a = world.sides()
    tables, colours = world.within(of_a, 0.8), world.colours.copy()
    colours[:11] = -1
    found = Findings(beyond_rows(world.beyond(tables, colours), world.splits(of_a), QUICK))
    excess, gain = found.first("attribute_excess"), found.first("neighbor_rank_gain")
    assert (excess.n, excess.params["without_value"]) == (69, 11)
    assert (gain.n, gain.params["without_candidates"], gain.params["candidates"]) == (80, 0, 19)


def test_exchanging_the_sides_flips_the_sign_of_gains_beyond_the_class() -> None:
    world = World(np.random.default_rng(2))
    of_a = world.sides()
    tables = world.within(of_a, 0.8)
    found, swapped = world.findings(of_a, tables), world.findings(~of_a, tables)
    renamed = world.findings(~of_a, tables[::-1])
    for metric in ("attribute_excess", "neighbor_rank_gain"):
        assert swapped.first(metric).value == pytest.approx(-found.first(metric).value)
        assert swapped.first(metric).verdict == "inconclusive"
        assert renamed.first(metric).value == pytest.approx(found.first(metric).value)  # A and B are only names
        assert renamed.first(metric).p_value == pytest.approx(found.first(metric).p_value, abs=0.02)


@pytest.mark.usefixtures("without_power")
@pytest.mark.parametrize(
    ("fresh", "options"),
    [
        (False, {}),
        (False, {"sharper": 0.3}),
        (False, {"people": True}),
        (True, {"images": 40}),
        (True, {"overfit": 3.0}),
        (True, {"spread": 3.0}),
    ],
    ids=["redrawn", "one model sharper", "persons", "fresh models", "own images moved", "own images spread"],
)
def test_tests_beyond_the_class_keep_their_level_without_memory(fresh: bool, options: dict[str, Any]) -> None:
    """Redraw the sides of fixed models, or draw new models each time; false alarms of this test: 1e-6 for each metric.

    Overfitted models place whole images differently that they were trained on, but recall nothing of them from crops.
    """
    rng, count = np.random.default_rng(4), 300
    world = World(rng, **options)
    tables, wrong = world.within(world.sides(), 0.0), {"attribute_excess": 0, "neighbor_rank_gain": 0, "either": 0}
    for _ in range(count):
        if fresh:
            world = World(rng, **options)
            of_a = world.sides()
            tables = world.within(of_a, 0.0)
        else:
            of_a = world.sides()
        found = world.findings(of_a, tables, replicates=100, permutations=199)
        for metric in ("attribute_excess", "neighbor_rank_gain"):
            wrong[metric] += (found.first(metric).p_value or 0) <= 0.05
        wrong["either"] += any(row.verdict == "shown" for row in found.tests())
    most = scipy.stats.binom.isf(1e-6, count, 0.05)
    assert all(number <= most for number in wrong.values()), wrong
    assert wrong["neighbor_rank_gain"] > 0 or options  # the test can reject


def headline(p: float) -> Finding:
    return tested(
        "share_excess", {"k": 5}, 0.1, n=80, interval=Interval(0.0, 0.2, "examples"), p_value=p, family="headline",
        upper_bound=0.2, detectable=0.04, smallest_p=1e-9,
    )  # fmt: skip


OBJECTS = "they name more objects in them than models that never saw these images"


@pytest.mark.parametrize(("p", "memory", "word", "sentence", "said"), [
    (0.001, 0.8, "shown", "Given a background and the class of its object, models name the colour", "memory of colour shown ("),
    (0.001, 0.0, "shown", OBJECTS, "memory of colour not shown ("),
    (0.6, 0.8, "shown", "That they name objects from memory was not shown", "memory of colour shown ("),
    (0.6, 0.0, "inconclusive", "", "memory of colour not shown ("),
])  # fmt: skip
def test_memory_beyond_the_class_is_a_separate_headline(p: float, memory: float, word: str, sentence: str, said: str) -> None:
    world = World(np.random.default_rng(5))
    of_a = world.sides()
    rows = list(beyond_rows(world.beyond(world.within(of_a, memory)), world.splits(of_a), QUICK))
    found = settle([headline(p), *rows], alpha=0.05, headlines=HEADLINES)
    assert verdict(found).word == word
    assert sentence in verdict(found).sentence
    assert verdict(found).explanation.endswith(said_beyond(found.tests(BEYOND)))
    assert said in verdict(found).explanation


def test_a_bound_on_naming_objects_does_not_bound_memory_beyond_the_class() -> None:
    world = World(np.random.default_rng(5))
    of_a = world.sides()
    rows = beyond_rows(world.beyond(world.within(of_a, 0.0)), world.splits(of_a), QUICK)
    found = settle([replace(headline(0.6), bound=0.3), *rows], alpha=0.05, headlines=HEADLINES)
    assert verdict(found).word == "inconclusive"
    assert "Whether more than the class is remembered was neither shown nor ruled out." in verdict(found).sentence


def audited(folder: Path, *settings: str) -> Any:
    spec = validate(AUDITS["deja-vu"].recipe, load_recipe("scenes_beyond", [*SETTINGS, *settings])[0])
    return body_of(AUDITS["deja-vu"])(PlainRunner(Store(str(folder))), spec)


@pytest.fixture(scope="module")
def decoded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store for recipes that are refused after their data were decoded."""
    return tmp_path_factory.mktemp("beyond") / "store"


@pytest.mark.usefixtures("without_power")
def test_an_audit_measures_what_lies_beyond_the_class_only_on_request(tmp_path: Path) -> None:
    plain = audited(tmp_path / "store", "training.epochs=2", "beyond=null")
    run = audited(tmp_path / "store", "training.epochs=2")
    assert {ref.split("/")[0] for ref in run.computed} == {"attributes", "within", "score", "report"}
    rows, page = Findings.of_run(run), Path(run.report).read_text()
    assert [row.params["attribute"] for row in rows.all("attribute_excess")] == ["colour", "place"]
    assert rows.first("attribute_excess").n == 160
    assert rows.first("neighbor_rank_gain").params["candidates"] == 15
    assert not Findings.of_run(plain).tests(BEYOND)
    kept = [
        row
        for row in rows
        if row.metric
        not in {
            one.metric for one in rows.all(crop="maximal", direction="both") if one.params.get("by") or one.family == BEYOND
        }
    ]
    assert [(row.metric, row.value, row.p_value) for row in kept] == [
        (row.metric, row.value, row.p_value) for row in Findings.of_run(plain)
    ]
    assert "Beyond the class" in page
    assert "rank among the class, of up to 15 others those of its set" in page
    assert "A property of an image that its class label does not say" in page
    assert "Beyond the class" not in Path(plain.report).read_text()


@pytest.mark.usefixtures("without_power")
def test_a_table_names_attributes_and_its_values_enter_the_key(tmp_path: Path) -> None:
    table = tmp_path / "marks.csv"
    settings = ("training.epochs=0", f"beyond.attributes={{mark: {{path: {table}, value_column: mark}}}}")

    def marks(modulus: int) -> Any:
        lines = (f"scene-{n:07d},m{n % modulus}" for n in range(0, 700, 2))
        table.write_text("\n".join(["example_id,mark", *lines]) + "\n")
        return audited(tmp_path / "store", *settings)

    first = Findings.of_run(marks(6)).first("attribute_excess", attribute="mark")
    assert first.n + first.params["without_value"] == 160
    assert first.params["without_value"] > 40
    again = marks(10)
    assert {ref.split("/")[0] for ref in again.computed} == {"attributes", "score", "report"}  # nothing is searched again


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["reference={kind: network}"], "beyond compares two models, but with reference there is only one"),
        (["beyond.attributes.shade=source"], "beyond.attributes.shade: the source of the images states colour, place"),
        (["data.source.tints=1"], "beyond.attributes.colour has the same value for all 700 examples"),
        (["decode.k=[20]"], "decode.k is 20, but no class has more than 20 public images"),
        (["beyond.attributes={'a/b': source}"], "beyond.attributes"),
        (["beyond.attributes.colour=elsewhere"], "beyond.attributes.colour: write source, or name a table: {path: ..."),
        (["beyond.attributes.kind={path: a.csv}"], "the recipe lacks beyond.attributes.value_column"),
    ],
)
def test_attribute_and_neighbour_settings_that_allow_no_test_are_refused(
    settings: list[str], message: str, decoded: Path
) -> None:
    with pytest.raises(UserError) as refused:
        audited(decoded, "training.epochs=0", *settings)
    assert message in str(refused.value)
    assert len(str(refused.value).splitlines()) <= 2, str(refused.value)


def test_fast_differences_of_redrawn_ranks_equal_those_of_the_design() -> None:
    world = World(np.random.default_rng(7), people=True)
    of_a = world.sides()
    tables = world.within(of_a, 0.5)
    ranks = [Ranks.of([np.array(row["candidates"]) for row in rows], [np.array(row["nearer"]) for row in rows])
             for rows in (table.to_pylist() for table in tables)]  # fmt: skip
    design = Design.of(of_a, world.labels, world.groups)
    sides = np.concatenate(list(design.redraws(20, seed=0)))
    a, b = (one.on_own_side(sides) for one in ranks)
    expected = [replace(design, first=side).difference(gain) for side, gain in zip(sides, b - a, strict=True)]
    assert np.allclose(_differences(design, sides, [ranks]), expected)


def test_three_pairs_of_models_give_intervals_over_trainings() -> None:
    world = World(np.random.default_rng(8))
    of_a = world.sides()
    beyond = world.beyond(world.within(of_a, 0.8))
    (one,) = beyond.within
    world.noise = [world.rng.normal(size=noise.shape) for noise in world.noise]
    (two,) = world.beyond(world.within(of_a, 0.8)).within
    found = Findings(beyond_rows(replace(beyond, within=[one, two, one]), world.splits(of_a), QUICK))
    for row in found.tests():
        assert row.params["pairs"] == 3
        assert row.interval is not None
        assert row.interval.over == "examples and trainings"
    single = [Findings(beyond_rows(replace(beyond, within=[pair]), world.splits(of_a), QUICK)) for pair in (one, two, one)]
    for metric in ("attribute_excess", "neighbor_rank_gain"):
        assert found.first(metric).value == pytest.approx(np.mean([rows.first(metric).value for rows in single]))
