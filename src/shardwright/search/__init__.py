"""Searches for the best strategy: spaces, lower bounds, answers and certificates.

The prediction of one strategy is in simulator, the lower bounds of many are in cost.bounds.
"""
