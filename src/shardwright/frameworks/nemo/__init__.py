"""NeMo's YAML and recipes, read."""
