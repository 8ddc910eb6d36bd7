"""Plans on PyTorch's own engine: DTensor, FSDP2 and pipelining.

Any other plan runs in execute.interpreter.
"""
