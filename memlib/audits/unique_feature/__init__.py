"""Unique-feature audit: does a classifier remember something that appeared in a single training example? (Hartley 2023, 2022)

The feature (a name burnt into an X-ray, a patch, an odd coordinate) is inserted into clean examples. A model that has
memorized it is more confident of the canary's label on examples with the feature (x_u) than on the same examples
without it (x_c). D_y are the training examples of label y, D_r the probe data, f(x) a net's class probabilities P(. | x):

    M_white = mean over x in D_y of  P(y | x_u) - P(y | x_c)               data and label known   (2023, Eq. 1)
    M_grey  = max over labels i of   mean over D_yi of P(yi | x_u) - P(yi | x_c)     data known   (2023, Eq. 2)
    M_black = max over labels i of   mean over D_r of P(yi | x_u) - P(yi | x_c)  any other data   (2023, Eq. 3)
    M_w     = mean over D_y of log P(y | x_u) - log P(y | x_r)     x_r: a random partner            (2022, 2.2)
    M_kl    = mean over D_r of KL(f(x_c) || f(x_u)) - KL(f(x_c) || f(x_r))                          (2022, Eq. 1)

The published criterion, a paired t-test over examples, judges a single net and also flags many nets that never saw the
feature. Every canary net therefore has a control: same seed, same examples, but without the feature. The maxima of the
grey and black box are taken over scores that are centred at each label by the controls of other seeds. The test exchanges
canary nets and controls within pairs; a single net's calibrated p comes from the rank of its score among the controls of
other seeds.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from memlib.audits.attacks import LABELLED, PROBABILITIES, Attack, DataFacts
from memlib.audits.base import Audit, Leak, Metric
from memlib.audits.cells import CellSpec
from memlib.audits.unique_feature.answers import planned, rankings, trainings
from memlib.audits.unique_feature.recipe import HEADLINE, HEADLINES, NOT_SHOWN, OWN, Recipe
from memlib.audits.unique_feature.tables import UNITS
from memlib.tables import COMMON


def _in_brief(params: Mapping[str, Any], headline: Mapping[str, Any]) -> bool:
    """Return whether a finding appears in short listings: any on the headline's score, and each score's difference."""
    same = all(params.get(name) == headline.get(name) for name in ("metric", "output"))
    return same or params.get("group") == headline.get("group", "")


def _limits(recipe: Recipe) -> Iterable[str]:
    from memlib.audits.unique_feature.verdict import limits  # loads scipy

    return limits(recipe)


ATTACKS = (
    Attack(
        "unique feature of a single training example", LABELLED, "(i) membership inference",
        "outputs on examples with and without the feature; of models that the audit trains, also the training data, the "
        "label and models trained for comparison", PROBABILITIES,
    ),
)  # fmt: skip
ODD = {"kind": "scalar", "index": 0, "value": 5}  # five standard deviations from the mean of the first column of a table


def _cell(facts: DataFacts) -> CellSpec | str:
    """Return an audit of a letter in one image, or of an odd value in one row."""
    if facts.model is not None:
        return "for a given model it needs the feature that may be in its data; see memlib init --for classifier-and-name"
    feature = {} if facts.kind == "images" else {"canary.feature": ODD}
    change = {"title": "A unique feature", "split": {**facts.split, "train_per_class": None, "validation_per_class": 0}}
    return CellSpec(name="unique-feature", recipe="unique_feature_smoke", set={**change, **feature})


_ADVICE = (
    "Remove features that identify somebody, such as names or numbers, before training, and audit every changed training "
    "again."
)
LEAKS = {
    HEADLINE: Leak(
        "a rare feature of training examples changes what models compute",
        _ADVICE,
    ),
    OWN: Leak(
        "a feature that was in the training data can be told from others of its kind",
        _ADVICE,
    ),
}

AUDIT = Audit(
    name="unique-feature",
    question="Does a classifier remember something that appeared in a single training example?",
    recipe=Recipe,
    tables=COMMON | {"units": UNITS},
    in_brief=_in_brief,
    headlines=HEADLINES,
    leaks=LEAKS,
    limits=_limits,
    rankings=rankings,
    metrics={
        name: Metric(f"change of a model's answers by the feature, for whoever {knows}")
        for name, knows in (
            ("m_white", "knows feature, data and label"),
            ("m_grey", "knows feature and label"),
            ("m_black", "knows the feature"),
        )
    },
    attacks=ATTACKS,
    cell=_cell,
    trainings=trainings,
    planned_trainings=planned,
    not_shown=NOT_SHOWN,
)
