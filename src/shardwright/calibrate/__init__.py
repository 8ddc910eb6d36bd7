"""Measurements of this machine, or imported ones, as a profile.

hardware.profile applies profiles to predictions.
"""
