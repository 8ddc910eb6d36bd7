"""Collective algorithms, one file for each: seconds and bytes over a group."""
