"""Lower bounds of step time and memory for many strategies at once.

The costs of one strategy are in cost.step.
"""
