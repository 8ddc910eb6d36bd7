"""Serving of tiny models on real workers, with their caches and transfers.

The simulation of deployments is in shardwright.serving.
"""
