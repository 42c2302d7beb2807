"""Options of a run: its output, the stages to recompute, and its frozen plan; they do not affect results."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RunOptions:
    """Options of a run."""

    quiet: bool = False  #: do not show progress.
    verbose: bool = False  #: show the keys of artifacts, and details of the progress.
    force: tuple[str, ...] = ()  #: names of stages to recompute even if the store holds their artifacts.
    cascade: bool = False  #: retrain models whose inputs were recomputed with a different result.
    plan: str = ""  #: content of the file with the frozen plan that the run was given; "" for none.
    #: id of the run that will compare this one with others, if it is one cell of a sweep; "" for a run of its own.
    look: str = ""
