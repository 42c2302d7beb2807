"""A complete deployment on one machine, without containers, and a drill of failures that occur in production."""
