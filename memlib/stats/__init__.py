"""Statistics shared by the audits."""
