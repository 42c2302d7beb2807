"""The models of a forgetting audit trained together, as small ones are, against one at a time, as large ones are.

    python benchmarks/forgetting_models.py

Both sides train all models of `forgetting_smoke`, taking turns by composition in one process. Prints CPU seconds, their ratio and
the largest relative difference of a model's weights between the two.
"""

import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

import flows.forgetting as flow
from memlib.audits import AUDITS
from memlib.data.stages import TrainingData, decode
from memlib.recipes.files import load_recipe, validate
from memlib.running.runners import PlainRunner
from memlib.store import Store

NAME = "forgetting_smoke"


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    started = time.process_time()
    value = work()
    return time.process_time() - started, value


def flat(net: torch.nn.Module) -> torch.Tensor:
    return torch.cat([values.double().flatten() for _, values in sorted(net.state_dict().items())])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        recipe = validate(AUDITS["forgetting"].recipe, load_recipe(NAME, [])[0])
        runner = PlainRunner(Store(folder))
        shard = decode(runner, recipe.data)
        sets = TrainingData(shard, runner.run(flow.DrawSets(recipe, shard)))
        models = flow._models(recipe)
        data = TrainingData(
            shard, runner.run(flow.DrawMixes(sets, {model.name: (model.shares, model.seed) for model in models}))
        )
        classes, spent, worst = len(set(data.labels.tolist())), {"together": 0.0, "singly": 0.0}, 0.0

        def train(chunk: list[Any], recipe: Any) -> dict[str, tuple[float, Any]]:
            singles = [flow._single(recipe, data, [model], classes) for model in chunk]
            return {
                "together": timed(lambda: runner.run(flow._stack(recipe, data, chunk, classes))),
                "singly": timed(lambda: runner.run_all(singles)),
            }

        warm = recipe.model_copy(update={"training": recipe.training.model_copy(update={"epochs": 1})})
        train(models[:2], warm)
        for chunk in flow._chunks(models, flow.CHUNK):
            both = train(list(chunk), recipe)
            for side, (seconds, _) in both.items():
                spent[side] += seconds
            for place, single in enumerate(both["singly"][1]):
                alone, net = (
                    flat(single.content.load(epoch=recipe.training.epochs)[0]),
                    both["together"][1].content.net(place),
                )
                worst = max(worst, float((alone - flat(net)).norm() / alone.norm()))
    print(
        f"{NAME}: {len(models)} models: together {spent['together']:.1f} CPU s, singly {spent['singly']:.1f} CPU s, "
        f"ratio {spent['singly'] / spent['together']:.2f}; largest relative difference of weights {worst:.0e}; "
        f"load {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    main()
