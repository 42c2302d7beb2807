"""Simulated nulls and plants of every verdict, on trained models: make validity PART=NAME prints a part of docs/validity.md."""
