"""Forgetting: has this model used, or forgotten, this data set? (Liu and Tsaftaris 2020)

The query set D_Q is the data in question, D_C a calibration set of the same domain that shares no example with it.
Query models train on D_Q, calibration models on D_C, both as the target did. Of every model only the confidence in
the true class of each example of D_Q is used, and its distribution:

    rho = KS(query model, target) / KS(query model, calibration model)        (Eqs. 2 to 4)

near 0 where the target treats D_Q as a model that trained on it, 1 where it treats it as one that did not. "rho < 1:
not forgotten" (Algorithm 1) is no verdict: without D_Q rho scatters around 1, and a target that has learnt the domain
of D_Q elsewhere treats it as known; and as a KS distance has no direction, a target that is surer of D_Q than the query
models has a large rho. So the verdict compares the target with models which the auditor trains: null models, whose
data hold images like D_Q but none of it, and retained models, whose data hold a known share of it.

    retained   fewer than alpha of null models would lie as low
    forgotten  null models would, and fewer than alpha of retained models as high
    undecided  neither can be ruled out, or the target is unlike any of the auditor's models

What is compared is the likelihood ratio of the target's confidences, example by example, under query and calibration
models (as in and out models of LiRA, Carlini 2022), which has a direction; or rho itself. Both confuse domain and
membership, which is why null models should have seen images like D_Q.
"""

from memlib.audits.forgetting.distances import Distances, Observed, score, score_examples
from memlib.audits.forgetting.recipe import (
    FORGOTTEN,
    NULL,
    RETAINED,
    TARGET,
    UNDECIDED,
    Config,
    Recipe,
    VerdictSpec,
)
from memlib.audits.forgetting.summary import curves, in_brief, summarize
from memlib.audits.forgetting.verdict import Judge, decide

__all__ = [
    "FORGOTTEN",
    "NULL",
    "RETAINED",
    "TARGET",
    "UNDECIDED",
    "Config",
    "Distances",
    "Judge",
    "Observed",
    "Recipe",
    "VerdictSpec",
    "curves",
    "decide",
    "in_brief",
    "score",
    "score_examples",
    "summarize",
]
