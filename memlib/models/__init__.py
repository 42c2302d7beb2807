"""Networks, built from a spec."""
