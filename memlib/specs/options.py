"""Options of a run: its output, the stages to recompute, and its frozen plan; they do not affect results."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RunOptions:
    """Options of a run.

    Attributes:
        quiet: do not show progress.
        verbose: show the keys of artifacts, and details of the progress.
        force: names of stages to recompute even if the store holds their artifacts.
        cascade: retrain models whose inputs were recomputed with a different result.
        plan: content of the file with the frozen plan that the run was given; "" for none.
        look: id of the run that will compare this one with others, if it is one cell of a sweep; "" for a run of its own.
    """

    quiet: bool = False
    verbose: bool = False
    force: tuple[str, ...] = ()
    cascade: bool = False
    plan: str = ""
    look: str = ""
