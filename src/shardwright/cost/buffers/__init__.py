"""Bytes that no layer owns: communication buffers, logits, offloaded activations.

A layer's own bytes are in cost.tables.
"""
