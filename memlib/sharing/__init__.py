"""Findings of finished runs for other tools: model cards, MLflow, Croissant and webhooks; by default aggregates alone."""
