"""Prediction errors by row, source and group, their limits, and Markdown tables of them.

Runs and predictions come from validation.training and validation.serving.
"""
