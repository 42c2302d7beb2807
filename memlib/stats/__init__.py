"""Statistics that any audit might use."""
