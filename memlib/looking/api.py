"""`memlib.look`: what people bring is understood, answered as far as no training to speak of is needed, and asked in full."""

import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from memlib.errors import UserError
from memlib.findings import DESCRIPTIVE
from memlib.looking.asking import FULL, QUICK, Asked, Drawn, Recipe, Said, asked
from memlib.looking.models import with_estimator, with_network
from memlib.looking.things import looked_at, members_first, written
from memlib.pipeline import user_code
from memlib.running.api import run
from memlib.runs.run import Run
from memlib.store.permissions import PRIVATE, make_folder, write_file

REMEDIES = {
    "most by ids": "if ids, or names of files, are no more than numbers that were given afterwards, leave them out",
    "independent coins": "say --drawn fixed if a fixed number of each class, or person, was held out at random",
}
REMEDY = "bring only examples among which chance alone decided, or say --drawn unknown"
BROUGHT = ("members", "nonmembers")
MINUTE = 60.0
HOW = {
    "unknown": "not at random, or not known",
    "fixed": "a fixed number of each class was held out at random",
    "coins": "each by a fair coin of its own",
}
"""Ways in which members were chosen, in words."""


@dataclass(frozen=True)
class Look:
    """The description of the things that somebody brought, and the answer that needed no training."""

    understood: tuple[str, ...]  #: a line for each thing, then remarks.
    question: str  #: what was asked, or what is missing.
    run: Run | None  #: the run that answers it; None if nothing could be answered at once.
    recipe: Path | None  #: file of the recipe of the full audit, or of the run if there is no fuller one.
    advice: tuple[str, ...]  #: what to do next, the command of the full audit last.

    def __str__(self) -> str:
        answer = [] if self.run is None else [f"{self.run.verdict.word}: {self.run.verdict.sentence}"]
        return "\n".join([*self.understood, self.question, *answer, *self.advice])


def look(
    *things: Any,
    drawn: Drawn = "unknown",
    label: str = "",
    score: str = "",
    folder: str | PathLike[str] = ".",
    store: str | None = None,
    quiet: bool = True,
) -> Look:
    """Look at a model and at data that it was and was not trained on; answer at once what needs no training to speak of.

    The answer is a run like any other, with a page, and rows for gates and dossiers. Its word can be shown, inconclusive or
    descriptive, never bounded, as only simple attacks are made: the loss, right answers alone and, where examples can be
    learnt in seconds, the loss beyond that of models which were not trained on them. The recipe of the full audit is written
    to `folder`.

    Args:
        things: files, folders, names of functions that build a model (package.module:function), or objects: a data frame, an
            array of examples with one of labels as a pair, a fitted classifier with `predict_proba`, a torch module. Of two
            tables, folders, frames or pairs the first holds the members, unless their names say otherwise.
        drawn: how the members were chosen: coins (each by a fair coin of its own), fixed (a fixed number of each class was
            held out at random) or unknown, with which nothing is tested.
        label: column of the class; by default as its name tells.
        score: column of the scores that are tested, if there are several.
        folder: folder for the recipe and the files that it needs.
        store: folder or s3:// prefix for artifacts; see `memlib.run`.
        quiet: do not print a line to standard error for each computed stage.

    Raises:
        UserError: if something cannot be read, is of no known kind, or does not belong with the rest.

    Example:
        >>> import memlib, numpy as np
        >>> rng = np.random.default_rng(0)
        >>> points, labels = rng.normal(size=(120, 3)), np.arange(120) % 2
        >>> from sklearn.ensemble import RandomForestClassifier
        >>> forest = RandomForestClassifier(20).fit(points[:60], labels[:60])
        >>> found = memlib.look((points[:60], labels[:60]), (points[60:], labels[60:]), forest, drawn="fixed")
        >>> found.run.verdict.word
        'shown'
    """
    return look_at(things, drawn=drawn, label=label, score=score, folder=folder, store=store, quiet=quiet)


def look_at(
    things: Sequence[Any],
    *,
    drawn: Drawn,
    label: str,
    score: str,
    folder: str | PathLike[str],
    store: str | None,
    quiet: bool,
    say: Callable[[str], None] = lambda line: None,
) -> Look:
    """Look at things, see `look`; pass each line on what was understood to `say` before anything is computed."""
    place = Path(folder).expanduser()
    known, files = _as_paths(things, place, label)
    for name, content in files.items():
        _write(place / name, content)
    user_code.allow(user_code.modules_in(known))
    looks = tuple(looked_at(path) for path in known)
    name = _free(place, "membership")
    said = Said(drawn, label, score)
    found = asked(looks, said, str(_beside(place, name)))
    if found.name != "membership":
        name = _free(place, found.name)
        found = asked(looks, said, str(_beside(place, name)))
    if any(one.kind == "images" for one in looks) and found.name == "membership":
        found = with_network(found, looks)
    tables = members_first(one for one in looks if one.kind == "table")
    if tables and found.name == "membership":
        found = with_estimator(found, looks, tables, str(_beside(place, name)))
    for file, content in found.files.items():
        _write(_beside(place, name) / file, content)
    understood = (*map(str, looks), *found.remarks)
    for line in (*understood, found.question):
        say(line)
    started = time.process_time()
    finished = None
    if found.quick is not None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # the page has them
                finished = run(found.quick, store=store, quiet=quiet)
        except UserError:  # nothing is left of a mistake
            if found.files:
                shutil.rmtree(_beside(place, name), ignore_errors=True)
            raise
    seconds = time.process_time() - started
    recipe = found.full or found.quick
    written_to = None if recipe is None else place / f"{name}.yaml"
    if recipe is not None and written_to is not None:
        _write(written_to, _in_yaml(recipe, found, written_to, is_full=found.full is not None))
    return Look(understood, found.question, finished, written_to, tuple(_advice(found, finished, written_to, seconds)))


def _advice(found: Asked, finished: Run | None, recipe: Path | None, seconds: float) -> Iterator[str]:
    """Yield what to do next: declare the draw, open the page, run the full audit."""
    if finished is not None and finished.verdict.word == DESCRIPTIVE and "target" in finished.recipe:
        if finished.recipe["target"]["drawn"] != "unknown":
            why = finished.verdict.explanation.partition(". ")[0]
            yield f"{why}; {next((one for sign, one in REMEDIES.items() if sign in why), REMEDY)}"
        else:
            yield (
                "nothing was tested, as it is not said how the members were chosen: add --drawn fixed if a part of each "
                "class was held out at random, --drawn coins if each was included by a coin of its own"
            )
    if finished is not None:
        yield f"the page: memlib open {finished.id}"
    if recipe is None:
        return
    if found.full is None:
        yield f"its recipe: {recipe}; nothing fuller can be asked of these things alone"
    elif finished is None:
        yield f"memlib run {recipe}"
    else:
        price = found.seconds if found.seconds is not None else FULL / QUICK * seconds
        yield (
            f"the full audit, with all attacks by {FULL} shadow models (64 find more), some "
            f"{max(1, round(price / MINUTE))} CPU minutes: memlib run {recipe}"
        )


def _in_yaml(recipe: Recipe, found: Asked, path: Path, *, is_full: bool) -> bytes:
    lines = [f"# {found.question}", *(f"# {line}" for line in found.remarks)]
    if is_full and "target" in recipe:
        lines += [
            "# target.drawn: how the members were chosen, coins, fixed or unknown; docs/how-to/membership.md.",
            "# shadows.count: 64 find more than 16; those that are trained already are kept.",
        ]
    if "training" in recipe and "target" in recipe:
        lines.append("# training: as like the target's own as you can, as attacks are weaker by models unlike it.")
    lines.append(f"#   memlib plan {path}      what it computes\n#   memlib run {path}")
    return ("\n".join(lines) + "\n" + yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True, width=120)).encode()


def _free(folder: Path, name: str) -> str:
    """Return a name under which there is no recipe yet."""
    number = 1
    while any(os.path.lexists(folder / f"{_counted(name, number)}{end}") for end in (".yaml", ".files", "_members.csv")):
        number += 1
    return _counted(name, number)


def _counted(name: str, number: int) -> str:
    return name if number == 1 else f"{name}_{number}"


def _beside(folder: Path, name: str) -> Path:
    return folder / f"{name}.files"


def _write(path: Path, content: bytes) -> None:
    make_folder(path.parent, PRIVATE.folder)
    write_file(path, content, PRIVATE.file)


# -- objects ------------------------------------------------------------------------------------------------


def _as_paths(things: Sequence[Any], folder: Path, label: str) -> tuple[list[str], dict[str, bytes]]:
    """Return things as paths and names; objects become tables, with a model's probabilities, in files that are written."""
    named = [str(one) for one in things if isinstance(one, str | PathLike)]
    objects = [one for one in things if not isinstance(one, str | PathLike)]
    if not objects:
        if not named:
            raise UserError("bring something to look at: a model, and what it was and was not trained on")
        return named, {}
    models = [one for one in objects if _answers_of(one) is not None]
    examples = [one for one in objects if _answers_of(one) is None]
    if len(models) > 1 or not 1 <= len(examples) <= 2:
        raise UserError(
            f"{len(examples)} sets of examples and {len(models)} models among the objects; give members, others and a model"
        )
    start = Path(_free(folder, "brought")).name
    files: dict[str, bytes] = {}
    for name, one in zip(BROUGHT, examples, strict=False):
        files[f"{start}_{name}.csv"] = written(_tabled(one, models[0] if models else None, label))
    return [*named, *(str(folder / name) for name in files)], files


def _answers_of(model: Any) -> Callable[[Any], NDArray[np.float64]] | None:
    """Return the function that returns a model's probabilities (num_examples, num_classes); None for what is no model."""
    if callable(getattr(model, "predict_proba", None)):
        return lambda examples: np.asarray(model.predict_proba(examples), dtype=np.float64)
    if callable(getattr(model, "state_dict", None)) and callable(model):
        return lambda examples: _softmax(model, examples)
    return None


def _softmax(module: Any, examples: Any) -> NDArray[np.float64]:
    import torch

    was_training = module.training
    module.eval()
    with torch.no_grad():
        outputs = module(torch.as_tensor(np.asarray(examples), dtype=torch.float32))
    module.train(was_training)
    scores = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", outputs)
    if scores is None:
        raise UserError(f"{type(module).__name__} returns no class scores")
    values = scores.double()
    is_share = bool((values >= 0).all()) and torch.allclose(values.sum(dim=1), torch.ones(()).double(), atol=1e-3)
    found: NDArray[np.float64] = (values if is_share else values.softmax(dim=1)).numpy()
    return found


def _tabled(examples: Any, model: Any, label: str) -> dict[str, list[Any]]:
    """Return examples as columns of a table, with the class and, with a model, its probabilities."""
    if hasattr(examples, "columns") and hasattr(examples, "to_dict"):  # a data frame
        table = {str(name): examples[name].tolist() for name in examples.columns}
        named = label or next((name for name in table if name.lower() in ("label", "target", "y", "class", "outcome")), "")
        if not named:
            raise UserError(f"which column of the data frame is the class? name it: label={list(table)[-1]!r}")
        given, values = examples.drop(columns=[named]), table[named]
        table[named] = [str(value) for value in values]
    elif isinstance(examples, tuple | list) and len(examples) == 2:
        given, values = np.asarray(examples[0]), np.asarray(examples[1]).tolist()
        table = {f"x{place}": column.tolist() for place, column in enumerate(given.T)} if given.ndim == 2 else {}
        table["label"] = [str(value) for value in values]
    else:
        raise UserError(f"a {type(examples).__name__} is no data frame and no pair of examples and labels")
    answers = None if model is None else _answers_of(model)
    if answers is None:
        return table
    try:
        shares = answers(given)
    except (ValueError, TypeError, RuntimeError, KeyError) as error:
        reason = (str(error).splitlines() or [""])[0][:200]
        raise UserError(f"the model cannot be asked about these examples ({type(error).__name__}: {reason})") from error
    classes = [str(name) for name in getattr(model, "classes_", sorted({str(value) for value in values}, key=_as_number))]
    if len(classes) != shares.shape[1]:
        classes = [str(number) for number in range(shares.shape[1])]
    return table | {f"p_{name}": shares[:, place].tolist() for place, name in enumerate(classes)}


def _as_number(name: str) -> tuple[float, str]:
    try:
        return float(name), name
    except ValueError:
        return float("inf"), name
