"""The search of grids: strategies with the same degrees of parallelism for the whole cluster.

Pipelines whose ranks differ are searched in search.joint.
"""
