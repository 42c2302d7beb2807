"""Forgetting: has this model used, or forgotten, this data set? (Liu and Tsaftaris 2020)

The query set D_Q is the data in question, D_C a calibration set of the same domain that shares no example with it.
Query models train on D_Q, calibration models on D_C, both as the target did. Of every model only the confidence in
the true class of each example of D_Q is used, and its distribution:

    rho = KS(query model, target) / KS(query model, calibration model)        (Eqs. 2 to 4)

near 0 where the target treats D_Q as a model that trained on it, 1 where it treats it as one that did not. "rho < 1:
not forgotten" (Algorithm 1) is no verdict: without D_Q rho scatters around 1, a target that has learnt the domain of D_Q
elsewhere treats it as known, and likelihood ratios of query and calibration models move with the target's overall
confidence. So rho is an estimate, and the verdict rests on a random draw (see `trace`): D_Q and withheld examples H were
drawn from one pool U, H was given to nobody, and the target is asked for both.

    retained            D_Q ranks above H, beyond redraws of both
    unlearned too hard  it ranks below: a trace of another kind
    forgotten           neither, and examples that are known to be in the target are found where D_Q is not
    no trace found      neither, without a positive control that is found in 80 % of redraws
    undecided           nothing was withheld
"""

from memlib.audits.forgetting.distances import Distances, Observed, score, score_examples
from memlib.audits.forgetting.recipe import (
    FORGOTTEN,
    NO_TRACE,
    NULL,
    OUTCOMES,
    RETAINED,
    REVERSED,
    TARGET,
    UNDECIDED,
    Config,
    Recipe,
    VerdictSpec,
)
from memlib.audits.forgetting.summary import curves, in_brief, summarize
from memlib.audits.forgetting.trace import Pool, follows
from memlib.audits.forgetting.verdict import limits, outcome, verdict

__all__ = [
    "FORGOTTEN",
    "NO_TRACE",
    "NULL",
    "OUTCOMES",
    "RETAINED",
    "REVERSED",
    "TARGET",
    "UNDECIDED",
    "Config",
    "Distances",
    "Observed",
    "Pool",
    "Recipe",
    "VerdictSpec",
    "curves",
    "follows",
    "in_brief",
    "limits",
    "outcome",
    "score",
    "score_examples",
    "summarize",
    "verdict",
]
