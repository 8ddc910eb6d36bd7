"""Data files: measured tables of kernels and collectives.

They are read in hardware.catalog.
"""
