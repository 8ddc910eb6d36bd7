"""Seconds of one engine iteration, and the memory of a worker.

The loop over iterations is in serving.simulation.
"""
