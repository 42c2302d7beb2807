"""The command that looks at what somebody brings, answers what needs no training, and writes the recipe of the full audit."""

import sys

from rich.text import Text

from flows.cli.store import STYLES, JsonOption, StoreOption
from memlib.console import console, show_json
from memlib.errors import UserError
from memlib.looking.api import HOW, look_at
from memlib.looking.asking import Drawn
from memlib.store import DEFAULT_STORE


def look(
    *things: str,
    drawn: Drawn | None = None,
    label: str = "",
    score: str = "",
    store: StoreOption = DEFAULT_STORE,
    json_: JsonOption = False,
) -> None:
    """Look at a model and at data that it was and was not trained on: what can be asked, a first answer, and a recipe.

    Each THING is a file, a folder, or a function that builds a model, in any order:

    photos model.pt nets:build: photos/train and photos/val, and a model (torchvision's need no function).

    members.csv others.csv model.joblib: a table in two files, and a model or its probabilities (outputs.csv).

    scores.csv: scores with a column member (yes or no) and, if there are, id, label and patient (or person, user, customer).

    model-folder base-folder members.jsonl others.jsonl: texts, a language model, and the one that was fine-tuned.

    exported a.parquet b.parquet: embeddings of what memlib export wrote.

    What needs no training to speak of is answered at once, as a run with a page. The full audit is the last line's command.

    Parameters
    ----------
    drawn
        How members were chosen: coins (each by a fair coin of its own), fixed (a fixed number of each class was held out at
        random) or unknown, with which nothing is tested. On a terminal it is asked for.
    label
        Column of the class; by default as its name tells.
    score
        Column of the scores that are tested, if there are several.
    store
        Folder or s3:// prefix for artifacts, results and reports.
    json_
        Print the result as JSON.
    """
    if not things:
        raise UserError("name what you have: a model, and files or folders of data that it was and was not trained on")
    if drawn is None:
        drawn = _ask() if not json_ and can_ask() else "unknown"
    found = look_at(
        things, drawn=drawn, label=label, score=score, folder=".", store=store, quiet=True,
        say=(lambda line: None) if json_ else (lambda line: console.print(line, soft_wrap=True)),
    )  # fmt: skip
    if json_:
        run = found.run
        show_json({
            "understood": found.understood, "question": found.question, "run": None if run is None else run.id,
            "verdict": None if run is None else {"word": run.verdict.word, "sentence": run.verdict.sentence},
            "recipe": None if found.recipe is None else str(found.recipe), "advice": found.advice,
        })  # fmt: skip
        return
    if found.run is not None:
        verdict = found.run.verdict
        console.print(Text(f"{verdict.word.capitalize()}.", style=STYLES[verdict.word]), verdict.sentence, soft_wrap=True)
    for line in found.advice:
        console.print(line, markup=False, soft_wrap=True)


def can_ask() -> bool:
    """Return whether someone at a terminal can answer."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def _ask() -> Drawn:
    """Ask on a terminal how the members were chosen."""
    ways: tuple[Drawn, ...] = ("unknown", "fixed", "coins")
    for number, way in enumerate(ways, start=1):
        console.print(f"{number}  {way}: {HOW[way]}")
    answer = input("How were the examples chosen on which the model was trained? [1 to 3] ").strip()
    if answer in ways:
        return answer
    if answer not in ("1", "2", "3"):
        raise UserError(f"{answer!r} is not a number from 1 to 3; run the command again, or say --drawn")
    return ways[int(answer) - 1]
