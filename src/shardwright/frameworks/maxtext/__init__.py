"""MaxText's YAML and overrides, read and written."""
