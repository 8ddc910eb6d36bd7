"""The exact search of small problems: every plan of a few lanes on a few devices.

Larger problems are searched in search.grid, search.joint and search.mixed.
"""
