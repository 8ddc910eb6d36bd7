"""Axolotl's YAML, read."""
