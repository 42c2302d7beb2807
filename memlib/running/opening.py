"""Opening of all that a recipe names before anything is trained: data, lists, outputs and models, and a declared draw."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from memlib.audits.arrangement import body_of
from memlib.data.datasets import open_source
from memlib.data.given_sets import CompareSets, Difference
from memlib.data.stages import Decode, HoldOut, Split, TrainingData
from memlib.errors import UserError
from memlib.pipeline import user_code
from memlib.pipeline.stage import AnyArtifact, AnyStage, Artifact, Out, Stage
from memlib.recipes.named_files import specs_in
from memlib.recipes.request import AuditRequest
from memlib.report.format import say_p
from memlib.running.runners import PlainRunner
from memlib.specs import DataSpec, ExternalClassifierSpec, OutputsSpec, SplitSpec
from memlib.specs.external import WithMembers
from memlib.specs.observing import is_path
from memlib.store import Store
from memlib.store.permissions import scratch

if TYPE_CHECKING:
    from memlib.pipeline.stage import CellRequest, Ended

MOST = 20_000  # images of which the content is opened; tables are opened whatever their size
TRIED = 8  # examples that a model is asked about


class _Enough(Exception):
    """The next stage does more than open what the recipe names."""


class OpeningRunner(PlainRunner):
    """A runner that reads data, roles, lists and outputs, and ends before the first stage that computes more."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.found: dict[type[AnyStage], AnyArtifact] = {}

    def run(self, stage: Stage[Out]) -> Artifact[Out]:
        """Run a stage that reads."""
        if not (type(stage).__module__.startswith("memlib.data.") or stage.title.startswith("read ")):
            raise _Enough
        artifact = super().run(stage)
        self.found[type(stage)] = artifact
        return artifact

    def run_all(self, stages: Sequence[Stage[Out]]) -> list[Artifact[Out]]:
        """Run stages that read."""
        return [self.run(stage) for stage in stages]

    def run_cells(self, cells: Mapping[str, CellRequest], *, look: str, at_once: int) -> Ended:
        """Open no cells: each is planned by itself."""
        raise _Enough


def is_named(request: AuditRequest) -> bool:
    """Return whether a recipe names a model, outputs, members or a draw, which a plan without data cannot check."""
    return any(
        isinstance(spec, ExternalClassifierSpec | OutputsSpec)
        or (isinstance(spec, WithMembers) and spec.members is not None)
        or (isinstance(spec, SplitSpec) and spec.drawn_at_random)
        for spec in specs_in(request.recipe)
    )


def opened(request: AuditRequest) -> Iterator[str]:
    """Open what a recipe names, and yield what was found: of a declared draw, whether anything contradicts it.

    Everything is computed in a store of its own, which is deleted. Code that the recipe names runs only where the machine
    allows it (MEMLIB_CODE).

    Raises:
        UserError: for outputs, lists or models that do not fit the data; the message says what to do.
    """
    recipe, data = request.recipe, getattr(request.recipe, "data", None)
    if isinstance(data, DataSpec) and data.source.holds == "images" and (count := len(open_source(data.source))) > MOST:
        yield f"the content of {count:,} images was not opened; a run reads what the recipe names before it trains"
        return
    with scratch("opening") as folder:
        runner = OpeningRunner(Store(str(folder / "store")))
        with contextlib.suppress(_Enough):
            body_of(request.audit)(runner, recipe)
        examples = _examples(runner)
        if examples is not None:
            models = [each for each in specs_in(recipe) if isinstance(each, ExternalClassifierSpec)]
            for spec in {each.model_dump_json(): each for each in models}.values():
                is_code = not is_path(spec.model) and not user_code.is_allowed(spec.model.partition(":")[0])
                yield _last_layer(spec, examples.num_classes) if is_code else _asked(spec, examples)
        if (compared := runner.found.get(CompareSets)) is not None:
            yield _said_of_sets(compared.content)
        yield from request.audit.opened(recipe, runner.found)


def _said_of_sets(found: Difference) -> str:
    """State whether what is known without a model contradicts sets that were declared to be drawn at random."""
    if not found.contradicts:
        return f"nothing that is known without the model contradicts the declared draw ({say_p(found.p_value)})"
    return (
        f"CAUTION: the sets are declared to be drawn at random, but {found.told} ({say_p(found.p_value)}), so that a run "
        "tests nothing: give sets among which chance alone decided, or do not declare a draw"
    )


def _examples(runner: OpeningRunner) -> TrainingData | None:
    shard, splits = runner.found.get(Decode), runner.found.get(HoldOut, runner.found.get(Split))
    return None if shard is None or splits is None else TrainingData(shard, splits)


def _last_layer(spec: ExternalClassifierSpec, num_classes: int) -> str:
    """Compare the last layer of a file of weights with the data, as a plan runs no code that a recipe names.

    Raises:
        UserError: when the file holds no weights.
    """
    from memlib.models.weights import states_in

    said = f"{spec.model} is not called by a plan, unless MEMLIB_CODE allows it"
    if spec.weights is None:
        return said
    outputs = {
        list(state.values())[-1].shape[0] for state in states_in(spec.weights).values() if list(state.values())[-1].dim()
    }
    if num_classes in outputs or spec.classes is not None:
        return f"the last layer of {spec.weights} fits the {num_classes} classes of the data; {said}"
    found = " or ".join(map(str, sorted(outputs))) or "no"
    return f"CAUTION: the last layer of {spec.weights} has {found} outputs, but the data have {num_classes} classes; {said}"


def _asked(spec: ExternalClassifierSpec, data: TrainingData) -> str:
    """Ask a model about some examples, and say that it answers.

    Raises:
        UserError: when it cannot be loaded, or does not take the examples or know their classes.
    """
    import torch

    from memlib.observe.models import load_logits

    model, take = load_logits(spec, spec.weights, data.num_classes)
    some: Any = data.images[:TRIED]
    with torch.no_grad():
        scores = model(take(some, torch.device("cpu")))
    if not bool(torch.isfinite(scores).all()):
        raise UserError(f"{spec.model} returns numbers that are not finite; check trained.inputs and the weights")
    return f"{spec.model} takes the examples and knows their {data.num_classes} classes"
