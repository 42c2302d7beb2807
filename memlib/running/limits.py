"""Limits of a run's time, as its resources set them."""

from memlib.errors import RunError
from memlib.specs import Resources


def check_hours(resources: Resources, seconds: float) -> None:
    """Raise RunError if workers have taken more time than resources.max_hours allows.

    Args:
        resources: machine settings of the run.
        seconds: worker time of the run so far.
    """
    limit, hours = resources.max_hours, seconds / 3600
    if limit is not None and hours > limit:
        raise RunError(
            f"workers have taken {hours:.3g} hours, but resources.max_hours allows {limit:g}; finished work is kept: "
            "run the same command again, or raise the limit"
        )


def check_time(resources: Resources, stage: str, seconds: float) -> None:
    """Raise RunError if a stage has run for longer than its own time limit.

    Args:
        resources: machine settings of the run.
        stage: name under which the stage's resources are set.
        seconds: time since the stage began.
    """
    limit = resources.of(stage).timeout
    if limit is not None and seconds > limit:
        raise RunError(
            f"{stage} was stopped after its time limit of {limit:g} s; raise resources.stages.{stage}.timeout and run the "
            "same command again"
        )
