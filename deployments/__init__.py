"""Recipes, and the files that deploy them in production; installed with the package."""
