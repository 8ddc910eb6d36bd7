"""Seconds of one collective or message over a group of devices.

Gradient synchronisation is in cost.gradients.
"""
