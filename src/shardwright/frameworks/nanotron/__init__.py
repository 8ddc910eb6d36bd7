"""nanotron's YAML, read and written."""
