"""Stages that run models over examples and store arrays, each together with its ids."""
