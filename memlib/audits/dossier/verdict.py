"""The dossier's own sentence: all audits together, adjusted for their number and for further looks at their data."""

from __future__ import annotations

from collections.abc import Sequence

from memlib.audits.dossier.listed import NOT_RUN, Listed, rows_of
from memlib.findings import BOUNDED, DESCRIPTIVE, INCONCLUSIVE, SHOWN, Verdict
from memlib.report.format import say_p
from memlib.sanitize import count_of


def verdict(audits: Sequence[Listed], *, looks: int) -> Verdict:
    """Return the verdict of the dossier.

    It is shown if any audit that counts is, by Holm's method over all audits and looks; bounded if all tests that count are
    bounded; inconclusive otherwise; descriptive without a test. An audit that is stale, lost by earlier looks or powerless
    takes part in the adjustment, and is never named as shown or as a bound.

    Args:
        audits: the audits.
        looks: number of further tests of the same data.
    """
    tests = [one for one in audits if one.p_value is not None]
    counted = [one for one in tests if not one.doubts]
    shown = [one for one in counted if one.is_shown]
    text = f"{_adjustment(tests, looks)}{_set_aside(audits)}{_missing(audits)}"
    if not tests:
        sentence = f"{count_of(len(audits), 'audit')} described the model; none of them includes a test."
        return Verdict(DESCRIPTIVE, sentence, text.strip())
    if shown:
        named = "; ".join(f"{one.run.title} ({say_p(one.p_value)})" for one in shown)
        verb = "shows" if len(shown) == 1 else "show"
        sentence = f"{len(shown)} of {_count(tests)} {verb} that {_subject(tests)} training data."
        return Verdict(SHOWN, sentence, f"Shown: {named}. {text}")
    bounded = [one for one in counted if one.verdict.word == BOUNDED]
    if counted and len(bounded) == len(counted) == len(tests):
        sentence = f"None of {_count(tests)} shows memory, and each of them bounds it."
        return Verdict(BOUNDED, sentence, text)
    sentence = f"None of {_count(tests)} shows memory; {len(bounded)} of them bound it."
    return Verdict(INCONCLUSIVE, sentence, f"This is no proof that nothing is remembered. {text}")


def _count(tests: Sequence[Listed]) -> str:
    return count_of(len(tests), "audit with a test", "audits with a test")


def _subject(tests: Sequence[Listed]) -> str:
    """Return the subject of the sentence, and its verb: audits that train models of their own examine no finished one."""
    return "the model gives away" if any(one.models.external for one in tests) else "models trained in this way give away"


def _adjustment(tests: Sequence[Listed], looks: int) -> str:
    if not tests:
        return ""
    more = f" and for {count_of(looks, 'further look')} at the same data" if looks else ""
    return f"P-values are adjusted for {count_of(len(tests), 'audit')}{more} (Holm); the words of single audits are not. "


def _set_aside(audits: Sequence[Listed]) -> str:
    aside = [f"{one.run.title} ({'; '.join(one.doubts)})" for one in audits if one.doubts]
    return f"Not counted: {', '.join(aside)}. " if aside else ""


def _missing(audits: Sequence[Listed]) -> str:
    count = sum(state == NOT_RUN for _, state, _, _ in rows_of(audits, {}))
    return f"{count_of(count, 'known attack')} on such data were not run; they are listed with reasons." if count else ""
