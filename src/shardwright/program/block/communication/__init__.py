"""Communication of a block on one device: between operators, inside them and to experts.

Its seconds are in cost.network.
"""
