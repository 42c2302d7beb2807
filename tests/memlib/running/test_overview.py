"""The overview lists every run as it is described elsewhere, from the index alone."""

import json
import re
import stat
from pathlib import Path
from typing import Any

import fsspec
import pytest

from flows.cli.app import main
from memlib.errors import UserError
from memlib.report.overview import DataGroup, Overview, RunRow
from memlib.running.overview import LOST, overview_of, write_overview
from memlib.runs import index
from memlib.store import Store

HEAD = {
    "metric": "advantage", "params": "{}", "value": 0.2, "ci_low": 0.1, "ci_high": 0.3, "role": "test", "p_value": 0.03,
    "p_adjusted": 0.03, "alpha": 0.05, "family": "advantage", "null_value": 0.0, "verdict": "shown", "n": 9,
}  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def put(store: Store, run: str, finished: float, **more: Any) -> None:
    record = {
        "run": run, "audit": "membership", "title": f"title of {run}", "finished": finished, "findings": [HEAD],
        "verdict": {"word": "shown", "sentence": f"{run} remembers."}, "ledger": {"data": "d" * 64, "look": run},
        "recipe": {"data": {"source": {"kind": "digits"}}, "model": {"architecture": "mlp"}},
    }  # fmt: skip
    store.publish(f"runs/{run}/manifest.json", json.dumps(record | more).encode())
    store.publish(f"runs/{run}/report.html", b"a page")


def seen(store: Store) -> Overview:
    return overview_of(store, lambda path: f"to/{path}")


def rows_of(page: Overview) -> dict[str, RunRow]:
    return {row.run: row for group in page.groups for row in group.rows}


def test_runs_are_grouped_by_data_with_the_newest_first(store: Store) -> None:
    put(store, "r1", 1.0)
    put(store, "r2", 3.0)
    put(
        store,
        "r3",
        2.0,
        ledger={"data": "e" * 64, "look": "r3"},
        recipe={"data": {"source": {"kind": "csv", "path": "a/b.csv"}}},
    )
    put(store, "r4", 4.0)
    store.drop("runs/r2/report.html")
    page = seen(store)
    assert [(group.name, group.digest, [row.run for row in group.rows]) for group in page.groups] == [
        ("digits", "d" * 16, ["r4", "r2", "r1"]),
        ("csv b.csv", "e" * 16, ["r3"]),
    ]
    row = rows_of(page)["r4"]
    assert (row.audit, row.model, row.word, row.style) == ("membership", "mlp", "shown", "found")
    assert row.headline == "advantage 0.200 (0.100 to 0.300), p = 0.03"
    assert row.notes == ["r4 remembers."]
    assert row.finished == "1970-01-01 00:00"
    assert row.link == "to/runs/r4/report.html"
    assert rows_of(page)["r2"].link == ""
    ((caption, drawing),) = page.groups[0].lines
    assert caption == "membership, mlp: advantage of 3 runs over time, on a scale of 0.100 to 0.300"
    assert [re.findall(r"run (r\d)", title)[0] for title in re.findall("<title>(.*?)</title>", drawing)] == ["r1", "r2", "r4"]
    assert page.groups[1].lines == []  # one run has no course over time


def test_verdicts_that_earlier_looks_void_are_named(store: Store) -> None:
    before = [{"run": "r0", "audit": "membership", "p_value": 0.5}]
    put(store, "r1", 1.0, ledger={"data": "d", "look": "r1", "earlier": before})
    put(store, "r2", 2.0, ledger={"data": "d", "look": "r2", "earlier": [before[0] | {"audit": "exposure"}]})
    put(store, "r3", 3.0, ledger={"data": "d", "look": "r3", "earlier": before}, findings=[HEAD | {"p_adjusted": 0.02}])
    rows = rows_of(seen(store))
    assert (rows["r1"].word, rows["r1"].style) == (LOST, "odd")
    assert "Shown only if this were the first look at these data: look 2 at these data" in rows["r1"].notes[1]
    assert (rows["r2"].word, rows["r2"].notes) == ("shown", ["r2 remembers."])
    assert rows["r3"].word == "shown"
    assert "Allowing for 2 looks, p is 0.04, still at most" in rows["r3"].notes[1]


def test_sweeps_name_their_cells_and_lie_with_the_data_of_these(store: Store) -> None:
    before = [{"run": "r0", "audit": "membership", "p_value": 0.5}]
    put(store, "c1", 1.0, ledger={"data": "d", "look": "s1", "earlier": before})
    put(store, "c2", 2.0, ledger={"data": "d", "look": "s1"})
    put(store, "c3", 2.5, ledger={"data": "e", "look": "s2"})
    cells = {"one": "c1", "two": "c2", "three": None, "four": "deleted"}
    put(store, "s1", 3.0, audit="sweep", cells=cells, ledger={}, recipe={"audit": "sweep"})
    put(store, "s2", 4.0, audit="sweep", cells={"one": "c1", "two": "c3"}, ledger={}, recipe={"audit": "sweep"})
    page = seen(store)
    rows, found = rows_of(page), {group.digest: [row.run for row in group.rows] for group in page.groups}
    assert found == {"": ["s2"], "d": ["s1", "c2", "c1"], "e": ["c3"]}
    assert rows["s1"].notes[1] == "4 cells, 1 failed, 1 cannot be read."
    assert "Not the first looks at their data: one. Allowing for" in rows["s1"].notes[2]
    assert rows["c2"].notes[1:] == ["Cell of sweep s1."]
    assert all(group.lines == [] for group in page.groups)  # cells are not one question over time


def test_runs_of_earlier_versions_and_unknown_audits_are_listed(store: Store) -> None:
    put(store, "r1", 1.0, verdict=None, findings=[HEAD | {"verdict": None}], ledger={}, recipe={})
    put(store, "r2", 2.0, audit="of_a_later_version", verdict={"word": "strange", "sentence": "s"})
    rows = rows_of(seen(store))
    assert (rows["r1"].word, rows["r1"].style) == ("no verdict", "odd")
    assert rows["r1"].notes == ["Run r1, of an earlier version of memlib, has no verdict; run its audit again."]
    assert (rows["r2"].word, rows["r2"].audit, rows["r2"].style) == ("strange", "of-a-later-version", "odd")


def test_a_run_with_a_newer_run_of_the_same_recipe_and_data_is_marked(store: Store) -> None:
    for number, asks in enumerate(("a", "b", "a", "")):
        put(store, f"r{number}", float(number), asks=asks)
    noted = {run for run, row in rows_of(seen(store)).items() if "A newer run has the same recipe and data." in row.notes}
    assert noted == {"r0"}


def test_damaged_and_unfinished_runs_are_named(store: Store) -> None:
    put(store, "r1", 1.0)
    store.publish("runs/r2/manifest.json", b"{")
    note = {"run": "r3", "audit": "deja_vu", "title": "long", "started": 7200.0, "recipe": {}}
    store.publish("requests/r3-0.json", json.dumps(note).encode())
    named = {heading: list(rows) for heading, _, rows in seen(store).problems}
    assert named["Not ended"] == [("r3", "deja-vu", "long", "started 1970-01-01 02:00")]
    assert [row[0] for row in named["Damaged"]] == ["r2"]
    store.drop("runs/r2")
    store.drop("requests/r3-0.json")
    assert seen(store).problems == []


def test_the_overview_reads_no_manifest_that_the_index_describes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "SETTLING_SECONDS", -60.0)
    for number in range(3):
        put(store, f"r{number}", float(number))
    first = rows_of(seen(store))
    asked: list[str] = []
    monkeypatch.setattr(Store, "published_together", lambda self, paths: asked.extend(paths) or {})
    assert rows_of(seen(store)) == first
    assert asked == []


@pytest.mark.parametrize(("folder", "link"), [(None, ".."), ("store/mine/deep", "../.."), ("elsewhere", None)])
def test_links_are_relative_within_the_store(store: Store, tmp_path: Path, folder: str | None, link: str | None) -> None:
    put(store, "r1", 1.0)
    path = Path(write_overview(store, None if folder is None else tmp_path / folder).address)
    assert path == tmp_path / (folder or "store/index") / "index.html"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    start = (tmp_path / "store").as_uri() if link is None else link
    (target,) = re.findall(r'<a href="(.*?)">r1</a>', path.read_text())
    assert target == f"{start}/runs/r1/report.html"
    if link is not None:
        assert (path.parent / target).read_bytes() == b"a page"


def test_the_overview_of_a_remote_store_lies_in_a_local_folder_without_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsspec.filesystem("memory").store.clear()
    store = Store("memory://bucket/overview", cache=str(tmp_path / "cache"))
    put(store, "r1", 1.0)
    monkeypatch.chdir(tmp_path)
    assert write_overview(store).address == "memlib-index/index.html"
    html = Path("memlib-index/index.html").read_text()
    assert "<a href" not in html
    assert "Open the page of a run with memlib open RUN." in html
    assert not [path for path in store.listing("index") if path.endswith(".html")]


def test_the_overview_replaces_itself_and_no_other_page(store: Store, tmp_path: Path) -> None:
    put(store, "r1", 1.0)
    folder = tmp_path / "pages"
    write_overview(store, folder)
    put(store, "r2", 2.0)
    assert "r2" in Path(write_overview(store, folder).address).read_text()
    assert [path.name for path in folder.iterdir()] == ["index.html"]
    (folder / "index.html").write_text("<p>mine</p>")
    with pytest.raises(UserError, match="was not written by memlib index; choose another folder"):
        write_overview(store, folder)
    assert (folder / "index.html").read_text() == "<p>mine</p>"


def test_index_prints_the_address_of_its_page_and_leaves_the_store_whole(
    store: Store, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    put(store, "r1", 1.0)
    assert main(["index", "--store", store.uri]) == 0
    assert capsys.readouterr().out.strip() == f"{store.uri}/index/index.html"
    before = index.list_runs(store)
    assert main(["gc", "--days", "0", "--delete", "--store", store.uri]) == 0
    assert index.list_runs(store) == before
    assert (tmp_path / "store/index/index.html").is_file()
    assert main(["index", "--store", str(tmp_path / "none")]) == 2
    assert "there is no store" in capsys.readouterr().err


def test_a_group_counts_its_verdicts() -> None:
    row = RunRow("r", "", "", "a", "", "", "shown", "found", "", [])
    assert DataGroup("d", "", [row, row], []).counts == "2 shown"
