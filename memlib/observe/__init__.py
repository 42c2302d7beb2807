"""Running a model over examples and keeping arrays; each array travels with its ids."""
