"""Shared fields of config.json: class defaults, rotary positions, dropout, quantization."""
