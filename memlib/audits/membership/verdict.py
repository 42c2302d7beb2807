"""The verdict of a membership audit in plain words."""

from collections.abc import Iterator

from memlib.audits.asked import SERVICE, VOID, is_void, said_of_service
from memlib.audits.membership.alarms import tail_bound
from memlib.audits.membership.privacy import guesses_of
from memlib.audits.membership.recipe import FEWEST_COMPARED, HEADLINES, MEMBERS, PRIVACY, Recipe
from memlib.findings import (
    BOUNDED,
    DESCRIPTIVE,
    INCONCLUSIVE,
    SHOWN,
    Finding,
    Findings,
    Verdict,
    Word,
    cannot_reject,
    families_of,
    word_of,
)
from memlib.report.format import ceiled, floored, format_interval, percent, say_p
from memlib.stats.epsilon import one_run_ceiling

NAMES = {
    "lira": "LiRA",
    "lira_offline": "offline LiRA",
    "rmia": "RMIA",
    "rmia_offline": "offline RMIA",
    "calibrated_loss": "the calibrated loss",
    "loss": "the loss",
    "gap": "right answers alone",
    "trajectory": "the trajectory through training",
    "ratio": "the log ratio to the reference",
    "ez": "the error zone (EZ)",
    "wbc": "windows (WBC)",
    "min_k": "Min-K%++",
    "zlib": "the zlib ratio",
    "scores": "the given scores",
}
FEW_SHADOWS = 16
NAMED = 3  # numbers that are unlike those of the shadow models and named in a sentence
BLIND = "blind_auc"


def limits(recipe: Recipe) -> Iterator[str]:
    """Yield sentences on what the recipe cannot show, whatever the data."""
    target, score = recipe.target, recipe.score
    if target.is_external and target.drawn == "unknown":
        yield (
            "the target's training examples were not drawn at random (target.drawn), so nothing is tested: members may "
            "differ from non-members in more than membership"
        )
    if target.is_external and recipe.shadows.count:
        yield (
            "the shadow models are trained by memlib; where they are unlike the target (see its likeness), attacks are "
            "weaker than they could be"
        )
    if target.outputs is not None:
        yield "the target's outputs are supplied by its owner, who can forge them"
    if recipe.reads_scores:
        yield "scores are taken as they are given: how they were computed, and whether members were used for it, is not known"
    if recipe.reads_losses:
        yield (
            "losses do not tell the target's answers: an answer counts as right where the true class has more than half of "
            "the probability"
        )
    smallest, level = 1 / (1 + score.redraws), score.level
    if recipe.is_drawn and smallest > level:
        yield (
            f"with {score.redraws} redraws no p-value lies below {smallest:.2g}, but the level is {level:.2g}: raise "
            "score.redraws"
        )
    if recipe.reads_texts:
        yield from _text_limits(recipe)
    elif not recipe.shadows.count and not recipe.reads_scores:
        yield "there are no shadow models, so only the attacks loss and gap are made, and little memory is found"
    elif 0 < recipe.shadows.count < FEW_SHADOWS:
        yield f"{recipe.shadows.count} shadow models say little of single examples: raise shadows.count"
    without = recipe.shadows.count * (1 - recipe.shadows.share)
    if target.is_external and recipe.is_drawn and min(recipe.shadows.count, 2 * without) < FEWEST_COMPARED:
        yield (
            f"an example has {without:.0f} shadow models that were not trained on it, too few to compare members with "
            "non-members by, so the draw is only taken as declared: raise shadows.count"
        )
    if recipe.is_drawn and recipe.left_out:
        names = ", ".join(NAMES[name] for name in recipe.left_out)
        yield f"attacks that are possible are left out of score.attacks ({names}), so the verdict cannot be bounded"
    if recipe.is_drawn and recipe.split.train_per_class is not None and not recipe.reads_texts:
        yield from _tail_limits(recipe, recipe.split.train_per_class)
    if recipe.privacy is not None:
        yield from _claim_limits(recipe)


def _tail_limits(recipe: Recipe, per_class: int) -> Iterator[str]:
    """Yield what a model without memory would be bounded by, if the recipe asks for less."""
    score, share = recipe.score, recipe.coins or 0.5
    most = 2 * per_class  # at least two classes
    inside = round(share * most)
    met = tail_bound(score.model_copy(update={"tail_bound": None}), inside, most - inside)
    if score.tail_bound is not None and score.tail_bound < met:
        yield (
            f"with {most} examples in two classes, a model without memory is bounded at {percent(met)} of true alarms, not "
            f"at score.tail_bound ({percent(score.tail_bound)}): raise it, or leave it out"
        )


def _text_limits(recipe: Recipe) -> Iterator[str]:
    if getattr(recipe, "is_served", False):
        yield (
            "not possible with the access of a service: Min-K%++, which needs the whole vocabulary's probabilities, and "
            "attacks by shadow models"
        )
    if recipe.target.is_external:
        yield (
            "documents are scored in windows of data.window tokens, each from its own start; a target that was trained on "
            "other windows may remember more of them"
        )
    if not recipe.shadows.count:
        yield "without shadow models, how the attacks do on other models trained like the target is not known"


def _claim_limits(recipe: Recipe) -> Iterator[str]:
    claim, pool = recipe.privacy, recipe.split.train_per_class
    assert claim is not None
    if claim.chosen_among > 1:
        yield (
            f"the audited model was chosen among {claim.chosen_among} runs; the accountant of one run does not cover the "
            "choice, so the claim that is tested is not that of the whole procedure"
        )
    if pool is None:
        return
    most = 2 * pool  # at least two classes
    ceiling = max((one_run_ceiling(r, most, delta=claim.delta, level=0.05) for r in guesses_of(most)), default=0.0)
    if ceiling < claim.epsilon:
        yield (
            f"about {most} coins refute at most epsilon {ceiling:.2f}, but {claim.epsilon:g} is claimed: raise "
            "split.train_per_class"
        )


def verdict(findings: Findings, recipe: Recipe) -> Verdict:
    """State the run's verdict in plain words.

    Args:
        recipe: target, attacks and claim.
    """
    word = word_of(findings, HEADLINES, refuting=(PRIVACY,))
    sentence = _sentence(word, findings)
    if word != DESCRIPTIVE and is_only_declared(findings):
        sentence = f"If members were drawn at random, as declared: {sentence[0].lower()}{sentence[1:]}"
    return Verdict(word, sentence, " ".join(_explained(word, findings, recipe)))


def is_only_declared(findings: Findings) -> bool:
    """Return whether a random draw was declared that could not be examined both without and by models like the target."""
    declared = findings.get("declared_draw")
    return declared is not None and not declared.params["examined"]


def _sentence(word: Word, findings: Findings) -> str:
    shown = findings.tests(MEMBERS).shown()
    claim = findings.get("privacy_claim")
    if word == SHOWN and claim is not None and claim.verdict == SHOWN and not shown:
        return _refuted(claim)
    if word == SHOWN:
        best = shown.strongest()
        also = f" {_refuted(claim)}" if claim is not None and claim.verdict == SHOWN else ""
        name, p = NAMES[best.params["attack"]], say_p(best.p_adjusted)
        if not shows_alone(findings, "auc"):
            return (
                f"The model reveals some who were in its training set: for {name}, members stand out at the top of the "
                f"ranking (AUC {best.value:.2f} and top together, {p}).{also}"
            )
        return (
            f"The model reveals who was in its training set: {name} can distinguish members from non-members "
            f"(AUC {best.value:.2f}, {p}).{also}"
        )
    if word == BOUNDED:
        worst = max(row.upper_bound or 1.0 for row in findings.tests(MEMBERS))
        tails = findings.all("true_alarms_limit")
        most = max(row.value for row in tails)
        return (
            f"Members could not be told from non-members: none of {_tried(findings)} has an AUC above {ceiled(worst):.2f}, "
            f"or names more than {percent(ceiled(10 * most) / 10)} of the members at "
            f"{percent(tails[0].params['false_alarms'])} false alarms{_by_one(findings.head)} (95 % limits)."
        )
    if word == INCONCLUSIVE and is_void(findings.get(SERVICE)):
        return f"Members could not be told from non-members. {VOID}"
    if word == INCONCLUSIVE:
        return "Members could not be told from non-members; this does not show that nobody can."
    head, declared, unpaired = findings.head, findings.get("declared_draw"), findings.get("unpaired")
    if unpaired is not None and unpaired.value == unpaired.n:
        return "Nothing in this design can be tested: no class has members and non-members."
    if declared is not None and declared.params["contradicted"]:
        tests = sum(name.startswith("p_") for name in declared.params)
        over = f" over its {tests} tests" if tests > 1 else ""
        return f"Nothing was tested: the declared draw is contradicted ({say_p(declared.value)}{over})."
    return (
        f"Members and non-members differ in the model's answers (AUC {head.value:.2f}), but nothing was tested: membership "
        "was not drawn at random."
        if head.low is not None and head.low > 0.5
        else "Nothing was tested: membership was not drawn at random."
    )


def _by_one(head: Finding) -> str:
    return " with one threshold for all classes" if head.params["strata"] > 1 else ""


def reached(row: Finding) -> str:
    """Return how many non-members reach the threshold of a finding on true alarms, in words."""
    number = row.params["reached_by"]
    return f"{number:,} of {row.params['nonmembers']:,} non-members {'reaches' if number == 1 else 'reach'}"


def _tried(findings: Findings) -> str:
    """Return the attacks that were tried, in words."""
    names = [NAMES[row.params["attack"]] for row in findings.tests(MEMBERS)]
    return f"{len(names)} attacks ({', '.join(names)})" if len(names) > 1 else f"one attack ({names[0]})"


def shows_alone(findings: Findings, part: str) -> bool:
    """Return whether the strongest shown attack is significant by one part of its test, "auc" or "tail", over all attacks."""
    tests = findings.tests(MEMBERS)
    best = tests.shown().strongest()
    alone = findings.get(f"p_of_{part}_alone", attack=best.params["attack"])
    return alone is not None and len(tests) * alone.value <= (best.alpha or 0.0)


def _refuted(claim: Finding) -> str:
    """State that a claim is refuted, in terms of the coins, each of which puts one unit in or leaves it out."""
    params = claim.params
    allowed = params["compared_with"]
    said = "" if allowed == params["epsilon"] else f" for what the coins decided, it allows at most {allowed:g}, and"
    return (
        f"The claim of epsilon {params['epsilon']:g} (delta {params['delta']:g}) is refuted:{said} epsilon is at least "
        f"{floored(claim.value):.2f} ({say_p(claim.p_adjusted)})."
    )


def _explained(word: Word, findings: Findings, recipe: Recipe) -> Iterator[str]:
    """Yield the sentences behind the verdict."""
    head = findings.head
    yield from said_of_service(findings)
    if word == DESCRIPTIVE:
        yield from _contradicted(findings)
    yield from _compared(head)
    if recipe.privacy is not None and findings.get("privacy_claim") is None:
        yield f"The claim of epsilon {recipe.privacy.epsilon:g} was not tested."
    yield from _alarms(findings, head.params["attack"])
    if word == DESCRIPTIVE:
        yield from _blind(findings)
        return
    yield (
        f"{_drawn(findings)}; the p-value says how rarely a model whose answers do not depend on that draw would do as well, "
        f"however it was trained (all attacks together, level {recipe.score.level:g})."
    )
    unadjusted = findings.get("auc_unadjusted", attack=head.params["attack"])
    if unadjusted is not None:
        yield (
            f"All scores are adjusted for how well models that were not trained on the {head.params['over']} know them, so "
            "that a difference between the sides that the declaration hides does not count as memory; without that, "
            f"{NAMES[head.params['attack']]} has an AUC of {unadjusted.value:.2f}."
        )
    if word == INCONCLUSIVE:
        yield from _unbounded(findings, recipe)
    if word == BOUNDED:
        yield from _limited(findings)
    if recipe.target.is_external:
        yield from _unlike(findings)


def _compared(head: Finding) -> Iterator[str]:
    """Yield the AUC of the headline attack, in words."""
    pairs = "pairs of one class" if head.params["strata"] > 1 else "pairs"
    compared = f"{head.params['members']:,} members and {head.params['nonmembers']:,} non-members"
    if (head.low, head.high) == (0.0, 1.0):
        yield f"Of {compared}, no two that could be compared are of one class."
        return
    yield (
        f"By {NAMES[head.params['attack']]}, a member ranks above a non-member in {percent(head.value, 0)} of {pairs} (95 %: "
        f"{format_interval(head, _percent)}; 50 % by guessing), from {compared}."
    )


def _unbounded(findings: Findings, recipe: Recipe) -> Iterator[str]:
    """Yield why nothing is bounded, and what would have been found."""
    copies, unpaired, head = findings.get("copied_nonmembers"), findings.get("unpaired"), findings.head
    if recipe.left_out:
        left_out = ", ".join(NAMES[name] for name in recipe.left_out)
        yield f"Nothing is bounded either, as attacks that were possible were not run: {left_out} (score.attacks)."
    if unpaired is not None and unpaired.value > unpaired.params["most"] * unpaired.n:
        yield (
            f"Nothing is bounded either, as {int(unpaired.value):,} of {unpaired.n:,} {unpaired.params['over']} are of "
            "classes with members alone or non-members alone, which nothing compares."
        )
    uneven = findings.get("uneven")
    if uneven is not None and uneven.params["members"] > uneven.params["most"] * head.params["members"]:
        yield (
            f"Nothing is bounded either, as {uneven.params['members']:,} members are of classes with a larger share of "
            "members than others, and are not counted."
        )
    if copies is not None and copies.value > copies.params["most"] * copies.n:
        has = "has" if copies.value == 1 else "have"
        yield f"Nothing is bounded either, as {_copied(copies)} {has} a copy among the members."
    if cannot_reject(head, families_of(findings, HEADLINES)) or head.detectable is None:
        yield "With so few examples or redraws, or answers that are all alike, no result could have been significant."
    else:
        yield (
            f"An AUC of {head.detectable:.2f} would have been found by these attacks with a power of 80 % if all members "
            "stood out alike."
        )


def _limited(findings: Findings) -> Iterator[str]:
    """Yield what limits leave open."""
    copies = findings.get("copied_nonmembers")
    if copies is not None:
        yield f"The limits leave out {_copied(copies)} with a copy among the members."
    yield (
        "Members who are fewer than this limit may still be named without fail, and at fewer false alarms nothing is bounded."
    )


def _drawn(findings: Findings) -> str:
    """State that members were drawn at random: as a fact only where memlib drew them."""
    declared, over = findings.get("declared_draw"), findings.head.params["over"]
    if declared is None:
        return f"Which {over} were members was drawn at random"
    if not declared.params["examined"]:
        return f"As declared (target.drawn), it was drawn at random which {over} were members"
    return (
        f"As declared, it was drawn at random which {over} were members; neither a comparison without the model nor one by "
        f"models that were not trained on them contradicts it ({say_p(declared.value)})"
    )


def _copied(copies: Finding) -> str:
    near = copies.params["near"]
    alike = f", or images whose small versions differ by at most {near:g} grey levels" if near else ""
    if shared := copies.params.get("shared"):
        alike = f", or documents that have {percent(shared, 0)} of their runs of four words in common"
    return f"{int(copies.value):,} of {copies.n:,} non-members (equal content{alike})"


def _percent(value: float) -> str:
    return percent(value, 0)


def _alarms(findings: Findings, attack: str) -> Iterator[str]:
    """Yield the true alarms of the headline attack at its smallest controlled rate of false alarms."""
    rows = sorted(findings.all("true_alarms", attack=attack), key=lambda row: float(row.params["false_alarms"]))
    above = findings.get("above_all", attack=attack)
    if rows:
        row = rows[0]
        low, high = (percent(row.params[end], 2) for end in ("rate_low", "rate_high"))
        yield (
            f"A threshold that {reached(row)} (true rate of false alarms {low} to {high}) names {percent(row.value)} of the "
            f"members ({format_interval(row, percent)})."
        )
    elif above is not None:
        yield (
            f"{percent(above.value)} of the members ({format_interval(above, percent)}) rank above all "
            f"{above.params['nonmembers']:,} non-members."
        )
    uneven = findings.get("uneven")
    if uneven is not None and (rows or above is not None):
        yield (
            f"It is counted without {int(uneven.value):,} {uneven.params['over']} drawn by lot, so that every class has the "
            "same share of members."
        )


def _blind(findings: Findings) -> Iterator[str]:
    """Yield the result of the blind baseline where no random draw was declared."""
    blind = findings.get(BLIND)
    if blind is not None and findings.get("declared_draw") is None:
        yield (
            "Without the model, from ids, sizes, dates and content alone, members can be told from non-members with an AUC "
            f"of {blind.value:.2f} ({format_interval(blind, '{:.2f}'.format)}). An attack that does better than that shows "
            "no memory either: a model of other data of the members' kind does so, too. The audit neither shows nor "
            "excludes that these examples were used."
        )


def _contradicted(findings: Findings) -> Iterator[str]:
    """Yield what contradicts a declared draw."""
    declared = findings.get("declared_draw")
    if declared is not None and declared.params["contradicted"]:
        reason = str(declared.params["reason"])
        yield (
            f"The owner declared that members were drawn at random ({declared.params['drawn']}), but {reason}. The attacks "
            "may see that difference instead of memory, so nothing is tested, and the audit neither shows nor excludes that "
            "these examples were used."
        )


def _unlike(findings: Findings) -> Iterator[str]:
    """Yield a caution where the shadow models are unlike the target."""
    unlike = findings.all("likeness", word="unlike")
    if unlike:
        named = ", ".join(str(row.params["measure"]).replace(", ", " of ") for row in unlike[:NAMED])
        of = f"{len(unlike)} of {len(findings.all('likeness'))} numbers"
        yield (
            f"The shadow models are unlike the target in {of} (such as the {named}): the test holds all the same if members "
            "were drawn at random, but attacks with shadow models like it may find much more."
        )
