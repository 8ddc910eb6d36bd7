"""LLaMA-Factory's YAML and arguments, read."""
