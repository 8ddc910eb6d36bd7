"""Seconds of a serving engine's kernels and collectives.

Training is in the packages beside it.
"""
