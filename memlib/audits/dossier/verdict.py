"""The dossier's own sentence: all audits together, adjusted for their number and for further looks at their data."""

from __future__ import annotations

from collections.abc import Sequence

from memlib.audits.dossier.listed import LOST, NOT_RUN, Failed, Listed, rows_of
from memlib.findings import BOUNDED, DESCRIPTIVE, INCONCLUSIVE, SHOWN, Verdict
from memlib.report.format import say_p
from memlib.sanitize import count_of


def verdict(audits: Sequence[Listed], *, looks: int, failed: Sequence[Failed] = ()) -> Verdict:
    """Return the verdict of the dossier.

    It is shown if any audit that counts is, by Holm's method over all audits and looks; bounded if all tests that count are
    bounded and no audit failed; inconclusive otherwise; descriptive without a test. An audit that is stale, lost by earlier
    looks or powerless takes part in the adjustment, and is never named as shown or as a bound.

    Args:
        looks: number of further tests of the same data.
        failed: the audits without a result.
    """
    tests = [one for one in audits if one.p_value is not None]
    counted = [one for one in tests if not one.doubts]
    shown = [one for one in counted if one.is_shown]
    text = f"{_adjustment(tests, looks)}{_set_aside(audits)}{_without_result(failed)}{_missing(audits)}"
    if not tests:
        sentence = f"{count_of(len(audits), 'audit')} described the model; none of them includes a test."
        return Verdict(DESCRIPTIVE, sentence, text.strip())
    if shown:
        named = "; ".join(f"{one.run.title} ({say_p(one.p_value)})" for one in shown)
        verb = "shows" if len(shown) == 1 else "show"
        sentence = f"{len(shown)} of {_count(tests)} {verb} that {_subject(shown)} training data."
        return Verdict(SHOWN, sentence, f"Shown: {named}. {_of_given(counted, shown)}{text}")
    bounded = [one for one in counted if one.verdict.word == BOUNDED]
    if counted and len(bounded) == len(counted) == len(tests) and not failed:
        sentence = f"None of {_count(tests)} shows memory, and each of them bounds it."
        return Verdict(BOUNDED, sentence, f"{_of_bounds(audits, bounded)}{text}")
    if not counted:
        sentence = (
            f"{_count(tests)} {'was' if len(tests) == 1 else 'were'} run, but none counts, so nothing is said of memory."
        )
    elif len(counted) < len(tests):
        sentence = (
            f"None of the {count_of(len(counted), 'audit')} that {'counts' if len(counted) == 1 else 'count'}, of "
            f"{_count(tests)}, shows memory, adjusted for all of them; {len(bounded)} of them bound it."
        )
    else:
        sentence = f"None of {_count(tests)} shows memory, adjusted for all of them; {len(bounded)} of them bound it."
    if failed:
        sentence += f" {count_of(len(failed), 'audit')} failed."
    return Verdict(INCONCLUSIVE, sentence, f"This is no proof that nothing is remembered. {text}")


def _count(tests: Sequence[Listed]) -> str:
    return count_of(len(tests), "audit with a test", "audits with a test")


def _subject(shown: Sequence[Listed]) -> str:
    """Return the subject of the sentence, and its verb: audits that train models of their own examine no finished one."""
    given = [one.models.external for one in shown if one.models.external]
    if not given:
        return "models trained in this way give away"
    subject, verb = ("the model", "gives") if len(set(given)) == 1 else ("models that were given", "give")
    if len(given) == len(shown):
        return f"{subject} {verb} away"
    return f"{subject} ({len(given)}) and models trained in this way ({len(shown) - len(given)}) give away"


def _of_given(counted: Sequence[Listed], shown: Sequence[Listed]) -> str:
    """Say how many audits examined a model that was given, if none of those shows memory."""
    given = [one for one in counted if one.models.external]
    if not given or any(one.models.external for one in shown):
        return ""
    return (
        f"That is of models that the audits trained; a given model was examined in {_count(given)}, which did not show it. "
    )


def _of_bounds(audits: Sequence[Listed], bounded: Sequence[Listed]) -> str:
    """Say what the bounds do not cover."""
    without = sum(one.p_value is None for one in audits)
    beside = (
        f"{count_of(without, 'audit')} without a test {'bounds' if without == 1 else 'bound'} nothing. " if without else ""
    )
    return f"{beside}{'Each limit holds at 95 % by itself, not all of them together. ' if len(bounded) > 1 else ''}"


def _adjustment(tests: Sequence[Listed], looks: int) -> str:
    if not tests:
        return ""
    more = f" and for {count_of(looks, 'further look')} at the same data" if looks else ""
    return f"P-values are adjusted for {count_of(len(tests), 'audit')}{more} (Holm); the words of single audits are not. "


def _set_aside(audits: Sequence[Listed]) -> str:
    aside = [f"{one.run.title} ({'; '.join([*_alone(one), *one.doubts])})" for one in audits if one.doubts]
    return f"Not counted: {', '.join(aside)}. " if aside else ""


def _alone(one: Listed) -> list[str]:
    is_said = one.verdict.word != SHOWN or one.p_value is None or LOST in one.doubts
    return [] if is_said else [f"by itself it shows memory, {say_p(one.headline.p_adjusted)}"]


def _without_result(failed: Sequence[Failed]) -> str:
    return f"Failed, with no result: {', '.join(one.title for one in failed)}. " if failed else ""


def _missing(audits: Sequence[Listed]) -> str:
    count = sum(state == NOT_RUN for _, state, _, _ in rows_of(audits, {}))
    return f"{count_of(count, 'known attack')} on such data were not run; they are listed with reasons." if count else ""
