"""Settings of YAML, TOML, JSON, Kubernetes and Python files by dotted names."""
