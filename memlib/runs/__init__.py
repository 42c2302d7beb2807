"""What a store knows of runs: records, index, ledger, journals, requests, and what no run needs."""
