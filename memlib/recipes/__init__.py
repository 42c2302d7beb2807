"""Recipes: the YAML files, their inheritance and changes, and the request that they become."""
