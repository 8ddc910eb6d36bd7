"""Simulation of a deployment, iteration by iteration, and the latencies and throughput that users
see.
"""
