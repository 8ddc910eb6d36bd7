"""Pipeline stages of a plan: segments, device families, edges and gradient groups.

Blocks are in program.block.
"""
