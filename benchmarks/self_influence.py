"""Self-influence by exact gradient norms against captum's TracInCP and a loop over examples, on identical checkpoints.

Each side runs in its own process, so that its peak memory can be measured; captum in both of its exact modes, with
gradients per batch and per example.

    python benchmarks/self_influence.py
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import torch
from torch import nn

from memlib.models.classifiers import build_classifier
from memlib.observe.gradients import GradientNorms, cross_entropy
from memlib.specs import ClassifierSpec

CASES = {
    "MLP-1": (
        ClassifierSpec(architecture="mlp", widths=(512, 256, 128)),
        (1, 28, 28),
        256,
        {"ours": 4096, "captum": 512, "loop": 256},
    ),
    "CNN-2": (ClassifierSpec(architecture="cnn_2"), (3, 32, 32), 32, {"ours": 256, "captum": 64, "loop": 64}),
}
REPEATS, CHECKPOINTS, RATE = 3, 2, 3e-4


def examples(shape: tuple[int, ...], count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw random inputs and labels, of which a smaller number is the beginning of a larger one."""
    inputs, labels = (torch.Generator().manual_seed(seed) for seed in (0, 1))
    return torch.randn(count, *shape, generator=inputs), torch.randint(0, 10, (count,), generator=labels)


def ours(model: nn.Module, states: list, inputs, targets, batch: int) -> torch.Tensor:
    total = torch.zeros(len(inputs))
    for state in states:
        model.load_state_dict(torch.load(state, weights_only=True))
        norms = GradientNorms(model)
        total += RATE * torch.cat([norms(x, y) for x, y in zip(inputs.split(batch), targets.split(batch), strict=True)])
    return total


def loop(model: nn.Module, states: list, inputs, targets, batch: int) -> torch.Tensor:
    total = torch.zeros(len(inputs))
    parameters = list(model.parameters())
    for state in states:
        model.load_state_dict(torch.load(state, weights_only=True))
        for i in range(len(inputs)):
            loss = cross_entropy(model(inputs[i : i + 1]), targets[i : i + 1]).sum()
            total[i] += RATE * sum(g.square().sum() for g in torch.autograd.grad(loss, parameters))
    return total


def captum(model: nn.Module, states: list, inputs, targets, batch: int, *, per_batch: bool) -> torch.Tensor:
    from captum.influence import TracInCP

    def load(net: nn.Module, path: str) -> float:
        net.load_state_dict(torch.load(path, weights_only=True))
        return RATE

    data = torch.utils.data.TensorDataset(inputs, targets)
    loss = nn.CrossEntropyLoss(reduction="sum" if per_batch else "none")
    tracin = TracInCP(
        model, data, states, checkpoints_load_func=load, loss_fn=loss, batch_size=batch, sample_wise_grads_per_batch=per_batch
    )
    return tracin.self_influence()


SIDES = {
    "ours": ours,
    "loop": loop,
    "captum, batches": lambda *a: captum(*a, per_batch=True),
    "captum, examples": lambda *a: captum(*a, per_batch=False),
}


def measure(case: str, side: str, folder: str) -> None:
    torch.set_num_threads(2)
    spec, shape, batch, counts = CASES[case]
    model = build_classifier(spec, shape, 10, seed=0).eval()
    states = sorted(str(path) for path in Path(folder).glob(f"{case}-*.pt"))
    inputs, targets = examples(shape, counts[side.split(",")[0]])
    before = psutil.Process().memory_info().rss
    SIDES[side](model, states[:1], inputs[: 2 * batch], targets[: 2 * batch], batch)
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        scores = SIDES[side](model, states, inputs, targets, batch)
        times.append((time.perf_counter() - started) / len(inputs) / len(states))
    peak = (
        int(next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")))
        * 1024
    )
    few = min(64, len(inputs))
    print(json.dumps({"seconds": statistics.median(times), "peak": peak, "before": before, "values": scores[:few].tolist()}))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for case, (spec, shape, batch, _) in CASES.items():
            for number in range(CHECKPOINTS):
                torch.save(build_classifier(spec, shape, 10, seed=number).state_dict(), f"{folder}/{case}-{number}.pt")
            results = {}
            for side in SIDES:
                process = subprocess.run([sys.executable, __file__, case, side, folder], capture_output=True, text=True)
                if process.returncode:
                    print(f"{case}, {side}: failed: {process.stderr.strip().splitlines()[-1]}")
                    continue
                results[side] = json.loads(process.stdout.splitlines()[-1])
            first = results["ours"]
            for side, result in results.items():
                common = min(len(result["values"]), len(first["values"]))
                a, b = torch.tensor(result["values"][:common]), torch.tensor(first["values"][:common])
                error = float(((a - b) / a).abs().max())
                print(
                    f"{case} (batch {batch}), {side}: {1e6 * result['seconds']:.1f} us an example and checkpoint, "
                    f"{result['seconds'] / first['seconds']:.1f} times ours, largest relative difference {error:.1e}, "
                    f"peak memory {(result['peak'] - result['before']) / 2**20:.0f} MiB above model and inputs"
                )


if __name__ == "__main__":
    measure(*sys.argv[1:]) if len(sys.argv) > 1 else main()
