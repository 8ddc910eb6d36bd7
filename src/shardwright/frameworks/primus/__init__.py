"""Primus's YAML over Megatron-LM and torchtitan, read."""
