"""Nulls and planted memory for every verdict, on trained models: make validity PART=NAME prints a part of docs/validity.md."""
