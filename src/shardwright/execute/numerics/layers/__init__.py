"""Embedding, linear layers, activations and residual sums."""
