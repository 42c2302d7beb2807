"""Exposure audit: how many bits of a secret in its training data a sequence model gives away (Carlini 2019).

Canaries are drawn at random from a space R of candidates and inserted into the training text. The audit uses only the
model's log-perplexities of candidates:

    rank(s[r])      number of candidates that the model finds at least as likely as s[r]  (Definition 2)
    exposure(s[r])  log2 |R| - log2 rank(s[r])                                            (Definition 4)

so a canary of exposure e is found 2^(e - 1) times sooner than by guessing without the model, which takes |R| / 2 guesses on
average. A canary that was never inserted is a candidate like any other: its rank is uniform and 2^-exposure is uniform on
(0, 1]. That is the null; the p-value of a canary is rank / |R|. High exposure is confirmed by extraction: a search for the
likeliest candidates.

Secrets that people chose are not uniform in R: a model that knows this kind of secret also assigns high probability to
secrets that it never saw. The rank of such a secret is therefore compared with the ranks of other secrets of the same kind
that the text does not contain; without these there is no test.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from memlib.audits.attacks import GENERATED, PROBABILITIES, TEXTS, Attack, DataFacts, in_family, metric_begins
from memlib.audits.base import Audit, Leak, Metric
from memlib.audits.cells import CellSpec
from memlib.audits.exposure.answers import judge, rankings
from memlib.audits.exposure.recipe import DOCUMENTS as CONTINUED
from memlib.audits.exposure.recipe import HEADLINE, HEADLINES, NOT_SHOWN, PRIVACY, Recipe
from memlib.audits.exposure.tables import DOCUMENTS, EXTRACTION, UNITS
from memlib.specs.text import PairsFileSource, TopicPairsSource
from memlib.store import Store
from memlib.tables import COMMON


def _in_brief(params: Mapping[str, Any], headline: Mapping[str, Any]) -> bool:
    """Return whether a finding with these params is part of the brief listing.

    Single canaries, searches that were given symbols of the secret, and shares of documents are left out: the page lists
    them, and the verdict names the largest.
    """
    return (
        not {"canary", "side"} & params.keys() and params.get("search") in (None, "shortest_path") and not params.get("known")
    )


def _limits(recipe: Recipe) -> Iterable[str]:
    """Yield sentences on what the recipe cannot show, whatever the data."""
    if recipe.discoverable is not None and recipe.score.bound is not None:
        yield (
            "the test of documents (discoverable) has no bound, so this run cannot end as bounded, even if all canaries stay "
            "below score.bound: leave one of the two out"
        )
    chosen = recipe.training is not None and recipe.training.patience is not None
    if chosen and recipe.canaries.file is not None and recipe.canaries.unseen is None:
        yield (
            "training.patience chooses the checkpoint by the held-out text, so that the model may fit this text a little "
            "better than other text, but given secrets are compared with those in it: leave patience out, or give "
            "canaries.unseen"
        )


def _revealed(store: Store, recipe: Mapping[str, Any], artifacts: Mapping[str, str]) -> dict[str, list[dict[str, Any]]]:
    from memlib.audits.exposure.reveal import revealed  # loads torch

    return revealed(store, recipe, artifacts)


ATTACKS = (
    Attack(
        "secrets in training text: exposure", TEXTS, "(ii) exfiltration", "likelihoods of chosen texts", PROBABILITIES,
    ),
    Attack(
        "secrets in training text: extraction", TEXTS, "(iii) regurgitation of training data",
        "next-token probabilities", PROBABILITIES, metric_begins("extracted"),
        "its recipe did not ask for it (extraction)",
    ),
    Attack(
        "continuation of training documents ((n, p)-discoverable)", TEXTS, "(iii) regurgitation of training data",
        "sampled text after a known beginning", GENERATED, in_family("documents"),
        "its recipe did not ask for it (discoverable)",
    ),
)  # fmt: skip


def _cell(facts: DataFacts) -> CellSpec | str:
    """Return an exposure audit of secrets that are inserted into the text."""
    if facts.model is not None:
        return "for a given model it needs a list of the secrets in its text; see memlib init --for language-model"
    recipe = "exposure_translation" if isinstance(facts.source, PairsFileSource | TopicPairsSource) else "exposure_smoke"
    return CellSpec(name="exposure", recipe=recipe, set={"title": "Exposure of inserted secrets"})


LEAKS = {
    HEADLINE: Leak(
        "secrets in the training text are more likely than others of their format",
        "Remove secrets from the text, deduplicate it, or train with differential privacy, and audit again.",
    ),
    CONTINUED: Leak(
        "training documents are continued from their beginnings more readily than others",
        "Deduplicate the documents or train with differential privacy, and audit again.",
    ),
    PRIVACY: Leak(
        "the claim of epsilon {epsilon:g} is refuted",
        "Withdraw the claim of differential privacy, and look for the error in the accountant or in the training.",
    ),
}

AUDIT = Audit(
    name="exposure",
    question="How many bits of a secret in its training text does a sequence model give away?",
    recipe=Recipe,
    tables=COMMON | {"units": UNITS, "extractions": EXTRACTION, "documents": DOCUMENTS},
    in_brief=_in_brief,
    headlines=HEADLINES,
    leaks=LEAKS,
    limits=_limits,
    revealed=_revealed,
    gate=judge,
    rankings=rankings,
    metrics={
        "exposure": Metric("bits by which a secret is more likely than others of its format"),
        "exposure_among_unseen": Metric("bits by which a secret is more likely than unseen ones"),
        "document_bits": Metric("bits by which training documents are more likely than others"),
        "privacy_claim": Metric("lower bound of epsilon"),
    },
    attacks=ATTACKS,
    cell=_cell,
    not_shown=NOT_SHOWN,
)
