"""Readers with size limits for text, XML and YAML that other programs print."""
