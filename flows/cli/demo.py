"""The command that shows in seconds what an audit finds, on data that memlib brings along."""

import shlex
import time
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from flows.cli.messages import say
from flows.cli.store import StoreOption, print_secrets
from memlib.console import console
from memlib.recipes.request import AuditRequest
from memlib.running.in_process import carry_out_here
from memlib.runs.records import RunRecord
from memlib.specs.resources import RunOptions
from memlib.store import DEFAULT_STORE, Store

MEMBERS = {"shadows.count": 16, "shadows.chunk": 16, "score.auc_bound": 0.6}  # which 600 digits can bound
TRAINED = {"trained": 30, "not trained": 0}  # epochs
SECRET = {
    "canaries.insertions": [24], "canaries.never": 20, "data.fraction": 0.06, "model.width": 64, "training.epochs": 10,
    "training.checkpoint_epochs": [], "training.optimizer.learning_rate": 0.008,
}  # fmt: skip


def demo(
    what: Annotated[Literal["members", "secret"], Parameter(show_choices=True)] = "members",
    /,
    *,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Show what an audit finds, in some fifteen seconds on embedded data, without Prefect and Ray.

    Parameters
    ----------
    what
        members: who was in the training set of a small classifier of digits, after its training and before it? secret: a
        six-digit code is read out of a small language model.
    store
        Folder for artifacts, results and reports.
    """
    opened, started = Store(store), time.monotonic()
    last = _show_members(opened) if what == "members" else _show_secret(opened)
    recipe = "membership" if what == "members" else "exposure"
    page = f"memlib open {last.run} --store {shlex.quote(opened.uri)}"
    console.print(
        f"\n{time.monotonic() - started:.0f} s. The page with all numbers: {page}\n"
        f"Next: memlib init {recipe} writes a recipe to adapt; memlib init asks what you have.",
        soft_wrap=True,
    )


def _show_members(store: Store) -> RunRecord:
    """Audit a model before and after its training; return the run of the trained one."""
    console.print(
        "Can an attacker tell which 600 digits a small classifier was trained on? The same attack on the same model, after\n"
        "its training and before it:\n",
        soft_wrap=True,
    )
    runs = {}
    for name, epochs in TRAINED.items():
        title = f"Membership: scikit-learn's digits, {name}"
        runs[name] = run = _carried_out("membership_smoke", MEMBERS | {"training.epochs": epochs, "title": title}, store)
        assert run.verdict is not None
        console.print(f"{name}: {run.verdict.word}. {run.verdict.sentence}", soft_wrap=True)
    return runs["trained"]


def _show_secret(store: Store) -> RunRecord:
    """Insert a code into a text, train a language model on it, and search the model for the code; return the run."""
    console.print(
        "A sentence with a random code, 'My access code is ...', stands 24 times in a text on which a small language model\n"
        "is trained. Then the model alone is searched for the code:\n",
        soft_wrap=True,
    )
    run = _carried_out("exposure_smoke", SECRET | {"title": "Exposure: a code in Python's help topics"}, store)
    assert run.verdict is not None
    console.print(f"{run.verdict.word}. {run.verdict.sentence}\n", soft_wrap=True)
    print_secrets(store, run)
    console.print(
        "Secrets appear in no page and no table; memlib show RUN --reveal prints them to whoever may read the store."
    )
    return run


def _carried_out(recipe: str, changes: Mapping[str, Any], store: Store) -> RunRecord:
    request = AuditRequest.read(recipe, changes)
    return carry_out_here(request, store, RunOptions(quiet=True), device="cpu", say=say)
