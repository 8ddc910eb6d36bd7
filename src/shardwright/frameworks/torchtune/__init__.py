"""torchtune's YAML, read."""
