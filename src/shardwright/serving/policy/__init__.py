"""Scheduling policies of serving engines: which requests the next iteration holds.

One file for each engine.
"""
