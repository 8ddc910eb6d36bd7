"""Fields of config.json that several families share: defaults, rotary positions, dropout,
quantization.
"""
