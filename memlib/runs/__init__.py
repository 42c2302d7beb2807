"""Runs as a store records them: manifests, index, ledger, journals and requests; and garbage, which no run needs."""
