"""The `memlib` command."""
