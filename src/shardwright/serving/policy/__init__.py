"""Scheduling policies of serving engines: the requests of a rank's next iteration.

One file for each engine.
"""
