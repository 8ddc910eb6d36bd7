"""Seconds and bytes of layers as table rows, for many degrees at once.

cost.step adds them up to a step.
"""
