"""The page over all runs escapes all text, allows one script by its digest, and folds earlier runs."""

import base64
import hashlib
import re
from dataclasses import replace

from markupsafe import Markup

from memlib.report.overview import MOST_OPEN, DataGroup, Overview, RunRow, render

EVIL = '"><script>alert(1)</script>'
ROW = RunRow("r", "../runs/r/report.html", "2026-01-01 00:00", "exposure", "lstm", "t", "shown", "found", "bits 3", ["s"])
GROUP = DataGroup("digits", "00ff", [ROW], [("bits over time", Markup("<svg></svg>"))])
PAGE = Overview("Audits", "a store", "a legend", [GROUP], [("Damaged", "Read them.", [("r2", "it is empty")])])


def test_all_text_of_the_overview_is_escaped() -> None:
    row = RunRow(EVIL, EVIL, EVIL, EVIL, EVIL, EVIL, EVIL, EVIL, EVIL, [EVIL])
    group = DataGroup(EVIL, EVIL, [row], [(EVIL, Markup())])
    html = render(Overview(EVIL, EVIL, EVIL, [group], [(EVIL, EVIL, [(EVIL,)])]))
    assert html.count("<script>") == 1
    assert "<script>alert" not in html
    assert html.count("&lt;script&gt;") >= 25


def test_the_script_is_allowed_by_its_digest_and_nothing_else_is() -> None:
    html = render(PAGE)
    (script,) = re.findall("<script>(.*?)</script>", html, re.DOTALL)
    (policy,) = re.findall('Content-Security-Policy" content="(.*?)">', html)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    rules = dict(rule.strip().partition(" ")[::2] for rule in policy.split(";"))
    assert rules["script-src"] == f"'sha256-{digest}'"
    assert rules["default-src"] == "'none'"
    assert not re.search(r'\son\w+="', html)  # a policy of digests allows no handlers


def test_the_newest_runs_are_open_and_earlier_ones_folded() -> None:
    rows = [replace(ROW, run=f"r{number:02}") for number in range(MOST_OPEN + 3)]
    html = render(replace(PAGE, groups=[replace(GROUP, rows=rows)]))
    before, folded = html.split("<details><summary>3 earlier</summary>")
    assert re.findall(r">(r\d\d)<", before) == [row.run for row in rows[:MOST_OPEN]]
    assert re.findall(r">(r\d\d)<", folded) == [row.run for row in rows[MOST_OPEN:]]
    assert "<details" not in render(PAGE)


def test_the_filter_offers_what_the_page_holds() -> None:
    other = replace(ROW, audit="membership", word="no verdict", link="")
    html = render(replace(PAGE, groups=[GROUP, replace(GROUP, name="faces", digest="", rows=[other, ROW])]))
    assert re.findall("<option>(.*?)</option>", html) == ["exposure", "membership", "no verdict", "shown"]
    assert re.findall('<option value="(g.*?)">(.*?)</option>', html) == [("g1", "digits 00ff"), ("g2", "faces ")]
    assert html.count('<section class="group" id="g') == 2
    assert html.count('<a href="../runs/r/report.html">r</a>') == 2  # one of the three runs has no page
    assert "1 no verdict, 1 shown" in html
