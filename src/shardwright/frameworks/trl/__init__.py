"""TRL's arguments and YAML, read."""
