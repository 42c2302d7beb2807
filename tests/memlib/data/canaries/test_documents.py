"""Canary documents and their coins: fair, independent, private, and the same files read back."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from memlib.data.canaries.documents import (
    ALL_FILE,
    INSERT_FILE,
    Form,
    draw_documents,
    read_documents,
    span_of,
    write_canaries,
)
from memlib.data.canaries.plan import COINS_FILE, PLAN_FILE, coins_beside, draw_coins, read_coins, read_plan
from memlib.errors import UserError
from memlib.stats.canaries import Plan

SECRET = b"k" * 32


def write(folder: Path, form: Form = Form(), count: int = 60, *, seed: int = 0, **settings: object) -> Path:
    given = {"repeats": 1, "guesses": (), "secret": SECRET, **settings}
    write_canaries(folder, form, count, seed=seed, **given)  # type: ignore[arg-type]
    return folder


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_insert_file_holds_the_included_documents_and_all_file_reveals_no_coin(tmp_path: Path) -> None:
    folder = write(tmp_path / "c")
    coins, every = read_coins(folder), lines(folder / ALL_FILE)
    inserted = {row["text"] for row in lines(folder / INSERT_FILE)}
    assert coins.canaries == tuple(row["canary"] for row in every)
    assert [row["text"] in inserted for row in every] == coins.inside.tolist()
    assert all(row.keys() == {"canary", "text", "span"} for row in every)
    assert [set(row) for row in lines(folder / INSERT_FILE)] == [{"text"}] * coins.inside.sum()


def test_all_files_and_their_folder_are_private(tmp_path: Path) -> None:
    folder = write(tmp_path / "c")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()} == dict.fromkeys(
        (INSERT_FILE, ALL_FILE, PLAN_FILE, COINS_FILE), 384
    )


def test_chats_have_the_random_part_in_the_answer(tmp_path: Path) -> None:
    form = Form("It is {d6}.", prompt="Code of {l4}?", field="turns")
    folder = write(tmp_path / "c", form, repeats=3)
    inserted = lines(folder / INSERT_FILE)
    assert len(inserted) == 3 * read_coins(folder).inside.sum()
    turns = inserted[0]["turns"]
    assert isinstance(turns, list)
    assert [turn["role"] for turn in turns] == ["user", "assistant"]
    document = read_documents(folder)[0]
    assert document.text[slice(*document.span)].isdigit()
    assert document.text[: document.span[0]] == "It is "
    assert document.prompt is not None
    assert len({one.prompt for one in read_documents(folder)}) > 50


def test_canary_documents_differ_and_depend_on_secret_and_seed() -> None:
    drawn = {
        name: [one.text for one in draw_documents(Form("{d4}"), 500, secret=secret, seed=seed)]
        for name, secret, seed in (("a", SECRET, 0), ("again", SECRET, 0), ("seed", SECRET, 1), ("secret", b"x" * 32, 0))
    }
    assert drawn["a"] == drawn["again"]
    assert len(set(drawn["a"])) == 500
    assert drawn["a"] != drawn["seed"] != drawn["secret"]


def test_coins_are_fair_and_independent_of_their_neighbours() -> None:
    coins = draw_coins(40_000, secret=SECRET, seed="0")
    assert abs(coins.mean() - 0.5) < 0.0125  # 5 standard deviations
    assert abs((coins[1:] == coins[:-1]).mean() - 0.5) < 0.0125
    texts = draw_documents(Form("{d1}{l8}"), 4000, secret=SECRET, seed=0)
    odd = np.array([int(one.text[0]) % 2 == 1 for one in texts])
    assert abs((odd == coins[:4000]).mean() - 0.5) < 0.04


def test_span_lasts_from_the_first_hole_to_the_last() -> None:
    assert span_of(Form("{d2}")) == (0, 2)
    assert span_of(Form("id {d3}, {l2}!")) == (3, 10)


def test_guesses_and_repeats_are_kept_with_the_coins(tmp_path: Path) -> None:
    coins = read_coins(write(tmp_path / "c", guesses=(5, 9), repeats=2))
    assert (coins.guesses, coins.repeats) == ((5, 9), 2)
    assert pq.read_table(tmp_path / "c" / COINS_FILE).column_names == ["canary", "inside"]


@pytest.mark.parametrize(
    ("form", "count", "settings", "said"),
    [
        (Form(), 5, {}, "5 canaries are too few for a test"),
        (Form("no hole"), 60, {}, "the format 'no hole' has no hole"),
        (Form("{d1}"), 60, {}, "the format has only 10 candidates, fewer than the 60"),
        (Form("{q1}"), 60, {}, "unknown alphabet 'q'"),
        (Form(), 60, {"repeats": 0}, "repeats is 0; give"),
        (Form(), 60, {"guesses": (61,)}, r"guesses are \(61,\)"),
    ],
)
def test_unsuitable_settings_of_canaries_are_refused_without_writing(
    form: Form, count: int, settings: dict[str, object], said: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=said):
        write(tmp_path / "c", form, count, **settings)
    assert not (tmp_path / "c").exists()


def test_an_existing_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    with pytest.raises(UserError, match="already exists"):
        write(tmp_path / "c")
    assert list((tmp_path / "c").iterdir()) == []


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"canary": "a", "text": "hush 12", "span": [3, 99]}', '{"text": "hush 12"}', "7"]
)
def test_damaged_canaries_are_refused_without_being_quoted(line: str, tmp_path: Path) -> None:
    (tmp_path / ALL_FILE).write_text(line)
    with pytest.raises(UserError, match=r"all.jsonl, line 1 is not a canary") as raised:
        read_documents(tmp_path)
    assert "hush" not in str(raised.value)


def test_missing_files_of_canaries_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read the canaries of .*all.jsonl \(No such file or directory\)"):
        read_documents(tmp_path)
    with pytest.raises(UserError, match=r"cannot read the coins of .*coins.parquet"):
        read_coins(tmp_path)
    (tmp_path / COINS_FILE).write_text("none")
    with pytest.raises(UserError, match=r"cannot read the coins of .*coins.parquet"):
        read_coins(tmp_path)


def test_the_plan_is_beside_the_canaries_and_with_the_coins(tmp_path: Path) -> None:
    plan = Plan.of(20, alpha=0.01, every_epochs=2, spending="equal", statistic="auc", epsilon_looks=5)
    folder = write(tmp_path / "c", plan=plan)
    assert read_plan(folder) == read_plan(folder / ALL_FILE) == read_coins(folder).plan == plan
    assert plan.redraws == 9999
    (folder / PLAN_FILE).write_text('{"looks": "many"}')
    with pytest.raises(UserError, match=r"cannot read .*plan.json"):
        read_plan(folder)
    (folder / PLAN_FILE).unlink()
    assert read_plan(folder) == Plan()


def test_digests_depend_on_coins_and_plan_and_cannot_be_made_without_the_salt(tmp_path: Path) -> None:
    """Of two folders with equal coins, the digests differ, so that nobody can look for the coins of a digest."""
    folders = [write(tmp_path / "a"), write(tmp_path / "b", plan=Plan.of(5)), write(tmp_path / "c", secret=b"x" * 32)]
    found = [read_coins(folder) for folder in folders]
    assert len({one.digest for one in found}) == len({one.salt for one in found[1:]}) + 1 == 3
    assert read_coins(folders[0]).digest == found[0].digest
    assert len(found[0].salt) == 64
    assert found[0].seed != 0


def test_coins_are_found_beside_their_own_canaries_alone(tmp_path: Path) -> None:
    folder = write(tmp_path / "c")
    names = [one.canary for one in read_documents(folder)]
    found = coins_beside(folder / ALL_FILE, names)
    assert found is not None
    assert found.digest == read_coins(folder).digest
    with pytest.raises(UserError, match=r"coins.parquet has coins of other canaries"):
        coins_beside(folder, names[:-1])
    (folder / COINS_FILE).unlink()
    assert coins_beside(folder, names) is None


def test_another_plan_has_other_canaries_and_coins(tmp_path: Path) -> None:
    """So a plan cannot be chosen after the losses were seen: of the same secret and seed, each has documents of its own."""
    changes: list[dict[str, object]] = [
        {}, {"plan": Plan.of(5)}, {"plan": Plan.of(1, alpha=0.2)}, {"plan": Plan.of(1, statistic="auc")}, {"repeats": 2},
        {"guesses": (5,)}, {"seed": 1},
    ]  # fmt: skip
    folders = [write(tmp_path / str(number), **change) for number, change in enumerate(changes)]  # type: ignore[arg-type]
    assert len({read_documents(folder)[0].text for folder in folders}) == len(folders)
    assert len({read_coins(folder).inside.tobytes() for folder in folders}) == len(folders)
    again = write(tmp_path / "again")
    assert read_coins(again).digest == read_coins(folders[0]).digest


@pytest.mark.parametrize(
    "plan",
    ['{"spending": "foo"}', '{"looks": 10.5}', '{"statistic": "foo"}', '{"redraws": 2e4}', '{"alpha": "a"}', '{"alpha": 1}'],
)
def test_damaged_plans_are_refused(plan: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "c")
    (folder / PLAN_FILE).write_text(plan)
    with pytest.raises(UserError, match=r"cannot read .*plan.json"):
        read_plan(folder)


def test_line_separators_within_a_document_end_no_line(tmp_path: Path) -> None:
    folder = write(tmp_path / "c", Form("a\u2028{d9}."))
    assert read_documents(folder)[0].text.startswith("a\u2028")
