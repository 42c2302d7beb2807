"""Self-influence: which training examples does a model lean on itself for? (TracInCP; Pruthi 2020, Hartley 2022, A.5)

    TracInCP(x) = sum over checkpoints i of  learning_rate_i * |gradient of loss(w_i, x)|^2

An example with high self-influence moves the model much by itself: mislabelled, atypical, or carrying something that
no other example has. It says what could be memorized and where to look first, not that it was.
"""

from memlib.audits.self_influence.recipe import CheckpointSpec, Recipe, ReportSpec
from memlib.audits.self_influence.scores import choose_checkpoints, score, self_influence
from memlib.audits.self_influence.summary import curves, in_brief, resampled_shares, summarize, verdict

__all__ = [
    "CheckpointSpec",
    "Recipe",
    "ReportSpec",
    "choose_checkpoints",
    "curves",
    "in_brief",
    "resampled_shares",
    "score",
    "self_influence",
    "summarize",
    "verdict",
]
