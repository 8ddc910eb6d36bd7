"""Costs of collective algorithms, one file for each: seconds and bytes over a group."""
