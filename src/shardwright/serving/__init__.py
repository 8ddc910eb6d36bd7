"""Simulation of a model-serving deployment under traffic.

Seconds of kernels are in cost.inference, engines in runtime.serving_engines.
"""
