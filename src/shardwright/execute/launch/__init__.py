"""The start of a run and of its ranks, their checks and reports.

The training loop is in execute.training.
"""
