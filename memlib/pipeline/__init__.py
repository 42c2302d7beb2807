"""Stages: their keys, code and artifacts, and the provenance that manifests record."""
