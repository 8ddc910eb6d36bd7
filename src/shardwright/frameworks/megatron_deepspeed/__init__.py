"""Megatron-DeepSpeed's command lines, read."""
