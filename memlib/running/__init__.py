"""Runners that execute or plan the stages of an audit in this process; publication and verification of runs."""
