"""Seconds of one kernel on one accelerator, from its shape.

Collectives are in cost.network.
"""
