"""Cluster files and scenario files in YAML.

Files that other programs print are read in hardware.inventories.
"""
