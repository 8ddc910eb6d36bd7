"""Builders of blocks that model families share: attention, feed-forward, experts, state space."""
