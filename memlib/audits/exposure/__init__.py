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

from memlib.audits.exposure.curves import curves, empty_extractions
from memlib.audits.exposure.evidence import Held, evidence_of_drawn, evidence_of_given, held
from memlib.audits.exposure.privacy import epsilon_bound, refuted_p
from memlib.audits.exposure.recipe import Config, ExtractionSpec, Recipe, ReportSpec
from memlib.audits.exposure.scores import (
    Scored,
    canary_p,
    choose_method,
    exposure_by_sampling,
    exposure_of_rank,
    last_checkpoints,
    score,
)
from memlib.audits.exposure.summary import in_brief, sign_flip_p, summarize
from memlib.audits.exposure.verdict import verdict

__all__ = [
    "Config",
    "ExtractionSpec",
    "Held",
    "Recipe",
    "ReportSpec",
    "Scored",
    "canary_p",
    "choose_method",
    "curves",
    "empty_extractions",
    "epsilon_bound",
    "evidence_of_drawn",
    "evidence_of_given",
    "exposure_by_sampling",
    "exposure_of_rank",
    "held",
    "in_brief",
    "last_checkpoints",
    "refuted_p",
    "score",
    "sign_flip_p",
    "summarize",
    "verdict",
]
