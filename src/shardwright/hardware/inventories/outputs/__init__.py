"""Outputs of commands that describe nodes, one file each.

What they say together is in hardware.inventories.
"""
