"""Coverage under the null: how often the 95 % intervals contain 0 in audits of models that cannot have memorized anything.

untrained: pairs of networks at their initialization, each pair with its own scenes.
disjoint: pairs trained on scenes disjoint from the audited ones.
A procedure with true coverage .95 contains 0 in at least 180 of 200 audits with probability .999.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from memlib.audits.deja_vu.findings import summarize
from memlib.audits.deja_vu.recipe import Config
from memlib.audits.deja_vu.scores import Decoding, score
from memlib.data.datasets import open_source
from memlib.data.images.crops import periphery_crop
from memlib.findings import Finding, Findings
from memlib.identity import derive_seed
from memlib.models.encoder import Encoder, build_encoder
from memlib.objectives import build_objective
from memlib.observe.embeddings import embed, search
from memlib.specs import AugmentSpec, CropSpec, ModelSpec, OptimizerSpec, ScenesSource, TrainingSpec
from memlib.training.loop import Training, TrainingSet

MODEL = ModelSpec(width=16, projector=(64, 64), input_size=32)
NUM_AUDITED, NUM_PUBLIC, NUM_TRAINING = 200, 600, 200  # images of A and of B (each), of X, and of each training set
CONFIG = Config(k=(20,), replicates=1000, permutations=1000)
METRICS = ("share_excess", "deja_vu_score")


def make_scenes(seed: int, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    source = open_source(ScenesSource(num_examples=count, background="palette", cells=6, seed=seed))
    examples = [source[i] for i in range(count)]
    crops = [periphery_crop((0, 0, 32, 32), e.boxes, CropSpec()) for e in examples]
    return np.stack([e.image for e in examples]), np.array([e.label for e in examples]), np.array(crops)


def train(encoder: Encoder, images: np.ndarray, labels: np.ndarray, epochs: int, seed: int) -> None:
    spec = TrainingSpec(
        objective={"kind": "supervised"},
        epochs=epochs,
        batch_size=50,
        optimizer=OptimizerSpec(warmup_epochs=2),
        augment=AugmentSpec(crop_scale=(0.1, 1.0), jitter=0, grey=0, blur=(0, 0), solarize=(0, 0)),
        seed=seed,
    )
    data = TrainingSet(images, np.arange(len(images)), labels)
    Training(encoder, build_objective(spec.objective), data, spec, input_size=32).run()


def audit(number: int, epochs: int) -> Findings:
    """Run one audit, from fresh scenes to its findings; return those of both directions and all classes together."""
    count = 2 * NUM_AUDITED + NUM_PUBLIC + 2 * NUM_TRAINING
    images, labels, crops = make_scenes(derive_seed(0, "null", epochs, number), count)
    sets = np.split(np.arange(count), np.cumsum([NUM_AUDITED, NUM_AUDITED, NUM_PUBLIC, NUM_TRAINING]))
    public = sets[2]
    neighbors = []
    for side in (0, 1):
        seed = derive_seed(1, "null", epochs, number, side)
        encoder = build_encoder(MODEL, num_classes=10, seed=seed)
        if epochs:
            train(encoder, images[sets[3 + side]], labels[sets[3 + side]], epochs, seed)
        with tempfile.TemporaryDirectory() as folder:
            embeddings = []
            for rows, boxes in ((public, None), (np.concatenate(sets[:2]), crops[: 2 * NUM_AUDITED])):
                embed(encoder, images, rows, input_size=32, folder=Path(folder), layers=["classifier"], rectangles=boxes)
                embeddings.append(np.load(Path(folder) / "classifier.npy"))
        neighbors.append(labels[public][search(embeddings[1], [embeddings[0]], CONFIG.k[0])[0]])
    decodings = []
    for direction, rows in (("A", sets[0]), ("B", sets[1])):
        target, reference = neighbors if direction == "A" else neighbors[::-1]
        names = [f"{i:04d}" for i in rows]
        decodings.append(
            Decoding(direction, 0, "classifier", epochs, "maximal", names, labels[rows], target[rows], reference[rows])
        )
    units = score(decodings, [str(i) for i in range(10)], CONFIG)
    return Findings.read(summarize(units, CONFIG, num_classes=10)).all(*METRICS, **{"direction": "both", "class": None})


def contains_0(row: Finding) -> bool:
    """Return whether the interval of a finding contains 0."""
    return row.interval is not None and row.interval.high is not None and row.interval.low <= 0 <= row.interval.high


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--untrained", type=int, default=200)
    parser.add_argument("--disjoint", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=40, help="epochs of the disjoint pairs")
    options = parser.parse_args()
    torch.set_num_threads(1)
    worst = 1.0
    for name, pairs, epochs in (("untrained", options.untrained, 0), ("disjoint", options.disjoint, options.epochs)):
        start = time.perf_counter()
        rows = Findings(row for number in range(pairs) for row in audit(number, epochs))
        for metric in METRICS:
            findings = rows.all(metric)
            covered = sum(map(contains_0, findings))
            rejected = sum((row.p_value or 0.0) <= 0.05 for row in findings)
            mean = float(np.mean([row.value for row in findings]))
            print(
                f"{name:<10} {metric:<14} intervals that hold 0: {covered} of {pairs}; p <= .05: {rejected}; "
                f"mean {mean:+.4f}; {time.perf_counter() - start:.0f} s",
                flush=True,
            )
            worst = min(worst, covered / pairs if pairs >= 100 else 1.0)
    return 0 if worst >= 0.9 else 1


if __name__ == "__main__":
    sys.exit(main())
