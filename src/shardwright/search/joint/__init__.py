"""The joint search of a uniform cluster: cut, split and recompute of each pipeline rank, and order.

Mixed clusters are in search.mixed.
"""
