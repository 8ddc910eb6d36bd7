"""Search for plans of clusters with several kinds of device.

Searches on uniform clusters are in search.grid and search.joint.
"""
