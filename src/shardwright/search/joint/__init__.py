"""The joint search of a uniform cluster: the cut of the layers, the split and the recompute of each
pipeline rank, and the order of its actions. Mixed clusters are in `search.mixed`.
"""
