"""The version of memlib."""

VERSION = "0.1.0"  # as in pyproject.toml
