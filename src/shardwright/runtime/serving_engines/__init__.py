"""Serving engines by version, as facts that the serving simulation reads: one file an engine."""
