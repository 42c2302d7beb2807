"""The dossier's own sentence: all audits together, adjusted for their number and for further looks at their data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from memlib.audits import AUDITS, audit_of
from memlib.audits.dossier.beside import Beside, contradicting
from memlib.audits.dossier.listed import NOT_IN_MEMLIB, NOT_RUN, POWERLESS, Failed, Listed, begun, rows_of
from memlib.audits.dossier.subject import Examined
from memlib.findings import BOUNDED, DESCRIPTIVE, INCONCLUSIVE, SHOWN, Verdict, Word
from memlib.report.format import once_in, say_p
from memlib.sanitize import count_of

NO_PROOF = "This is no proof that nothing is remembered."


def verdict(
    audits: Sequence[Listed],
    *,
    looks: int,
    failed: Sequence[Failed] = (),
    beside: Sequence[Beside] = (),
    released: str = "",
) -> Verdict:
    """Return the verdict of the dossier, with one sentence for everything that its audits examined.

    It is shown if any audit that counts is, by Holm's method over all audits and looks; bounded if all tests that count are
    bounded, no audit failed, and no audit shows memory by itself, in the dossier or beside it; inconclusive otherwise;
    descriptive without a test. An audit that is stale or lost by earlier looks takes part in the adjustment, and is never
    named as shown or as a bound. An audit whose design can show nothing takes no part in it.

    Args:
        looks: number of further tests of the same data.
        failed: the audits without a result.
        beside: runs on the same subject that do not belong to the dossier.
        released: digest of the released model; "" if the owner has not stated it.
    """
    word = _word(audits, failed, beside)
    first = [*_of_release(audits, released), *(() if word == SHOWN else _passing(audits, beside, looks))]
    sentence = " ".join([*first, *_sentences(word, audits, failed)])
    explained = _explained(word, audits, looks, failed, beside)
    return Verdict(word, sentence, " ".join(explained))


def _word(audits: Sequence[Listed], failed: Sequence[Failed], beside: Sequence[Beside]) -> Word:
    tests = _tests(audits)
    counted = [one for one in tests if not one.doubts]
    if any(one.is_shown for one in counted):
        return SHOWN
    if not tests:
        return INCONCLUSIVE if any(POWERLESS in one.doubts for one in audits) else DESCRIPTIVE
    is_denied = any(one.passes for one in audits) or any(one.passes for one in beside)
    are_bounded = all(one.verdict.word == BOUNDED for one in counted)
    return BOUNDED if are_bounded and len(counted) == len(tests) and not (failed or is_denied) else INCONCLUSIVE


def _tests(audits: Sequence[Listed]) -> list[Listed]:
    return [one for one in audits if one.p_value is not None]


def subjects(audits: Sequence[Listed]) -> dict[str, list[Listed]]:
    """Return the audits by what they examined, models that were given first."""
    found: dict[str, list[Listed]] = {}
    for one in sorted(audits, key=lambda one: not one.examined.is_given):
        found.setdefault(one.examined.key, []).append(one)
    return found


def is_shown(one: Listed) -> bool:
    """Return whether the verdict may name an audit as shown."""
    return one.is_shown and not one.doubts


def _of_release(audits: Sequence[Listed], released: str) -> Iterator[str]:
    """Yield that the released model is another one than those that were examined."""
    if released and not is_released(audits, released):
        yield f"The released model (sha256 {released[:12]}) is none of those that were audited."


def is_released(audits: Sequence[Listed], released: str) -> bool:
    """Return whether any audit examined the released model."""
    return any(one.models.examined(released) for one in audits)


def _passing(audits: Sequence[Listed], beside: Sequence[Beside], looks: int) -> Iterator[str]:
    """Yield what runs show by themselves though the dossier shows nothing: this comes first."""
    for one in filter(_is_lost, audits):
        p = once_in(one.headline.p_adjusted)
        yield f"{_capital(one.run.title)} shows memory on its own page ({p}), {_lost(one, audits, looks)}."
    for other in (one for one in beside if one.passes):
        p = once_in(AUDITS[audit_of(other.run.audit)].decisive_of(other.run).p_adjusted)
        yield f"{_capital(other.name)}, which is not part of this dossier, shows memory ({p})."


def _is_lost(one: Listed) -> bool:
    """Return whether a run shows memory by itself that the verdict may not name."""
    return one.passes and not is_shown(one)


def _lost(one: Listed, audits: Sequence[Listed], looks: int) -> str:
    """Say why a run that shows memory by itself does not count."""
    if one.doubts:
        return f"and does not count here ({'; '.join(one.doubts)})"
    others = [other for other in _tests(audits) if other is not one]
    later = sum(begun(other.run) > begun(one.run) for other in others)
    after = f", {later} of them later" if later else ""
    allowed = [f"{count_of(len(others), 'further audit')} of this dossier{after}"] if others else []
    allowed += [f"{count_of(looks, 'further look')} at the same data"] if looks else []
    return f"but not after allowing for {' and '.join(allowed)}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _sentences(word: Word, audits: Sequence[Listed], failed: Sequence[Failed]) -> Iterator[str]:
    """Yield a sentence about everything that was examined."""
    for of_subject in subjects(audits).values():
        yield _sentence(of_subject[0].examined, of_subject, is_bounded=word == BOUNDED)
    if failed and word != SHOWN:
        yield f"{count_of(len(failed), 'audit')} failed."


def _sentence(examined: Examined, audits: Sequence[Listed], *, is_bounded: bool) -> str:
    """Return the sentence about one thing that was examined."""
    tests, name = _tests(audits), _capital(examined.name)
    counted = [one for one in tests if not one.doubts]
    found = [one for one in counted if one.is_shown]
    if found:
        clauses = "; ".join(f"{_clause(one)} ({one.run.title})" for one in found)
        by = f"Shown by {len(found)} of {_count(tests)}" if len(tests) > 1 else "Shown by one audit"
        return f"{name}: {clauses}. {by}, {once_in(max(one.p_value or 0.0 for one in found))}."
    if not tests:
        powerless = [one for one in audits if POWERLESS in one.doubts]
        if powerless:
            return f"{name}: with their size, {_count(powerless)} could show nothing."
        object_ = "it" if examined.is_given else "them"
        return f"{name}: {count_of(len(audits), 'audit')} described {object_}; none includes a test."
    if not counted:
        return f"{name}: {_count(tests)} {_was(tests)} run, but none counts, so nothing is said of memory."
    after = " after the adjustment" if any(one.passes for one in counted) else ""
    none = (
        f"the one audit with a test shows no memory{after}"
        if len(tests) == 1
        else f"none of {_count(tests)} shows memory{after}"
    )
    if len(counted) < len(tests):
        none = f"none of the {len(counted)} that count, of {_count(tests)}, shows memory"
    if is_bounded:
        return f"{name}: {none}, and {'bounds it' if len(tests) == 1 else 'each of them bounds it'}."
    bounded = sum(one.verdict.word == BOUNDED for one in counted)
    some = "one of them bounds" if bounded == 1 else f"{bounded} of them bound"
    return f"{name}: {none}{f'; {some} it' if bounded and len(tests) > 1 else ', and bounds it' if bounded else ''}."


def _clause(one: Listed) -> str:
    """Return what an audit that is shown shows."""
    return AUDITS[audit_of(one.run.audit)].leak(one.headline).clause


def _was(tests: Sequence[Listed]) -> str:
    return "was" if len(tests) == 1 else "were"


def _count(tests: Sequence[Listed]) -> str:
    return count_of(len(tests), "audit with a test", "audits with a test")


def _explained(
    word: Word, audits: Sequence[Listed], looks: int, failed: Sequence[Failed], beside: Sequence[Beside]
) -> Iterator[str]:
    """Yield the sentences behind the verdict."""
    found = [one for one in audits if is_shown(one)]
    if found:
        yield f"Shown: {'; '.join(f'{one.run.title} ({say_p(one.p_value)})' for one in found)}."
    if word == BOUNDED:
        yield from _of_bounds(audits)
    if word == INCONCLUSIVE:
        yield NO_PROOF
    if _tests(audits):
        yield _adjustment(_tests(audits), looks)
    aside = [f"{one.run.title} ({'; '.join([*_alone(one, word), *one.doubts])})" for one in audits if one.doubts]
    if aside:
        yield f"Not counted: {', '.join(aside)}."
    lost = [f"{one.run.title} ({say_p(one.headline.p_adjusted)})" for one in audits if _is_lost(one) and not one.doubts]
    if lost and word == SHOWN:
        yield f"Shown on its own page, but not after the adjustment: {', '.join(lost)}."
    others = [_other(one) for one in contradicting(word, beside) if word == SHOWN or not one.passes]
    if others:
        yield f"Runs that are not part of this dossier say otherwise: {', '.join(others)}."
    if failed:
        yield f"Failed, with no result: {', '.join(one.title for one in failed)}."
    count = sum(state in (NOT_RUN, NOT_IN_MEMLIB) for _, state, _, _ in rows_of(audits, {}))
    if count:
        yield f"Known attacks on such data that were not run: {count}; they are listed with reasons."


def _alone(one: Listed, word: Word) -> list[str]:
    return [f"by itself it shows memory, {say_p(one.headline.p_adjusted)}"] if one.passes and word == SHOWN else []


def _other(one: Beside) -> str:
    return f"{one.name}, {one.word}" + (f", which does not count: {one.reason}" if one.reason else "")


def _of_bounds(audits: Sequence[Listed]) -> Iterator[str]:
    """Yield what the bounds do not cover."""
    without = sum(one.p_value is None for one in audits)
    if without:
        yield f"Without a test, {count_of(without, 'audit')} {'bounds' if without == 1 else 'bound'} nothing."
    if len(_tests(audits)) > 1:
        yield "Each limit holds at 95 % by itself, not all of them together."


def _adjustment(tests: Sequence[Listed], looks: int) -> str:
    """Say for what the p-values are adjusted, and at which level."""
    entries = len({one.entry for one in tests})
    same = f" of {count_of(entries, 'design')}" if entries < len(tests) else ""
    planned = len({one.entry for one in tests if one.is_planned})
    halves = (
        f"; audits that follow plans frozen beforehand ({planned}) have half of the level to themselves"
        if 0 < planned < entries + looks
        else ""
    )
    more = f" and for at least {count_of(looks, 'further look')} at the same data" if looks else ""
    level = max(one.level for one in tests)
    return (
        f"P-values are adjusted for {count_of(len(tests), 'audit')}{same}{more} (Holm){halves}; looks in other stores are "
        f"not known. An audit counts as shown if this p-value is at most {level:g}, or its own level if that is lower."
    )
