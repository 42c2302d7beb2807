"""A job of several nodes for Slurm, and a drill of failures that occur on a cluster."""
