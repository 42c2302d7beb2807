"""User-defined sets: existing models are audited on the images that they were trained on."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.cli.app import main
from memlib.audits import AUDITS
from memlib.audits.arrangement import body_of
from memlib.audits.deja_vu.findings import check_row, rows_of, settled
from memlib.audits.deja_vu.recipe import SETS, Config
from memlib.audits.deja_vu.scores import Decoding, score
from memlib.data.given_sets import Difference
from memlib.data.splits import split_examples
from memlib.data.stages import Split, decode
from memlib.errors import UserError
from memlib.findings import Findings
from memlib.recipes.files import load_recipe, validate
from memlib.running.runners import PlainRunner
from memlib.runs.records import RunRecord
from memlib.specs import GroupSpec, SplitSpec
from memlib.store import Store
from memlib.tables import INDEX

pytestmark = pytest.mark.usefixtures("never_power")

SETTINGS = [
    "data.source.num_examples=700", "training.epochs=2", "training.batch_size=20", "model.projector=[16, 16]", "decode.k=[10]",
]  # fmt: skip
DRAWN = ["split.train_per_class=8", "split.public_per_class=20"]
GIVEN = ["split.train_per_class=null", "split.public_per_class=null"]


def audited(folder: Path, *settings: str) -> tuple[RunRecord, pa.Table]:
    spec = validate(AUDITS["deja-vu"].recipe, load_recipe("smoke", [*SETTINGS, *settings])[0])
    run = body_of(AUDITS["deja-vu"])(PlainRunner(Store(str(folder))), spec)
    assert run is not None
    return run, pq.ParquetFile(run.results["units"]).read()


def roles(folder: Path, *settings: str) -> dict[str, str]:
    spec = validate(AUDITS["deja-vu"].recipe, load_recipe("smoke", [*SETTINGS, *settings])[0])
    runner = PlainRunner(Store(str(folder)))
    splits = runner.run(Split(spec.split, decode(runner, spec.data))).content  # type: ignore[attr-defined]
    return dict(zip(splits["example_id"].to_pylist(), splits["role"].to_pylist(), strict=True))


def written(path: Path, sets: Mapping[str, str]) -> Path:
    path.write_text("\n".join(["example_id,set", *(f"{name},{which}" for name, which in sets.items()), ""]))
    return path


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of all tests here that do not count looks; equal models are trained once."""
    return tmp_path_factory.mktemp("given") / "store"


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The sets that memlib draws itself, as `memlib export` writes them."""
    folder = tmp_path_factory.mktemp("drawn")
    command = ["export", "--recipe", "smoke", "--output", str(folder / "shown"), "--store", str(folder / "store")]
    for setting in [*SETTINGS, *DRAWN]:
        command += ["--set", setting]
    assert main(command) == 0
    rows = [line.split(",") for line in (folder / "shown" / "sets.csv").read_text().splitlines()[1:]]
    return {name: which for name, which in rows}


def test_giving_the_drawn_sets_reproduces_the_audit(drawn: dict[str, str], store: Path, tmp_path: Path) -> None:
    file = written(tmp_path / "sets.csv", drawn)
    first, units = audited(store, *DRAWN)
    again, found = audited(store, *GIVEN, f"split.sets={file}", "split.drawn_at_random=true")
    assert found.equals(units)
    drew = Findings.of_run(again).all(SETS)  # the draw was declared, and is examined with and without both models
    assert [row.params["by"] for row in drew] == ["models", "features"]
    tests = [[(row.metric, row.p_value) for row in run.findings if row.metric != SETS] for run in (again, first)]
    assert tests[0] == tests[1]
    assert again.artifacts["model A0"] == first.artifacts["model A0"]  # the same images, the same model
    moved = written(tmp_path / "elsewhere.csv", drawn)
    same, _ = audited(store, *GIVEN, f"split.sets={moved}", "split.drawn_at_random=true")
    assert same.artifacts["splits"] == again.artifacts["splits"]
    pq.write_table(pa.table({"example_id": list(drawn), "set": list(drawn.values())}), tmp_path / "sets.parquet")
    assert roles(store, *GIVEN, f"split.sets={tmp_path / 'sets.parquet'}") == roles(store, *DRAWN)


@pytest.mark.parametrize("reference", ["null", "{kind: visual_words, words: 8, folds: 2}"], ids=["two models", "one alone"])
def test_given_sets_not_drawn_at_random_get_only_descriptive_findings(
    drawn: dict[str, str], store: Path, tmp_path: Path, reference: str
) -> None:
    file = written(tmp_path / "sets.csv", drawn)
    run, _ = audited(
        store,
        *GIVEN,
        f"split.sets={file}",
        f"reference={reference}",
        "decode.stability={}" if reference == "null" else "decode.stability=null",
    )
    assert all(row.p_value is None or row.metric == "mcnemar_p" for row in run.findings)
    assert all(row.verdict in (None, "descriptive") for row in run.findings)
    assert run.verdict is not None
    assert run.verdict.word == "descriptive"
    page = Path(run.report).read_text()
    assert "the sets were not drawn at random" in page
    assert "not tested" in page


def test_images_that_no_set_names_are_left_out(drawn: dict[str, str], store: Path, tmp_path: Path) -> None:
    least = {name: which for name, which in drawn.items() if which != "X" or name[-1] in "13579"}
    found = roles(store, *GIVEN, f"split.sets={written(tmp_path / 'sets.csv', least)}")
    named = {"A": "target", "B": "reference", "C": "shared", "X": "public"}
    assert {name: role for name, role in found.items() if role != "left_out"} == {n: named[s] for n, s in least.items()}


def test_given_sets_that_do_not_fit_the_data_are_refused(drawn: dict[str, str], store: Path, tmp_path: Path) -> None:
    cases: dict[str, Mapping[str, str]] = {
        "in 'Y'; sets are A .the model trained on it., B": {**drawn, "scene-0000001": "Y"},
        "names 1 example not in the data, such as 'no such'": {**drawn, "no such": "A"},
        "no usable image in B": {name: "A" if which == "B" else which for name, which in drawn.items()},
    }
    for said, sets in cases.items():
        with pytest.raises(UserError, match=said):
            roles(store, *GIVEN, f"split.sets={written(tmp_path / 'sets.csv', sets)}")
    twice = tmp_path / "twice.csv"
    twice.write_text("example_id,set\na,A\na,B\n")
    with pytest.raises(UserError, match="gives example 'a' two values"):
        roles(store, *GIVEN, f"split.sets={twice}")
    with pytest.raises(UserError, match="cannot read split.sets"):
        roles(store, *GIVEN, f"split.sets={tmp_path / 'nowhere.csv'}")
    with pytest.raises(UserError, match="separates a group"):
        group = "split.group={pattern: 'scene-00000(.)'}"
        roles(store, *GIVEN, f"split.sets={written(tmp_path / 'sets.csv', drawn)}", group)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["split.sets=x.csv", "split.train_per_class=8"], "either train_per_class"),
        (["split.train_per_class=null"], "either train_per_class"),
        ([*GIVEN, "split.sets=x.csv", "split.extra_per_class=3"], "leave out extra_per_class"),
        (["split.drawn_at_random=true"], "applies only to given sets"),
    ],
)
def test_settings_that_contradict_given_or_drawn_sets_are_refused(settings: list[str], said: str, store: Path) -> None:
    with pytest.raises(UserError, match=said):
        roles(store, *settings)


def test_all_images_of_given_sets_of_unequal_size_are_audited(drawn: dict[str, str], store: Path, tmp_path: Path) -> None:
    audited_ones = sorted(name for name, which in drawn.items() if which in "AB")
    sets = drawn | {name: "A" if place % 3 else "B" for place, name in enumerate(audited_ones)}
    file = written(tmp_path / "sets.csv", sets)
    given = [*GIVEN, f"split.sets={file}", "split.drawn_at_random=true"]
    _, units = audited(store, *given)
    assert dict(zip(units["example_id"].to_pylist(), units["direction"].to_pylist(), strict=True)) == {
        name: sets[name] for name in audited_ones
    }


def test_an_image_given_in_two_sets_is_left_out_of_both() -> None:
    index = pa.table(
        {
            "example_id": [f"{number}" for number in range(8)], "row": range(8), "label": [0] * 8, "class_name": ["c"] * 8,
            "boxes": [[1, 1, 2, 2]] * 8, "content": [[0, 0, 64, 64]] * 8, "original_width": [64] * 8,
            "original_height": [64] * 8, "digest": ["a", "b", "c", "d", "a", "e", "f", "b"], "unreadable": [None] * 8,
        }
    ).cast(INDEX.arrow)  # fmt: skip
    sets = {"0": "A", "1": "A", "2": "A", "3": "B", "4": "B", "5": "B", "6": "X", "7": "A"}
    spec = SplitSpec(sets="sets.csv", crop={"mode": "corner"})
    table = split_examples(index, spec, given=sets)
    found = {row["example_id"]: (row["role"], row["reason"]) for row in table.to_pylist()}
    assert found["0"] == found["4"] == ("left_out", "the same image in A and B")
    assert found["7"] == ("left_out", "duplicate of 1")
    assert {name for name, (role, _) in found.items() if role != "left_out"} == {"1", "2", "3", "5", "6"}


def test_given_sets_are_refused_unless_groups_of_a_and_b_share_a_frequent_class() -> None:
    """Persons of A are mostly of one class and those of B mostly of the other, so no draw could exchange them."""
    labels, people = [0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1, 0], np.repeat(np.arange(4), 3)
    index = pa.table(
        {
            "example_id": [f"{number:02d}" for number in range(13)], "row": range(13), "label": [*labels, 0],
            "class_name": [*("ab"[label] for label in labels), "a"], "boxes": [[1, 1, 2, 2]] * 13,
            "content": [[0, 0, 64, 64]] * 13, "original_width": [64] * 13, "original_height": [64] * 13,
            "digest": [f"{number}" for number in range(13)], "unreadable": [None] * 13,
        }
    ).cast(INDEX.arrow)  # fmt: skip
    sets = {f"{number:02d}": "A" if people[number] in (0, 2) else "B" for number in range(12)} | {"12": "X"}
    spec = SplitSpec(sets="sets.csv", crop={"mode": "corner"}, group=GroupSpec(pattern="(.)"))
    with pytest.raises(UserError, match="leaves no class that is the most frequent one"):
        split_examples(index, spec, np.append(people, 9), given=sets)


def test_sets_without_a_common_class_are_refused(drawn: dict[str, str], store: Path, tmp_path: Path) -> None:
    data = decode(PlainRunner(Store(str(store))), validate(
        AUDITS["deja-vu"].recipe, load_recipe("smoke", SETTINGS)[0]
    ).data).content.index  # type: ignore[attr-defined]  # fmt: skip
    labels = dict(zip(data["example_id"].to_pylist(), data["label"].to_pylist(), strict=True))
    sets = {name: which for name, which in drawn.items() if which not in "AB" or (labels[name] < 5) == (which == "A")}
    with pytest.raises(UserError, match="puts no class in both A and B"):
        roles(store, *GIVEN, f"split.sets={written(tmp_path / 'sets.csv', sets)}")


def units_of_two_models(easier: float) -> pa.Table:
    """The votes of two models that remember nothing; objects of A are easier by some standard deviations."""
    rng, count, decodings = np.random.default_rng(0), 200, []
    for direction in ("A", "B"):
        labels, ease = np.arange(count) % 2, rng.normal(size=count) + easier * (direction == "A")
        votes = [np.where(rng.random((count, 9)) < 1 / (1 + np.exp(-ease))[:, None], labels[:, None], 2) for _ in range(2)]
        names = [f"{direction}{place:03d}" for place in range(count)]
        decodings.append(Decoding(direction, 0, "last", 9, "maximal", names, labels, *votes))  # type: ignore[arg-type]
    return score(decodings, ["cat", "dog", "hen"], CONFIG)


ALIKE = Difference(0.5, 1.0, "ids", 400)
CONFIG = Config(k=(9,), permutations=399, replicates=100)


@pytest.mark.parametrize(("easier", "word"), [(0.0, "inconclusive"), (0.8, "descriptive")])
def test_sets_of_two_models_that_were_declared_are_compared_by_both(easier: float, word: str) -> None:
    rows = [*rows_of(units_of_two_models(easier), CONFIG, num_classes=3, declared=True), check_row(ALIKE)]
    found = Findings.read(settled(rows, CONFIG))
    check = found.first(SETS, by="models")
    assert check.params["differs"] == (word == "descriptive")
    assert found.verdict.word == word
    if word == "descriptive":
        assert found.verdict.sentence.startswith("Nothing was tested: the sets differ, although they were declared")
        assert "the models of both sets find the same one easier" in found.verdict.explanation
        assert not found.tests()
    else:
        assert "known of the images without a model contradicts it" in found.verdict.explanation


ALONE = "reference={kind: visual_words, words: 8, folds: 2}"


def test_the_verdict_on_a_single_model_with_given_sets_is_conditional_on_a_random_draw(
    drawn: dict[str, str], store: Path, tmp_path: Path
) -> None:
    file = written(tmp_path / "sets.csv", drawn)
    run, _ = audited(store, *GIVEN, f"split.sets={file}", "split.drawn_at_random=true", ALONE)
    checks = Findings.of_run(run).all(SETS)
    assert {row.params["by"] for row in checks} == {"backgrounds", "features"}
    assert run.verdict is not None
    if not checks.all(differs=True):  # as in 95 of 100 draws
        assert run.findings[0].role == "test"
        assert run.verdict.sentence.startswith("If the sets were drawn at random, as declared: ")
        assert "given that the sets were drawn at random, as declared" in run.verdict.explanation


def test_given_sets_that_differ_in_the_images_themselves_are_not_tested(
    drawn: dict[str, str], store: Path, tmp_path: Path
) -> None:
    """The brighter half of the images is given as held out, and declared to be drawn at random."""
    spec = validate(AUDITS["deja-vu"].recipe, load_recipe("smoke", SETTINGS)[0])
    shard = decode(PlainRunner(Store(str(store))), spec.data).content  # type: ignore[attr-defined]
    rows = dict(zip(shard.index["example_id"].to_pylist(), shard.index["row"].to_pylist(), strict=True))
    named = sorted(name for name, which in drawn.items() if which in "AB")
    bright = sorted(named, key=lambda name: float(shard.images[rows[name]].mean()))
    sets = drawn | {name: "A" if place < len(bright) // 2 else "B" for place, name in enumerate(bright)}
    run, _ = audited(store, *GIVEN, f"split.sets={written(tmp_path / 'sets.csv', sets)}", "split.drawn_at_random=true", ALONE)
    assert run.verdict is not None
    assert run.verdict.word == "descriptive"
    assert run.verdict.sentence.startswith("Nothing was tested: the sets differ")
    assert "the sets can be told apart without any model (AUC " in run.verdict.explanation
    assert "most by pixels" in run.verdict.explanation
    assert all(row.p_value is None for row in run.findings)
    assert "the sets differ, although they were declared" in Path(run.report).read_text()


def test_page_counts_looks_at_the_same_images_and_planned_looks_divide_alpha(tmp_path: Path) -> None:
    store = tmp_path / "store"
    first, _ = audited(store, *DRAWN)
    second, _ = audited(store, *DRAWN, "split.seed=1")
    assert "ook 2 at" not in Path(first.report).read_text()
    said = "ook 2 at these data in this store; the verdict does not allow for the earlier ones"  # begins a sentence, or not
    assert said in Path(second.report).read_text()
    again, _ = audited(store, *DRAWN)  # keeps the ledger of its first publication
    assert "Look" not in Path(again.report).read_text().split("</header>")[1].split("<h2")[0]
    planned, _ = audited(tmp_path / "other", *DRAWN, "decode.looks=2")
    assert {row.alpha for row in planned.findings if row.role == "test"} == {0.025}
    assert "Look 1 of 2 planned at these data: each is tested at alpha / 2." in Path(planned.report).read_text()
    assert planned.artifacts["model A0"] == first.artifacts["model A0"]
