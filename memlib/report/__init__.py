"""Rendering of tables and figures as one self-contained HTML page."""
