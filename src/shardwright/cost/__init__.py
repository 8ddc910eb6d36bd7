"""Seconds and bytes of kernels, collectives, blocks and steps. Tasks are in program, simulation is
in simulator.
"""
