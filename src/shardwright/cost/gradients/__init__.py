"""Seconds and bytes of synchronising gradients and gathering parameters.

The collectives below are in cost.network.
"""
