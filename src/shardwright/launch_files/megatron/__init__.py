"""Launches of Megatron-LM and of frameworks on Megatron-Core."""
