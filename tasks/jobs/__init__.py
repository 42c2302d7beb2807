"""What Ray tasks compute, each filling one artifact; loads neither Prefect nor Ray, so that workers start fast."""

from tasks.jobs.data import TrainingData
from tasks.jobs.gradients import NORMS, CheckpointNorms
from tasks.jobs.models import load_net
from tasks.jobs.nets import NetChunk
from tasks.jobs.outputs import OUTPUTS, ModelOutputs
from tasks.jobs.scores import BY_LABEL, LATENT, UNITS, NetScores, read_by_label

__all__ = [
    "BY_LABEL",
    "LATENT",
    "NORMS",
    "OUTPUTS",
    "UNITS",
    "CheckpointNorms",
    "ModelOutputs",
    "NetChunk",
    "NetScores",
    "TrainingData",
    "load_net",
    "read_by_label",
]
