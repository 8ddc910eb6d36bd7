"""Simulation of a deployment, iteration by iteration, with latencies and throughput."""
