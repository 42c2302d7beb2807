"""Self-influence: which training examples does a model lean on itself for? (TracInCP; Pruthi 2020, Hartley 2022, A.5)

    TracInCP(x) = sum over checkpoints i of  learning_rate_i * |gradient of loss(w_i, x)|^2

An example with high self-influence moves the model much by itself: mislabelled, atypical, or carrying something that
no other example has. It says what could be memorized and where to look first, not that it was.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import scipy.stats
from numpy.typing import NDArray
from pydantic import Field, model_validator

from memlib.findings import DESCRIPTIVE, Interval, Row, Verdict, diagnostic, estimate, summary_table
from memlib.specs import (
    ClassifierSpec,
    DataSpec,
    HoldOutSpec,
    InfluenceSpec,
    Spec,
    TrainedSpec,
    TrainingSpec,
)
from memlib.stats.tests import percentile_interval
from memlib.tables import CURVES, SELF_INFLUENCE_UNITS

SHARES = (0.01, 0.1)  # of the examples, whose share of self-influence is reported
MIN_EXAMPLES = 20  # for an interval over them


class CheckpointSpec(Spec):
    """A checkpoint of a model that was trained elsewhere."""

    weights: str
    """Its state dict: .safetensors, or a .pt file that holds nothing but tensors."""
    learning_rate: float = Field(gt=0)
    """The learning rate of the optimiser at that point."""


class ReportSpec(Spec):
    """What the page shows."""

    gallery: int = Field(default=12, ge=0)
    """Examples in each of the two galleries."""


class Recipe(Spec):
    """Self-influence of every training example, for a model that is trained here or for one's own."""

    audit: Literal["self_influence"] = "self_influence"
    title: str = "Self-influence"
    """Heading of the report."""
    data: DataSpec
    split: HoldOutSpec = HoldOutSpec()
    model: ClassifierSpec | None = None
    """The model that is trained."""
    training: TrainingSpec | None = None
    """How it is trained."""
    trained: TrainedSpec | None = None
    """One's own model instead of model and training; its weights are those of the checkpoints."""
    checkpoints: tuple[CheckpointSpec, ...] = ()
    """One's own model's checkpoints."""
    influence: InfluenceSpec = InfluenceSpec()
    report: ReportSpec = ReportSpec()

    @model_validator(mode="after")
    def _is_whole(self) -> "Recipe":
        if (self.model is None) != (self.training is None) or (self.trained is None) == (self.model is None):
            raise ValueError("give either model and training, or trained")
        if self.influence.pull:
            raise ValueError("influence.pull compares canaries and is for the unique-feature audit")
        chosen = self.influence.model_dump(include={"checkpoints", "loss_fall", "epochs"})
        if self.trained is not None and chosen != InfluenceSpec().model_dump(include=set(chosen)):
            raise ValueError(f"influence.{', influence.'.join(chosen)} choose checkpoints of a model that is trained here")
        if self.trained is not None and self.trained.weights is not None:
            raise ValueError("trained.weights has no use here; checkpoints names the weights")
        if (self.trained is None) == bool(self.checkpoints):
            raise ValueError("trained and checkpoints go together")
        if self.training is not None and self.training.objective.kind != "supervised":
            raise ValueError(f"training.objective {self.training.objective.kind} makes no classifier; use supervised")
        if self.training is not None and self.training.checkpoint_epochs:
            raise ValueError("training.checkpoint_epochs has no use here; influence chooses the checkpoints")
        if self.training is not None and not (self.influence.epochs or self.training.epochs):
            raise ValueError("self-influence needs a trained model; training.epochs is 0")
        return self


def choose_checkpoints(losses: Sequence[float], spec: InfluenceSpec) -> list[int]:
    """Evenly spaced epochs up to the first at which the training loss has fallen by `loss_fall` (2022, A.5).

    Args:
        losses: mean training loss of each epoch, from the first.
        spec: how many, and the fall.
    """
    enough = [epoch for epoch, loss in enumerate(losses, start=1) if loss <= (1 - spec.loss_fall) * losses[0]]
    last = enough[0] if enough else len(losses)
    return sorted(
        {round(epoch) for epoch in np.linspace(last / spec.checkpoints, last, spec.checkpoints) if round(epoch) >= 1}
    )


def self_influence(norms: NDArray[np.floating], rates: Sequence[float]) -> NDArray[np.float64]:
    """TracInCP of each example with itself.

    Args:
        norms: (num_checkpoints, num_examples) squared gradient norms.
        rates: learning rate at each checkpoint.

    Returns:
        (num_examples,) float64.
    """
    return np.asarray(rates, dtype=np.float64) @ norms.astype(np.float64)


def score(
    example_ids: Sequence[str],
    labels: NDArray[np.int64],
    class_names: Sequence[str],
    norms: NDArray[np.floating],
    rates: Sequence[float],
    epochs: Sequence[int],
) -> pa.Table:
    """A row an example, the most influential first.

    Args:
        example_ids, labels, class_names: of each example.
        norms: (num_checkpoints, num_examples).
        rates, epochs: of each checkpoint.

    Returns:
        tables.SELF_INFLUENCE_UNITS.
    """
    total = self_influence(norms, rates)
    order = sorted(range(len(total)), key=lambda i: (-total[i], example_ids[i]))
    shares = total / total.sum() if total.sum() > 0 else np.zeros_like(total)
    rows = [
        {
            "example_id": example_ids[i], "label": int(labels[i]), "class_name": class_names[i], "rank": rank,
            "self_influence": float(total[i]), "share": float(shares[i]), "checkpoints": list(epochs),
            "gradient_norms": [float(value) for value in norms[:, i]],
        }
        for rank, i in enumerate(order, start=1)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=SELF_INFLUENCE_UNITS.arrow)


def summarize(units: pa.Table) -> pa.Table:
    """How concentrated self-influence is, how stable over checkpoints, and by class; nothing is tested.

    Returns:
        tables.SUMMARY.
    """
    values = units["self_influence"].to_numpy()
    count = len(values)
    base = {"checkpoints": units["checkpoints"][0].as_py()}
    rows = [_share_row(values, share, base) for share in SHARES]
    rows.append(diagnostic("self_influence_median", base, float(np.median(values)), n=count))
    rows.append(diagnostic("self_influence_max", base, float(values.max()), n=count))
    rows += _agreement(np.array(units["gradient_norms"].to_pylist()), base)
    names = units["class_name"].to_pylist()
    for name in dict.fromkeys(sorted(names)):
        mine = values[[n == name for n in names]]
        rows.append(diagnostic("self_influence_mean", {**base, "class": name}, float(mine.mean()), n=len(mine)))
    return summary_table(rows, verdict(rows))


def verdict(rows: Sequence[Row]) -> Verdict:
    """The headline in a sentence; the word is descriptive, as nothing is tested."""
    head = rows[0]
    interval = "" if head["ci_low"] is None else f" (95 % interval {_percent(head['ci_low'])} to {_percent(head['ci_high'])})"
    return Verdict(
        DESCRIPTIVE, f"1 % of the training examples hold {_percent(head['value'])} of all self-influence{interval}.",
        "The interval is over examples, for this one training. These are the examples that the model leans on themselves "
        "for: mislabelled, atypical, or carrying something that no other example has. They are where to look first for "
        "memory; high self-influence alone is no proof of it.",
    )  # fmt: skip


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _share_row(values: NDArray[np.float64], share: float, base: Mapping[str, Any]) -> Row:
    interval = None
    if len(values) >= MIN_EXAMPLES and np.ptp(values):
        interval = Interval(*percentile_interval(resampled_shares(values, share)), "examples")
    found = float(_top_share(np.sort(values)[::-1][None], np.ones((1, len(values))), share)[0])
    return estimate("influence_share", {**base, "top": share}, found, n=len(values), interval=interval)


def resampled_shares(values: NDArray[np.float64], share: float, *, replicates: int = 500) -> NDArray[np.float64]:
    """The share of self-influence in the top share of examples, in bootstrap samples of the examples.

    Args:
        values: (num_examples,) self-influence of each.
        share: such as .01.
        replicates: bootstrap samples.

    Returns:
        (replicates,).
    """
    rng, count = np.random.default_rng(0), len(values)
    ordered = np.sort(values)[::-1][None]
    return np.concatenate(
        [_top_share(ordered, rng.multinomial(count, np.full(count, 1 / count), size=1), share) for _ in range(replicates)]
    )


def _top_share(ordered: NDArray[np.float64], copies: NDArray[Any], share: float) -> NDArray[np.float64]:
    """Of values in descending order, each with a number of copies: (num_samples,)."""
    top = max(1, round(share * ordered.shape[1]))
    taken = np.clip(top - (np.cumsum(copies, axis=1) - copies), 0, copies)
    total = (copies * ordered).sum(axis=1)
    found: NDArray[np.float64] = (taken * ordered).sum(axis=1) / np.where(total > 0, total, 1)
    return found


def _agreement(norms: NDArray[np.float64], base: Mapping[str, Any]) -> list[Row]:
    """Rank correlation of odd and even checkpoints."""
    if norms.shape[1] < 2 or len(norms) < 3:
        return []
    halves = norms[:, ::2].sum(axis=1), norms[:, 1::2].sum(axis=1)
    agreement = float(scipy.stats.spearmanr(*halves).statistic)
    if not np.isfinite(agreement):
        return []
    return [diagnostic("checkpoint_agreement", {**base, "statistic": "Spearman"}, agreement, n=len(norms))]


def in_brief(params: Mapping[str, Any], headline: Mapping[str, Any]) -> bool:
    """Whether a finding with these params is shown in brief: all but those of single classes."""
    return "class" not in params


def curves(units: pa.Table) -> pa.Table:
    """The share of all self-influence that the most influential share of examples has: curve influence_by_rank."""
    shares = np.cumsum(units["share"].to_numpy())
    chosen = np.unique(np.geomspace(1, len(shares), min(200, len(shares))).round().astype(int))
    rows = [
        {
            "curve": "influence_by_rank", "series": "examples", "params": json.dumps({}), "x": float(n / len(shares)),
            "y": float(shares[n - 1]),
        }
        for n in chosen
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=CURVES.arrow)
