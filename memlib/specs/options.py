"""Options of a run: its output, and the stages to recompute; they do not affect results."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RunOptions:
    """Options of a run.

    Attributes:
        quiet: do not show progress.
        verbose: show the keys of artifacts, and details of the progress.
        force: names of stages to recompute even if the store holds their artifacts.
        cascade: retrain models whose inputs were recomputed with a different result.
    """

    quiet: bool = False
    verbose: bool = False
    force: tuple[str, ...] = ()
    cascade: bool = False
