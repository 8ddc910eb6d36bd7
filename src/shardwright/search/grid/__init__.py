"""The search of grids: one tensor, context, expert, data and pipeline degree for the whole cluster.
Pipelines whose ranks differ are searched in `search.joint`.
"""
