"""Kernels of each kind of operator, with symbolic local sizes.

Their seconds are in cost.kernels.
"""
