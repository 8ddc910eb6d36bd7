"""Accelerators, links, nodes and clusters, with their rates.

Models are in model, seconds of work in cost.
"""
