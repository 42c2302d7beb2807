"""The list of training examples and the outputs that an owner supplies, on a table of forty records of twenty persons."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from PIL import Image

from memlib.audits.membership.shadows import Answers
from memlib.audits.membership.supplied import ReadMembers, ReadOutputs, mask_of
from memlib.data.canaries.secret_key import read_secret
from memlib.data.stages import HoldOut, TrainingData, decode
from memlib.errors import UserError
from memlib.observe.encoders import pseudonym_of
from memlib.pipeline.stage import Artifact
from memlib.running.runners import PlainRunner
from memlib.specs import DataSpec, GroupSpec, HoldOutSpec, OutputsSpec
from memlib.store import Store

COUNT = 40
IDS = [f"p{row // 2:02d}/{row:07d}" for row in range(COUNT)]
LABELS = np.arange(COUNT) // 2 % 2
CLASSES = ["no", "yes"]
MEMBER = LABELS ^ (np.arange(COUNT) // 4 % 2)  # by person, ten persons of either side


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlainRunner:
    monkeypatch.chdir(tmp_path)
    rows = [f"p{row // 2:02d},{CLASSES[LABELS[row]]},{row}" for row in range(COUNT)]
    (tmp_path / "records.csv").write_text("\n".join(["person,outcome,age", *rows]) + "\n")
    return PlainRunner(Store(str(tmp_path / "store")))


@pytest.fixture
def data(runner: PlainRunner) -> TrainingData:
    return pool(runner)


def pool(runner: PlainRunner, group: GroupSpec | None = None) -> TrainingData:
    source = {"kind": "table", "path": "records.csv", "label_column": "outcome", "person_column": "person"}
    shard = decode(runner, DataSpec.model_validate({"source": source}))
    return TrainingData(shard, runner.run(HoldOut(HoldOutSpec(group=group), shard)))


def listed(flags: dict[str, Any], name: str = "members.csv", column: str = "member") -> str:
    Path(name).write_text("\n".join([f"example_id,{column}", *(f"{key},{flag}" for key, flag in flags.items())]) + "\n")
    return name


def words(one: str = "yes", other: str = "no") -> dict[str, Any]:
    return {name: one if member else other for name, member in zip(IDS, MEMBER, strict=True)}


def read(runner: PlainRunner, data: TrainingData, path: str) -> NDArray[np.int8]:
    return runner.run(ReadMembers(data, path)).content


@pytest.mark.parametrize(
    "pair", [("yes", "no"), ("True", "False"), ("1", "0"), (" IN", "out "), ("member", "nonmember")], ids=lambda pair: pair[0]
)
def test_flags_of_members_are_read_in_the_usual_spellings(
    runner: PlainRunner, data: TrainingData, pair: tuple[str, str]
) -> None:
    assert read(runner, data, listed(words(*pair))).tolist() == MEMBER.tolist()


@pytest.mark.parametrize(
    "array",
    [MEMBER.astype(bool), MEMBER, MEMBER.astype(np.uint8), np.flatnonzero(MEMBER)[::-1]],
    ids=lambda one: str(one.dtype),
)
def test_members_are_read_from_a_mask_or_their_numbers(runner: PlainRunner, data: TrainingData, array: NDArray[Any]) -> None:
    np.save("members.npy", array)
    assert read(runner, data, "members.npy").tolist() == MEMBER.tolist()
    assert mask_of("members.npy").any()


def test_members_may_be_a_part_of_the_source(runner: PlainRunner) -> None:
    rng = np.random.default_rng(0)
    for number in range(48):
        folder = Path("photos", ("train", "val")[number % 2], ("cat", "dog")[number // 2 % 2])
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(folder / f"{number:02d}.png")
    shard = decode(runner, DataSpec.model_validate({"source": {"kind": "image_folder", "path": "photos"}, "image_size": 8}))
    data = TrainingData(shard, runner.run(HoldOut(HoldOutSpec(), shard)))
    ids = data.members("train")["example_id"].to_pylist()
    assert read(runner, data, "train/").tolist() == [int(name.startswith("train/")) for name in ids]
    with pytest.raises(UserError, match="lists 0 members among"):
        read(runner, data, "training/")


@pytest.mark.parametrize(
    ("array", "problem"),
    [
        (np.ones(39, dtype=bool), "is a mask of 39 examples, but the data have 40"),
        (np.arange(41), "holds numbers from 0 to 40; give those of members, once each, from 0 to 39"),
        (np.array([3, 3, 5, 7]), "holds numbers from 3 to 7; give those of members"),
        (np.ones(40), "holds float64 of shape"),
        (np.ones((2, 20), dtype=bool), "holds bool of shape"),
    ],
)
def test_arrays_are_refused_unless_they_name_examples(
    runner: PlainRunner, data: TrainingData, array: NDArray[Any], problem: str
) -> None:
    np.save("members.npy", array)
    with pytest.raises(UserError, match=problem):
        read(runner, data, "members.npy")
    Path("members.npy").write_text("no array")
    with pytest.raises(UserError, match="is no array that np.save wrote"):
        read(runner, data, "members.npy")


@pytest.mark.parametrize("kind", [pa.bool_(), pa.int64(), pa.string()], ids=str)
def test_lists_of_members_are_read_from_parquet_in_any_order(
    runner: PlainRunner, data: TrainingData, kind: pa.DataType
) -> None:
    order = np.random.default_rng(0).permutation(COUNT)
    flags = pa.array(MEMBER[order].astype(bool)).cast(pa.int64()).cast(kind)
    pq.write_table(pa.table({"example_id": [IDS[row] for row in order], "member": flags}), "members.parquet")
    assert read(runner, data, "members.parquet").tolist() == MEMBER.tolist()


def test_unlisted_examples_and_empty_cells_are_unknown_and_reported(runner: PlainRunner, data: TrainingData) -> None:
    flags = {name: flag for name, flag in words().items() if name not in IDS[:4]} | {IDS[4]: "", "elsewhere/1": "yes"}
    artifact = runner.run(ReadMembers(data, listed(flags)))
    said = "members.csv lists 1 example outside of the pool, such as 'elsewhere/1', without effect"
    assert runner.warnings[-1] == f"{said}; ids of the pool look like 'p00/0000000'"
    assert artifact.content.tolist() == [-1] * 5 + MEMBER[5:].tolist()
    count = MEMBER[5:].sum()
    assert ReadMembers.described(artifact) == [
        f"{count} members, {35 - count} non-members; 5 examples of the pool are not listed and left out"
    ]


def test_lists_and_outputs_may_name_examples_by_their_pseudonyms(
    runner: PlainRunner, data: TrainingData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_bytes(bytes(range(32)))
    (tmp_path / "secret").chmod(0o600)
    monkeypatch.setenv("MEMLIB_SECRET_FILE", str(tmp_path / "secret"))
    names = [pseudonym_of(name, read_secret()) for name in IDS]
    flags = dict(zip(names, words().values(), strict=True))
    assert read(runner, data, listed(flags)).tolist() == MEMBER.tolist()
    supplied({"yes": PROBABILITIES, "no": 1 - PROBABILITIES}, names)
    np.testing.assert_allclose(answers(runner, data, flags).content.odds[0, 0], ODDS, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("flags", "column", "message"),
    [
        ({**words(), IDS[3]: "perhaps"}, "member", "'perhaps' for example 'p01/0000003' in column member; write yes or no"),
        (words(), "membership", "'member'"),
        (
            {name[4:]: flag for name, flag in words().items()},
            "member",
            "names none of the 40 examples; use ids such as 'p00/",
        ),
        (dict.fromkeys(IDS, "yes"), "member", "lists 0 non-members among the 40 examples of the pool"),
        ({name: "no" if row > 8 else "yes" for row, name in enumerate(IDS)}, "member", "lists 9 members"),
    ],
)
def test_unusable_lists_of_supplied_members_are_refused_in_one_line(
    runner: PlainRunner, data: TrainingData, flags: dict[str, Any], column: str, message: str
) -> None:
    with pytest.raises(UserError, match=message) as raised:
        read(runner, data, listed(flags, column=column))
    assert "\n" not in str(raised.value)


def test_a_person_must_be_a_member_with_all_her_examples_or_none(runner: PlainRunner) -> None:
    data = pool(runner, GroupSpec(pattern="^(.+)/"))
    assert read(runner, data, listed(words())).tolist() == MEMBER.tolist()
    divided = {**words(), IDS[7]: "yes" if MEMBER[6] == 0 else "no"}
    with pytest.raises(UserError, match="only one of 'p03/0000006' and 'p03/0000007' as a member"):
        read(runner, data, listed(divided, "divided.csv"))


def test_a_person_need_not_be_listed_with_all_her_examples(runner: PlainRunner) -> None:
    data = pool(runner, GroupSpec(pattern="^(.+)/"))
    flags = words()
    del flags[IDS[7]]
    assert read(runner, data, listed(flags))[6:8].tolist() == [MEMBER[6], -1]


PROBABILITIES = np.random.default_rng(1).uniform(0.02, 0.98, COUNT)  # of the class yes
ODDS = np.where(LABELS == 1, 1, -1) * np.log(PROBABILITIES / (1 - PROBABILITIES))


def answers(
    runner: PlainRunner, data: TrainingData, flags: dict[str, Any] | None = None, **changes: Any
) -> Artifact[Answers]:
    members = runner.run(ReadMembers(data, listed(words() if flags is None else flags)))
    return runner.run(ReadOutputs(data, OutputsSpec(**{"path": "outputs.csv", **changes}), members))


def supplied(columns: dict[str, Any], ids: list[str] = IDS) -> None:
    rows = zip(ids, *columns.values(), strict=True)
    Path("outputs.csv").write_text(
        "\n".join([",".join(["example_id", *columns]), *(",".join(map(str, row)) for row in rows)])
    )


def test_probabilities_become_log_odds_of_the_true_class(runner: PlainRunner, data: TrainingData) -> None:
    supplied({"yes": PROBABILITIES, "no": 1 - PROBABILITIES})
    found = answers(runner, data)
    np.testing.assert_allclose(found.content.odds[0, 0], ODDS, rtol=1e-5, atol=1e-6)
    assert (found.content.correct[0] == (ODDS > 0)).all()
    assert found.facts["decimals"] is None


def test_logits_give_the_same_log_odds_as_probabilities(runner: PlainRunner, data: TrainingData) -> None:
    offset = np.random.default_rng(2).normal(0, 5, COUNT)  # which softmax does not see
    supplied({"p0": offset + np.log(1 - PROBABILITIES), "p1": offset + np.log(PROBABILITIES)})
    found = answers(runner, data, kind="logits").content
    np.testing.assert_allclose(found.odds[0, 0], ODDS, rtol=1e-5, atol=1e-5)


def test_rounded_probabilities_are_clipped_half_a_unit_from_0_and_1(runner: PlainRunner, data: TrainingData) -> None:
    rounded = np.round(PROBABILITIES, 1)
    supplied({"yes": rounded, "no": np.round(1 - rounded, 1)})
    found = answers(runner, data)
    assert found.facts["decimals"] == 1
    assert np.abs(found.content.odds).max() <= np.log(0.95 / 0.05) + 1e-6
    inner = (rounded > 0.05) & (rounded < 0.95)
    expected = np.where(LABELS == 1, 1, -1)[inner] * np.log(rounded[inner] / (1 - rounded[inner]))
    np.testing.assert_allclose(found.content.odds[0, 0][inner], expected, atol=1e-5)


def test_unlisted_examples_need_no_supplied_outputs(runner: PlainRunner, data: TrainingData) -> None:
    flags = {name: flag for name, flag in words().items() if name not in IDS[:6]}
    supplied({"yes": PROBABILITIES[6:], "no": 1 - PROBABILITIES[6:]}, IDS[6:])
    found = answers(runner, data, flags).content
    np.testing.assert_allclose(found.odds[0, 0, 6:], ODDS[6:], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("columns", "ids", "changes", "message"),
    [
        ({"yes": PROBABILITIES, "no": 1 - PROBABILITIES}, [name + ".png" for name in IDS], {}, "no outputs for 40 of the 40"),
        ({"yes": PROBABILITIES[1:], "no": 1 - PROBABILITIES[1:]}, IDS[1:], {}, "no outputs for 1 of the 40 .* p00/0000000"),
        ({"yes": PROBABILITIES}, IDS, {}, "one column of numbers per class"),
        ({"yes": PROBABILITIES, "no": PROBABILITIES + 1}, IDS, {}, "these are no probabilities"),
        ({"yes": PROBABILITIES, "no": 1 - PROBABILITIES}, IDS, {"kind": "logits"}, "set outputs.kind to probabilities"),
        ({"yes": PROBABILITIES > 0.5, "no": PROBABILITIES <= 0.5}, IDS, {}, "one column of numbers per class"),
        ({"yes": np.rint(PROBABILITIES), "no": 1 - np.rint(PROBABILITIES)}, IDS, {}, "decisions, not confidences"),
    ],
)
def test_unusable_supplied_outputs_are_refused_in_one_line(
    runner: PlainRunner, data: TrainingData, columns: dict[str, Any], ids: list[str], changes: dict[str, Any], message: str
) -> None:
    supplied(columns, ids)
    with pytest.raises(UserError, match=message) as raised:
        answers(runner, data, **changes)
    assert "\n" not in str(raised.value)


def test_a_missing_file_of_outputs_is_named(runner: PlainRunner, data: TrainingData) -> None:
    with pytest.raises(UserError, match=r"cannot read outputs from outputs\.csv"):
        answers(runner, data)
