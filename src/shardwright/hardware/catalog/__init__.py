"""Accelerators, nodes, instances, clusters and prices by name, each number with its source."""
