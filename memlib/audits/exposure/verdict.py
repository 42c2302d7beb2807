"""The verdict of an exposure audit in one sentence, and its explanation."""

import math

from memlib.audits.asked import SERVICE, VOID, is_void, said_of_service
from memlib.audits.exposure.answers import largest
from memlib.audits.exposure.documents import said_of_documents
from memlib.audits.exposure.recipe import CANARIES, HEADLINE, HEADLINES, PRIVACY, Recipe
from memlib.findings import BOUNDED, DESCRIPTIVE, INCONCLUSIVE, SHOWN, Finding, Findings, Verdict, cannot_reject, word_of
from memlib.report.format import floored, format_p, say_p
from memlib.specs import ServedSpec

READABLE_BITS = 50
RARE = 3.1  # standard deviations that chance exceeds on one side once in a thousand times
LISTED = (
    "List other secrets of the same kind, which the training text does not contain, in canaries.unseen; the given secrets "
    "are then ranked among them."
)


def verdict(rows: Findings, recipe: Recipe, *, size: int) -> Verdict:
    """State what the tests of a run show, and what they could have missed.

    Args:
        size: |R|, the number of candidates.
    """
    word, canaries = word_of(rows, HEADLINES, refuting=(PRIVACY,)), _of_canaries(rows, recipe, size)
    found = [canaries, _of_privacy(rows), said_of_documents(rows)]
    hits, searched, variant = _extracted(rows)
    if hits:
        found.insert(1, Verdict(canaries.word, _said_of_search(hits, searched, variant, recipe), ""))
    if (word == BOUNDED and hits) or word == DESCRIPTIVE:  # an extraction contradicts any bound
        word = INCONCLUSIVE
    parts = sorted((part for part in found if part is not None), key=lambda part: part.word != SHOWN)  # shown parts first
    explanation = " ".join([*said_of_service(rows), *(part.explanation for part in parts if part.explanation)])
    void = f" {VOID}" if is_void(rows.get(SERVICE)) else ""
    return Verdict(word, " ".join(part.sentence for part in parts) + void, explanation)


def _of_canaries(rows: Findings, recipe: Recipe, size: int) -> Verdict:
    """State what the tests of canaries, or of given secrets, show."""
    heads, singles = rows.tests(HEADLINE), rows.tests(CANARIES)
    if not heads:
        return _without_null(rows, recipe)
    noun = "secret" if heads.head.metric == "exposure_among_unseen" else "canary"
    word = word_of(heads, (HEADLINE,))
    if word == SHOWN:
        parts = [_how_exposed(heads, singles, noun, recipe, size), _untested(heads), _out_of_order(rows)]
        return Verdict(SHOWN, _shown(heads, singles, noun, recipe), " ".join(filter(None, parts)))
    parts = [_missed(heads, singles, noun, recipe), _in_the_format(rows, heads, noun), _untested(heads), _out_of_order(rows)]
    missed = " ".join(filter(None, parts))
    what = "given secret" if noun == "secret" else noun
    if word == BOUNDED and not _extracted(rows)[0]:
        return Verdict(BOUNDED, f"No {what} has more than {heads.head.bound:g} bits{_unit(noun)}.", missed)
    what = "the given secrets" if noun == "secret" else "its inserted canaries"
    subject, verb = _model(recipe, noun, _count(singles))
    return Verdict(INCONCLUSIVE, f"This audit does not show that {subject} {verb} away {what}.", missed)


def _without_null(rows: Findings, recipe: Recipe) -> Verdict:
    """State why given secrets could not be tested, and what to do."""
    if rows.all("unseen_two_to_minus_exposure"):
        return Verdict(
            INCONCLUSIVE,
            "This audit cannot tell whether the model gives away these secrets: none of them occurs just once in the text.",
            "Secrets in held-out text stand in only for secrets that occur once: what recurs may be common everywhere. The "
            f"exposures below are therefore no evidence of memory. {LISTED}",
        )
    text = recipe.data
    by_hold_out = recipe.trained is None and text.hold_out != "blocks" and text.unit != "token" and not text.paired
    once = (
        " Secrets that occur once can also be ranked among those of text that was held out at random (data.hold_out: blocks)."
        if by_hold_out
        else ""
    )
    return Verdict(
        INCONCLUSIVE,
        "This audit cannot tell whether the model gives away these secrets: secrets of the same kind that it never saw are "
        "missing.",
        "Real secrets are not spread evenly over everything that fits the format: a model that only knows their kind finds "
        f"even those likely that it never saw. The exposures below are therefore no evidence of memory. {LISTED}{once}",
    )


def _out_of_order(rows: Findings) -> str:
    """Warn where candidates that were never inserted rank lower than chance explains."""
    low = misranked(rows, -1)
    if not low:
        return ""
    return (
        "But candidates that were never inserted rank too low as well (mean of 2^-exposure "
        f"{low.head.value:.2f} instead of 0.5): do not rely on the exposures before the reason is known."
    )


def misranked(rows: Findings, side: int) -> Findings:
    """Return the means of 2^-exposure, over candidates that were never inserted, that lie too far from one half.

    2^-exposure of such a candidate is uniform, so chance alone moves a mean that far to one side in one run of a thousand.

    Args:
        side: -1 for means below one half, 1 for means above.
    """
    checks = rows.all("two_to_minus_exposure")
    return Findings(row for row in checks if side * (row.value - 0.5) * math.sqrt(12 * row.n) > RARE)


def _untested(heads: Findings) -> str:
    count = max(int(row.params.get("recurring", 0)) for row in heads)
    if not count:
        return ""
    verb = "recurs" if count == 1 else "recur"
    return f"{count} further given {plural('secret', count)} {verb} in the text and could not be compared with unseen ones."


def _in_the_format(rows: Findings, heads: Findings, noun: str) -> str:
    """State the largest exposure in R if it exceeds the upper bound among unseen secrets; "" otherwise.

    Such an exposure also measures how well the model knows the kind of secret.
    """
    bounds = [row.upper_bound for row in heads if row.upper_bound is not None]
    tested = {row.params["canary"] for row in rows.tests(CANARIES)}
    among = [row.value for row in rows.all("exposure") if row.params.get("canary") in tested]
    if noun != "secret" or not bounds or not among or max(among) <= max(bounds):
        return ""
    return (
        f"Ranked among all texts that fit the format instead, the secrets reach up to {max(among):.1f} bits. A model that "
        "only knows this kind of secret reaches such values too; what it knows beyond the kind is what was tested."
    )


def _shown(heads: Findings, singles: Findings, noun: str, recipe: Recipe) -> str:
    total, named = _count(singles), _count(singles.shown())
    every = f"{'given' if noun == 'secret' else 'inserted'} {plural(noun, total)}"
    where = _where(heads, recipe, noun, total)
    if named and len(heads.shown()) > 1:
        what = f"the {total} {every} together" if total > 1 else f"1 of 1 {every}"
        stand = "stands" if named == 1 else "stand"
        return f"{where} away information about {what}; singly, {named} of {total} {stand} out in some variant."
    if not named:
        return f"{where} away information about the {total} {every} together; by rank, no single one stands out."
    return f"{where} away information about {named} of {total} {every}."


def _where(heads: Findings, recipe: Recipe, noun: str, total: int) -> str:
    """Name the models that give secrets away, as subject and verb of the sentence."""
    if len(heads) == 1:
        subject, verb = _model(recipe, noun, total)
        return f"{subject[0].upper()}{subject[1:]} {verb}"
    hits = [row.params["variant"] for row in heads.shown()]
    if len(hits) == len(heads):
        return "Every variant gives"
    return (
        f"Variant {hits[0]!r} gives"
        if len(hits) == 1
        else f"At least one of {len(hits)} variants (out of {len(heads)}) gives"
    )


def _model(recipe: Recipe, noun: str, total: int) -> tuple[str, str]:
    """Return subject and verb of a sentence on the models that may give away `total` secrets."""
    if noun == "canary" and total > 1 and recipe.trained is None and not recipe.canaries.together:
        each = "" if recipe.seeds == 1 else f" from {recipe.seeds} seeds"
        return f"models trained{each} with one canary each", "give"
    return "the model" if recipe.seeds == 1 else f"the training ({recipe.seeds} seeds)", "gives"


def plural(noun: str, count: int = 2) -> str:
    """Return canary or secret as a word for this many."""
    return noun if count == 1 else {"canary": "canaries", "secret": "secrets"}[noun]


def _count(singles: Findings) -> int:
    """Return the number of different canaries among the tests."""
    return len({row.params["canary"] for row in singles})


def _p(heads: Findings) -> str:
    adjusted = f" (adjusted for {len(heads)} variants)" if len(heads) > 1 else ""
    return f"{say_p(heads.strongest().p_adjusted)}{adjusted}"


def _how_exposed(heads: Findings, singles: Findings, noun: str, recipe: Recipe, size: int) -> str:
    together, shown = f"All {plural(noun)} together: {_p(heads)}.", singles.shown()
    if not shown:
        return together
    most = max(shown, key=lambda row: row.value)
    alone = _outsider(most, recipe, size) if noun == "canary" else _stands_out(most, heads.strongest(), recipe)
    least = min(shown, key=lambda row: row.value)
    other = "" if len(shown) < 2 else f" The least exposed of those has {least.value:.1f} bits."
    return f"{together} {alone}{other}"


def _stands_out(most: Finding, head: Finding, recipe: Recipe) -> str:
    """Describe what anyone who can query the model and knows other secrets of the kind could do."""
    unseen = head.params["unseen"]
    as_likely = round((1 + unseen) * 2**-most.value) - 1
    over = f", summed over {recipe.seeds} models" if recipe.seeds > 1 else ""
    occurred = "occurred" if recipe.trained is None else "is listed as having occurred"  # memlib has not seen that text
    return (
        f"The secret that stands out most {occurred} {_times(most)} in the training data. Of {unseen} secrets of "
        f"its kind that were never seen, {as_likely or 'none'} {'is' if as_likely < 2 else 'are'} as likely{over}. Whoever "
        "can ask the model how likely a text is can tell such a secret from others of its kind."
    )


def _outsider(most: Finding, recipe: Recipe, size: int) -> str:
    """Describe what anyone who can query the model could do."""
    bits, space = most.value, math.log2(size)
    mean = f", the mean over {recipe.seeds} models" if recipe.seeds > 1 else ""
    law = " (extrapolated)" if most.params.get("method") == "extrapolated" else ""
    fraction = f" (1 in {2 ** (bits - 1):,.0f})" if bits - 1 < READABLE_BITS else ""
    return (
        f"The most exposed canary occurred {_times(most)} in the training data and has {bits:.1f} bits of "
        f"exposure{law}{mean}: whoever can ask the model how likely a text is needs only one in "
        f"2^{bits - 1:.1f}{fraction} of the guesses needed on average without the model. There are 2^{space:.1f} "
        f"possible canaries: at {space:.1f} bits the first guess is right."
    )


def _missed(heads: Findings, singles: Findings, noun: str, recipe: Recipe) -> str:
    """State what was tested and what would have been found; finding nothing is no proof of absence."""
    head, total = heads.strongest(), _count(singles)
    too_small = cannot_reject(head, len(heads))
    more = " List more unseen secrets." if noun == "secret" else " Raise score.references or the size of the format."
    parts = [f"{total} {plural(noun, total)}{f' in {recipe.seeds} models each' if recipe.seeds > 1 else ''}: {_p(heads)}."]
    if too_small:
        parts.append(f"A test of this size cannot show anything: no rank gives a p below {format_p(head.smallest_p)}.{more}")
    alone = max((row.detectable for row in singles if row.detectable is not None), default=None)
    if alone is not None:
        parts.append(f"A single {noun} would have been found at {alone:.1f} bits{_unit(noun)} or more.")
    elif not too_small:
        parts.append(f"No single {noun} could have been found in a test of this size.{more}")
    if head.detectable is not None and len(singles) > len(heads):
        parts.append(f"All together would have been found at a mean of {head.detectable:.1f} bits or more.")
    parts.append("A smaller exposure may exist.")
    bits = largest([row.upper_bound for row in heads])
    if bits is not None:
        parts.append(f"None has more than {bits:.1f} bits{_unit(noun)} (95 % upper bound).")
    return " ".join(parts)


def _unit(noun: str) -> str:
    return " of exposure among unseen secrets of its kind" if noun == "secret" else " of exposure"


def _times(row: Finding) -> str:
    """Return how often a canary occurred, in words."""
    count = row.params["insertions"]
    return f"{count} {'time' if count == 1 else 'times'}"


def _extracted(rows: Findings) -> tuple[float, int, str]:
    """Return the most secrets that searches without known symbols extracted in a variant, their number, and the variant."""
    found: dict[str, tuple[float, int]] = {}
    for row in rows.all("extracted", known=0):  # one row for each number of insertions
        if row.params["search"] not in ("shortest_path", "answers"):
            continue
        name = str(row.params.get("variant", ""))
        hits, searched = found.get(name, (0.0, 0))
        found[name] = hits + row.value * row.n, searched + row.n
    variant, (hits, searched) = max(found.items(), key=lambda item: item[1][0], default=("", (0.0, 0)))
    return hits, searched, variant


def _said_of_search(hits: float, searched: int, variant: str, recipe: Recipe) -> str:
    number = f"{hits:.0f}" if abs(hits - round(hits)) < 1e-6 else f"{hits:.1f}"
    mean = f" on average over {recipe.seeds} models" if recipe.seeds > 1 else ""
    where = f" under variant {variant!r}" if len(recipe.variants) > 1 else ""
    how = "Given the text around the secrets, but none of their symbols, a search extracted"
    if isinstance(recipe.trained, ServedSpec) and recipe.extraction is not None:
        how = f"Given the text before the secrets, {recipe.extraction.answers:,} answers of the service brought back"
    return f"{how} {number} of {searched}{mean}{where}."


def _of_privacy(rows: Findings) -> Verdict | None:
    """State the claim of privacy that a canary refutes; None if no claim is refuted, which confirms none."""
    refuted = rows.all("privacy_claim").shown()
    if not refuted:
        return None
    worst = refuted.strongest()
    claim = worst.params
    name = f" of variant {claim['variant']!r}" if claim.get("variant") else ""
    return Verdict(
        SHOWN,
        f"The training{name} is not as private as claimed.",
        f"It claims epsilon {claim['epsilon']:.3g} at delta {claim['delta']:g}; canary {claim['canary']}, which occurred in "
        f"{claim['insertions']} {'window' if claim['insertions'] == 1 else 'windows'}, ranks too low for that "
        f"({say_p(worst.p_adjusted)}): epsilon is at least {floored(worst.value):.2f}. Noise or clipping may be "
        "missing.",
    )
