"""Many small nets as one program against one net at a time: same data, same seeds, same steps.

Two moons, MLP-2. Ours: stacks of the measured size on two Ray workers with one thread each. Plain: torch modules and
torch.optim.Adam, one net after the other, in one process with two threads and in two processes with one thread each; the
faster of the two counts. Scoring: M and its paired t-test for every net; the plain version calls scipy net by net.

    python benchmarks/many_nets.py [--gpu]
"""

import os
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import scipy.stats
import torch
import torch.nn.functional as F

from memlib.audits.unique_feature.formulas import m_of_label
from memlib.data.builtin import TwoMoons
from memlib.data.canaries.features import build_feature, training_rows
from memlib.models.classifiers import build_classifier
from memlib.observe.outputs import class_scores
from memlib.specs import CanarySpec, ClassifierSpec, Resources, ScalarFeature, TrainingSpec, TwoMoonsSource
from memlib.specs.resources import RunOptions
from memlib.training.loop import epoch_order
from memlib.training.stacked import Examples, NetJob, StackedNet, choose_stack_size, train_nets

MODEL = ClassifierSpec(architecture="mlp", widths=(32, 128, 128))
CANARY = CanarySpec(feature=ScalarFeature(kind="scalar"), mode="append")
REPEATS = 3


def data() -> Examples:
    source = TwoMoons(TwoMoonsSource(kind="two_moons"))
    points = np.stack([source[i].image for i in range(len(source))])
    labels = np.array([source[i].label for i in range(len(source))])
    return Examples(points, labels, build_feature(CANARY.feature, (3,)))


def training(batch: int | None, epochs: int) -> TrainingSpec:
    optimizer = {"learning_rate": 1e-3, "weight_decay": 0, "warmup_epochs": 0, "schedule": "constant"}
    return TrainingSpec.model_validate(
        {"objective": {"kind": "supervised"}, "epochs": epochs, "batch_size": batch, "augment": None, "optimizer": optimizer}
    )


def jobs(seeds: range, examples: Examples) -> list[NetJob]:
    canary = int(np.flatnonzero(examples.labels == 1)[0])
    rows = training_rows(np.arange(len(examples.labels)), canary, CANARY, with_feature=True)
    return [NetJob(seed, rows) for seed in seeds]


def stacked(seeds: range, batch: int | None, epochs: int, device: str = "cpu", threads: int = 1) -> float:
    """Train a share of the nets; return one weight of the first net, so that both sides can be compared."""
    torch.set_num_threads(threads)
    examples, how = data(), training(batch, epochs)
    nets = jobs(seeds, examples)
    size = choose_stack_size(MODEL, how, examples, nets, 2, torch.device(device))
    result = train_nets(MODEL, how, examples, nets, 2, stack_size=size, device=torch.device(device))
    return float(result[0].state["7.weight"][0, 0])


def plain(seeds: range, batch: int | None, epochs: int, threads: int = 1, device: str = "cpu") -> float:
    torch.set_num_threads(threads)
    examples = data()
    first = None
    for job in jobs(seeds, examples):
        shown = examples.images[job.rows.rows].copy()
        shown[job.rows.marked] = examples.feature.insert(shown[job.rows.marked])
        inputs, labels = torch.from_numpy(shown).to(device), torch.from_numpy(examples.labels[job.rows.rows]).to(device)
        net = build_classifier(MODEL, (3,), 2, seed=job.seed).to(device)
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
        for epoch in range(epochs):
            if batch is None:
                optimizer.zero_grad()
                F.cross_entropy(net(inputs), labels).backward()
                optimizer.step()
                continue
            order = torch.from_numpy(epoch_order(len(labels), seed=job.seed, epoch=epoch)).to(device)
            for start in range(0, len(labels) - batch + 1, batch):
                chosen = order[start : start + batch]
                optimizer.zero_grad()
                F.cross_entropy(net(inputs[chosen]), labels[chosen]).backward()
                optimizer.step()
        first = float(net.state_dict()["7.weight"][0, 0]) if first is None else first
    return first


def timed(work) -> tuple[float, float]:
    started = time.perf_counter()
    value = work()
    return time.perf_counter() - started, value


def compare_training(name: str, batch: int | None, nets: int, epochs: int, ray, pool) -> None:
    halves = [range(nets // 2), range(nets // 2, nets)]
    remote = ray.remote(num_cpus=1, runtime_env={"env_vars": MALLOC})(stacked)

    def ours() -> float:
        return ray.get([remote.remote(half, batch, epochs) for half in halves])[0]

    def two_processes() -> float:
        futures = [pool.submit(plain, half, batch, epochs) for half in halves]
        return next(iter([future.result() for future in futures]))

    sides = {"ours": ours, "two processes": two_processes, "two threads": lambda: plain(range(nets), batch, epochs, 2)}
    times: dict[str, list[float]] = {side: [] for side in sides}
    values = {}
    for _ in range(REPEATS):
        for side, work in sides.items():
            seconds, values[side] = timed(work)
            times[side].append(seconds)
    median = {side: statistics.median(durations) for side, durations in times.items()}
    best = min(median["two processes"], median["two threads"])
    difference = max(abs(values[side] - values["ours"]) for side in values)
    print(
        f"train, {name}: {nets} nets, {epochs} epochs: ours {median['ours']:.2f} s, two processes {median['two processes']:.2f} s, "
        f"two threads {median['two threads']:.2f} s; ratio {best / median['ours']:.2f} (largest difference of a weight {difference:.1e})"
    )


def compare_scoring(nets: int) -> None:
    torch.set_num_threads(2)
    examples = data()
    rows = np.flatnonzero(examples.labels == 1)[1:]
    clean, featured = examples.images[rows], examples.feature.insert(examples.images[rows])
    modules = [build_classifier(MODEL, (3,), 2, seed=seed).eval() for seed in range(nets)]
    stack = StackedNet(modules, torch.device("cpu"))

    def forward(inputs):
        return stack.forward(inputs[None])

    def show(examples_):
        return class_scores(forward, examples_, num_nets=nets, device=torch.device("cpu"))

    logits = show(clean), show(featured)

    def plain_tests(pairs) -> list[float]:
        p_values = []
        for c, u in pairs:
            c, u = (torch.softmax(torch.as_tensor(part), dim=1)[:, 1].numpy() for part in (c, u))
            p_values.append(((u - c).mean(), scipy.stats.ttest_rel(u, c, alternative="greater").pvalue)[1])
        return p_values

    def plain_all() -> list[float]:
        with torch.inference_mode():
            x_c, x_u = torch.from_numpy(clean), torch.from_numpy(featured)
            return plain_tests([(net(x_c), net(x_u)) for net in modules])

    sides = {
        "tests": (lambda: m_of_label(*logits, 1, "probability")[1], lambda: plain_tests(zip(*logits, strict=True))),
        "tests and forward passes": (lambda: m_of_label(logits[0], show(featured), 1, "probability")[1], plain_all),
    }
    for name, (ours, baseline) in sides.items():
        times: dict[str, list[float]] = {"ours": [], "plain": []}
        values = None
        for _ in range(2 * REPEATS):
            for side, work in (("ours", ours), ("plain", baseline)):
                seconds, value = timed(work)
                times[side].append(seconds)
                values = value if side == "ours" else values
        np.testing.assert_allclose(values, baseline(), rtol=1e-3, atol=1e-5)
        a, b = statistics.median(times["ours"]), statistics.median(times["plain"])
        print(f"score, {name}: {nets} nets: ours {1e3 * a:.1f} ms, net by net {1e3 * b:.1f} ms; ratio {b / a:.1f}")


def on_gpu() -> None:
    for name, batch, nets, epochs in (("batch 32", 32, 100, 3), ("full batch", None, 1000, 100)):
        stacked(range(4), batch, 1, "cuda")
        ours, _ = timed(lambda b=batch, n=nets, e=epochs: stacked(range(n), b, e, "cuda"))
        few = max(1, nets // 50)
        baseline, _ = timed(lambda b=batch, n=few, e=epochs: plain(range(n), b, e, 1, "cuda"))
        print(
            f"GPU, train, {name}: {nets} nets {ours:.2f} s; one at a time {baseline / few * nets:.2f} s (from {few}); ratio {baseline / few * nets / ours:.1f}"
        )


MALLOC: dict[str, str] = {}

if __name__ == "__main__":
    if "--gpu" in sys.argv:
        on_gpu()
        sys.exit()
    from memlib.store import Store
    from tasks.cluster import WORKER_SETTINGS, start_ray
    from tasks.runtime import Context

    MALLOC.update(WORKER_SETTINGS)
    os.environ["PYTHONPATH"] = os.pathsep.join([os.getcwd(), os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")])
    module = start_ray(Context(Store("/tmp"), Resources(), options=RunOptions(quiet=True)))
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        warm = module.remote(num_cpus=1, runtime_env={"env_vars": MALLOC})(stacked)
        module.get([warm.remote(range(2), 32, 1) for _ in range(2)])
        [f.result() for f in [pool.submit(plain, range(2), 32, 1) for _ in range(2)]]
        compare_training("batch 32", 32, 200, 20, module, pool)
        compare_training("full batch", None, 200, 100, module, pool)
    compare_scoring(200)
    module.shutdown()
