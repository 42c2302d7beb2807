"""Exposure: how many bits has a sequence model given away of a secret in its training data? (Carlini 2019)

Canaries are drawn at random from a space R of candidates and inserted into the training text. Of a model only the
log-perplexity of candidates is used:

    rank(s[r])      how many candidates the model finds at least as likely        (Definition 2)
    exposure(s[r])  log2 |R| - log2 rank(s[r])                                    (Definition 4)

so that a canary of exposure e is found in 2^-e of the guesses that it takes without the model. A canary that was never
inserted is one of R as any other: its rank is uniform, 2^-exposure is uniform on (0, 1], and that is the null; the
p-value of a canary is rank / |R|. High exposure is confirmed by extraction: a search for the likeliest candidates.

Secrets that people chose are not uniform in R: a model that knows their kind finds even those likely that it never saw. So
their rank is compared with that of other secrets of their kind, which the text does not hold; without these there is no test.
"""

from collections.abc import Mapping
from typing import Any

from memlib.audit import Audit
from memlib.audits.exposure.recipe import Recipe
from memlib.audits.exposure.tables import DOCUMENTS, EXTRACTION, UNITS
from memlib.store import Store


def _in_brief(params: Mapping[str, Any], headline: Mapping[str, Any]) -> bool:
    """Whether a finding with these params is shown in brief: not canary by canary, nor searches that were told something.

    Shares of documents are on the page; the verdict names the largest.
    """
    return (
        not {"canary", "side"} & params.keys() and params.get("search") in (None, "shortest_path") and not params.get("known")
    )


def _revealed(store: Store, recipe: Mapping[str, Any], artifacts: Mapping[str, str]) -> dict[str, list[dict[str, Any]]]:
    from memlib.audits.exposure.reveal import revealed  # loads torch

    return revealed(store, recipe, artifacts)


AUDIT = Audit(
    name="exposure",
    question="How many bits has a sequence model given away of a secret in its training text?",
    recipe=Recipe,
    tables={"units": UNITS, "extractions": EXTRACTION, "documents": DOCUMENTS},
    in_brief=_in_brief,
    revealed=_revealed,
)
