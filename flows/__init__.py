"""One flow an audit, each reading like its paper's method, and the `memlib` command."""
