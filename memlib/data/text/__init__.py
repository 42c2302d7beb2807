"""Texts: their sources, corpora and windows, and formats of secrets."""
