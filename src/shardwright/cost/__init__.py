"""Seconds and bytes of kernels, collectives, blocks and training steps.

Tasks are in program, simulation is in simulator.
"""
