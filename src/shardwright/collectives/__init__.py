"""Seconds and bytes of collectives over groups in a network, by algorithm.

Measured curves are in cost.network.
"""
