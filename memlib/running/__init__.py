"""Who carries stages out in this process, plans them, publishes and verifies runs."""
