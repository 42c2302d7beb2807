"""Canaries: features that few training examples carry, and documents for trainers elsewhere."""
