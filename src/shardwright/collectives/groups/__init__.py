"""Places of a group's members in the network.

Algorithms over a group are in collectives.algorithm_costs.
"""
