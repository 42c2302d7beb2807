"""Forgetting, where the target is a forest that used none of D_Q and the auditor's own models are small nets."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier

from benchmarks.validity.harness import Part, Row, crossed, rate, table
from benchmarks.validity.nets import How, phi, train
from memlib.audits.forgetting.distances import Distances, Observed
from memlib.audits.forgetting.findings import summarize
from memlib.audits.forgetting.recipe import NULL, RETAINED, TARGET, Recipe
from memlib.audits.forgetting.trace import Pool
from memlib.findings import Findings
from memlib.identity import derive_seed
from memlib.specs.data import CALIBRATION, KNOWN, QUERY, WITHHELD
from memlib.stats.likelihood import CLIP

torch.set_num_threads(1)

SIZE, FORESTS, MODELS = 20, 5, 10  # examples per class of each role; forests of a kind; null and retained models
KINDS = {"random forest": RandomForestClassifier, "extra trees": ExtraTreesClassifier}
USES = {"none of D_Q": 0.0, "all of D_Q": 1.0}
ROLES, DRAWN = (QUERY, KNOWN, WITHHELD, CALIBRATION), (SIZE, SIZE, SIZE, 50)


def recipe() -> Recipe:
    """Return the recipe of an external target, whose known examples were drawn after its training."""
    said = {
        "data": {"source": {"kind": "digits"}},
        "sets": {role: {"per_class": count} for role, count in zip(ROLES, DRAWN, strict=True)} | {"provider": {}},
        "model": {"architecture": "mlp"}, "training": {"objective": {"kind": "supervised"}, "epochs": 40},
        "targets": {"forest": {"outputs": {"path": "outputs.csv"}}}, "score": {"replicates": 100, "permutations": 999},
        "verdict": {"models": MODELS, "known_drawn_afterwards": True},
    }  # fmt: skip
    return Recipe.model_validate(said)


def judge_forests(unit: str) -> Row:
    """Audit a forest of outputs alone, by the audit's own functions."""
    kind, use, number = unit.split("/")
    seed = derive_seed(int(number), kind, use) % 2**31
    rng, digits = np.random.default_rng(seed), load_digits()
    x, y = (digits.data / 16).astype(np.float32), digits.target.astype(np.int64)
    drawn: dict[str, list[NDArray[np.int64]]] = {role: [] for role in (*ROLES, "provider")}
    for label in range(10):
        members = rng.permutation(np.flatnonzero(y == label))
        for role, part in zip(drawn, np.split(members, np.cumsum(DRAWN)), strict=True):
            drawn[role].append(part)
    sets = {role: np.concatenate(parts) for role, parts in drawn.items()}
    pool = np.concatenate([sets[role] for role in (QUERY, KNOWN, WITHHELD)])
    roles = np.repeat(np.array([QUERY, KNOWN, WITHHELD]), 10 * SIZE)

    used = [sets["provider"], sets[CALIBRATION], sets[KNOWN], *([sets[QUERY]] if USES[use] else [])]
    forest = KINDS[kind](n_estimators=100, random_state=seed, n_jobs=1).fit(x[rows := np.concatenate(used)], y[rows])
    own = forest.predict_proba(x[pool])[np.arange(len(pool)), y[pool]]
    with np.errstate(divide="ignore"):
        odds = np.clip(np.log(own) - np.log1p(-own), -CLIP, CLIP)

    null = [rng.permutation(np.concatenate([sets[CALIBRATION], sets["provider"]])) for _ in range(MODELS)]
    halves = [rng.permutation(sets[QUERY])[: 5 * SIZE] for _ in range(MODELS)]
    retained = [np.concatenate([sets[CALIBRATION], sets[KNOWN], half]) for half in halves]
    groups = {
        QUERY: [sets[QUERY]] * 2, CALIBRATION: [sets[CALIBRATION]] * 2, NULL: null, RETAINED: retained,
    }  # fmt: skip
    observed = [Observed(TARGET, "forest", 0, odds)]
    for group, trained in groups.items():
        nets = train(x, y, trained, How(widths=(64,), epochs=40), seed=derive_seed(seed, group) % 2**31)
        for place, values in enumerate(np.clip(phi(nets.logits(x[pool]), y[pool]), -CLIP, CLIP)):
            observed.append(Observed(group, "", place, values, members=np.isin(pool, trained[place])))
    said = recipe()
    found = Findings.read(summarize(Distances(observed, Pool(roles, y[pool], np.arange(len(pool))), said.score), said))
    share = found.get("share_used")
    return {
        "kind": f"{kind}, {use}", "word": found.verdict.word, "share": None if share is None else share.value,
        "p": found.head.p_adjusted, "retained": found.first("found_share", target="retained models").value,
        "control": found.first("control_power").value,
    }  # fmt: skip


def report_forests(rows: Sequence[Row]) -> Iterator[str]:
    """Report words and stated shares."""
    yield f"scikit-learn's digits; {10 * SIZE} examples of D_Q, as many known and withheld; forests of 100 trees, which all used the known examples; known"
    yield f"examples are declared to be drawn after the training, without which no share is stated. The auditor's {MODELS} null and {MODELS} retained models are"
    yield "nets of one layer. Alpha .01."
    yield ""
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    cells = []
    for kind in kinds:
        mine = [row for row in rows if row["kind"] == kind]
        words = ", ".join(f"{sum(r['word'] == w for r in mine)} {w}" for w in sorted({r["word"] for r in mine}))
        stated = [row["share"] for row in mine if row["share"] is not None]
        cells.append(
            (
                kind, words, rate(len(stated), len(mine)), ", ".join(f"{share:.2f}" for share in stated) or "none",
                f"{min(r['p'] for r in mine):.2g}", f"{min(r['control'] for r in mine):.2f} to {max(r['control'] for r in mine):.2f}",
                f"{min(r['retained'] for r in mine):.1f} to {max(r['retained'] for r in mine):.1f}",
            )
        )  # fmt: skip
    yield from table(
        ("target", "words", "a share is stated", "shares", "smallest p", "power of the control", "retained models found"),
        cells,
    )


PARTS = (
    Part(
        "forgetting-forests",
        "Is a share of D_Q stated for forests that used none of it, and which word do they get?",
        lambda: crossed((f"{kind}/{use}" for use in USES for kind in KINDS), FORESTS), judge_forests, report_forests,
    ),
)  # fmt: skip
