"""Thin Prefect tasks over memlib, and the only package that depends on Ray."""
