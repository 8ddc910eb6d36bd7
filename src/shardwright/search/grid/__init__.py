"""The search of grids: the same degrees of parallelism for the whole cluster.

Pipelines whose ranks differ are searched in search.joint.
"""
