"""What Ray tasks compute, each filling one artifact; loads neither Prefect nor Ray, so that workers start fast."""

from tasks.jobs.data import TrainingData
from tasks.jobs.gradients import NORMS, CheckpointNorms
from tasks.jobs.models import load_net
from tasks.jobs.nets import NetChunk
from tasks.jobs.outputs import OUTPUTS, ModelOutputs
from tasks.jobs.scores import LATENT, UNITS, NetScores

__all__ = [
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
]
