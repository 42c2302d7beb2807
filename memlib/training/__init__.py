"""The one place where weights change."""
