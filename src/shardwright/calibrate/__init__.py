"""Measurements of this machine, or imported ones, as a profile.

Predictions that use a profile are in hardware.profile.
"""
