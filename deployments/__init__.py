"""Recipes and, later, how to run on a cluster; installed with the package."""
