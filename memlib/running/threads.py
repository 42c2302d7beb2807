"""The resources of a stage by name, and the number of threads of each of its parts."""

from memlib.pipeline.stage import AnyStage
from memlib.specs import Resources
from memlib.specs.cores import threads

TRAINING = "train"  # resources of all models whose own stage has none


def settings_of(resources: Resources, stage: AnyStage) -> str:
    """Return the name under which a stage's resources are set: its own, or for models also that of all training."""
    own = stage.declared.name
    return TRAINING if stage.place == "fleet" and own not in resources.stages else own


def threads_of(resources: Resources, stage: AnyStage, parts: int) -> int:
    """Return the threads of a stage that is one of the parts of a step: those of every placement."""
    return threads() if stage.where == "driver" else resources.threads(settings_of(resources, stage), parts)
