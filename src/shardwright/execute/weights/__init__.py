"""Weights in the format of Hugging Face: names, reading and writing.

Checkpoints of a run are in execute.checkpoints.
"""
