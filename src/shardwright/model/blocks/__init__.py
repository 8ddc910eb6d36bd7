"""Builders of blocks that several families share: attention, feed-forward, experts, state-space
layers.
"""
