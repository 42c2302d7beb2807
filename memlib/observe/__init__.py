"""Stages that run models over examples and store the resulting arrays together with the example ids."""
