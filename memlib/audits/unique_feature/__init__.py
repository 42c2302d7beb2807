"""Unique features: does a classifier remember something that stood in a single training image? (Hartley 2023, 2022)

The feature (a name burnt into an X-ray, a patch, an odd coordinate) is put into clean examples. A model that has
memorized it is surer of the canary's label on examples with the feature (x_u) than on the same ones without (x_c):

    M_white = mean over x in D_y of  P(y | x_u) - P(y | x_c)                 knows data and label   (2023, Eq. 1)
    M_grey  = max over labels i of   mean over D_yi of P(yi | x_u) - P(yi | x_c)   knows the data   (2023, Eq. 2)
    M_black = max over labels i of   mean over D_r of P(yi | x_u) - P(yi | x_c)    any other data   (2023, Eq. 3)
    M_w     = mean over D_y of log P(y | x_u) - log P(y | x_r)     x_r: a random partner            (2022, 2.2)
    M_kl    = mean over D_r of KL(f(x_c) || f(x_u)) - KL(f(x_c) || f(x_r))                          (2022, Eq. 1)

The published criterion, a paired t-test over examples, speaks of one net and calls many nets memorizing that never
saw the feature. So every canary net has a control: same seed, same examples, the feature left out. The maxima of grey and
black box are taken of scores that are centred at each label by the controls of other seeds. The test exchanges canary nets
and controls within pairs; a single net's calibrated p is the rank of its score among the controls of other seeds.
"""

from memlib.audits.unique_feature.curves import (
    canary_curves,
    draw_curves,
    epoch_curves,
    latent_curves,
    removal_curves,
    strongest,
)
from memlib.audits.unique_feature.maxima import ByLabel, maxima
from memlib.audits.unique_feature.measures import (
    divergence,
    m_kl,
    m_of_label,
    m_of_labels,
    m_w,
)
from memlib.audits.unique_feature.own import check_nulls, own_units, summarize_own
from memlib.audits.unique_feature.recipe import (
    Cell,
    Config,
    Output,
    Recipe,
)
from memlib.audits.unique_feature.scoring import Net, Pull, Shown, calibrate, nets_of, score, score_by_label
from memlib.audits.unique_feature.summary import in_brief, summarize
from memlib.audits.unique_feature.verdict import limits, score_name

__all__ = [
    "ByLabel",
    "Cell",
    "Config",
    "Net",
    "Output",
    "Pull",
    "Recipe",
    "Shown",
    "calibrate",
    "canary_curves",
    "check_nulls",
    "divergence",
    "draw_curves",
    "epoch_curves",
    "in_brief",
    "latent_curves",
    "limits",
    "m_kl",
    "m_of_label",
    "m_of_labels",
    "m_w",
    "maxima",
    "nets_of",
    "own_units",
    "removal_curves",
    "score",
    "score_by_label",
    "score_name",
    "strongest",
    "summarize",
    "summarize_own",
]
