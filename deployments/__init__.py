"""Recipes, and how to run them in production; installed with the package."""
