"""Robust least squares, and predictions made once on several processes.

The constants that are fitted are those of validation.training and validation.serving.
"""
