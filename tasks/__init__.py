"""Thin Prefect tasks over memlib, and the only place that knows Ray."""
