"""Nulls and planted memory for every verdict, on trained models: make validity PART=NAME prints and records a part of the study."""
