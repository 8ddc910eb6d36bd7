"""Readers of the outputs of commands that describe nodes, one module each.

hardware.inventories merges their facts.
"""
