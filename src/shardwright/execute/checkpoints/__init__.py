"""Checkpoints of a run and its initial values.

Weights in the format of Hugging Face are in execute.weights.
"""
