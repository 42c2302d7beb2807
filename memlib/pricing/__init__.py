"""Prices of audits before they run: the work of each stage, the rates of a machine, and a pass over an audit's flow."""
