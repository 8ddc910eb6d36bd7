"""Attention: fused kernels, masks, key exchange over ranks.

Rotary positions are in execute.numerics.positions.
"""
