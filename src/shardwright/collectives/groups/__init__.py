"""Where the members of a group lie in the network.

Algorithms over a group are in collectives.algorithms.
"""
